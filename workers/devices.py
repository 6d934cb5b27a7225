"""The devices of this host: the GPUs that this process may use (by NVML), else one device for each CPU core."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import psutil

from parallel_core.observe import control_group
from parallel_core.observe.cores import before, cores
from parallel_core.observe.gpus import AmbiguousGpus, Gpu, Places, gpus, lost, model, open_nvml, unreadable
from workers.contract import HEARTBEAT_S, Device, Unusable
from workers.periodic import Periodic

SILENT_S = 60.0
"""How long the driver may take to answer; loading it for the first time takes some seconds for each GPU."""
Listed = tuple[list[Device], list[Unusable]]
"""The devices that can be used, and those that cannot."""


class Devices(Periodic):
    """The devices as they were last read; the choice between CUDA and CPU is made once. In a thread of its own, because
    a driver may not answer."""

    def __init__(self, cpu_devices: int | None = None, gpu_shares: int = 1) -> None:
        """`gpu_shares`: the number of devices that each GPU counts as; they are numbered round the GPUs, as in
        `launch.rank`."""
        super().__init__("devices", HEARTBEAT_S)
        nvml = open_nvml()
        self._places: Places = {}
        self.gpus: list[tuple[str, str]] = []
        """(name, board) of the GPUs in the order of their numbers, for ranks, which may find fewer of them later."""
        self._nvml, self._shares = nvml if nvml is not None and gpus(nvml, self._places) else None, gpu_shares
        self._cores = cores()
        self._count = cpu_devices or len(self._cores)
        self._names = core_names(self._cores)
        self._models: dict[int, str] = {}  # of the GPUs, as far as they were readable once
        self._listed: Listed = [], []
        self._read_at = time.monotonic()
        psutil.cpu_percent(percpu=True)  # each call returns the load since the one before: make the first one now

    @property
    def kind(self) -> Literal["cpu", "cuda"]:
        return "cuda" if self._nvml else "cpu"

    def run(self) -> None:
        time.sleep(HEARTBEAT_S)  # the worker's start looks: the load over less time than this would be noise
        super().run()

    def look(self) -> None:
        """Reads them now. GPUs that cannot be read are listed as unusable."""
        if self._nvml is None:
            with contextlib.suppress(OSError):
                self._listed = self._read_cpu(), []
            return
        try:
            self._listed = self._read_cuda(self._nvml)
        except (self._nvml.NVMLError, AmbiguousGpus) as error:
            self._listed = none_of(self._listed, f"The GPUs of this host cannot be counted ({error}).")
        self._read_at = time.monotonic()

    def listed(self) -> Listed:
        """Returns the devices that can be used, and those that cannot, as last read. If the driver has not answered for
        SILENT_S seconds, no GPU can be used. May be called from any thread, and does not wait."""
        listed, silent = self._listed, time.monotonic() - self._read_at
        if self._nvml is None or silent < SILENT_S:
            return listed
        return none_of(listed, f"The driver has not answered for {SILENT_S:.0f} s: start the host again.")

    def _read_cuda(self, nvml: Any) -> Listed:
        there = gpus(nvml, self._places)
        found = [self._gpu(nvml, index, gpu) for index, gpu in enumerate(there)]
        self.gpus = [(gpu.name, gpu.board) for gpu in there]
        usable: list[Device] = []
        unusable: list[Unusable] = []
        for share in range(self._shares):
            for index, gpu in enumerate(found, share * len(found)):
                if isinstance(gpu, str):
                    name = self._share_name(self._models.get(index - share * len(found), "GPU"), share)
                    unusable.append(Unusable(index=index, kind="cuda", name=name, why=gpu))
                else:
                    usable.append(self._share(gpu, index, share))
        return usable, unusable

    def _gpu(self, nvml: Any, index: int, gpu: Gpu) -> Device | str:
        """Returns the whole GPU, or why it cannot be used."""
        try:
            return gpu.fault or self._read_gpu(nvml, index, gpu.handle)
        except nvml.NVMLError as error:
            return unreadable(error)

    def _read_gpu(self, nvml: Any, index: int, handle: Any) -> Device:
        """Raises NVMLError if the GPU cannot be used, but not for a quantity that it does not report."""
        load = 0.0
        self._models[index] = model(nvml, handle)
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            total, used = int(memory.total), int(memory.used)
        except nvml.NVMLError as error:
            if lost(nvml, error):
                raise
            total, available = host_memory()  # a GPU that uses the processor's memory
            used = total - available
        try:
            load = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        except nvml.NVMLError as error:  # not every device (MIG, some drivers) reports its load
            if lost(nvml, error):
                raise
        return Device(
            index=index,
            kind="cuda",
            name=self._models[index],
            memory_total=total,
            memory_used=used,
            load=load,
        )

    def _share(self, gpu: Device, index: int, share: int) -> Device:
        total, used = gpu["memory_total"] // self._shares, gpu["memory_used"] // self._shares
        name = self._share_name(gpu["name"], share)
        return {**gpu, "index": index, "name": name, "memory_total": total, "memory_used": used}

    def _share_name(self, name: str, share: int) -> str:
        return name if self._shares == 1 else f"{name}, share {share + 1} of {self._shares}"

    def _read_cpu(self) -> list[Device]:
        """A CPU device is one core with its share of the host's memory. If there are more devices than cores, they
        share cores."""
        total, available = host_memory()
        percent = psutil.cpu_percent(percpu=True)
        return [
            Device(
                index=index,
                kind="cpu",
                name=self._names[core],
                memory_total=total // self._count,
                memory_used=(total - available) // self._count,
                load=percent[core] / 100 if core < len(percent) else 0.0,
            )
            for index, core in ((i, self._cores[i % len(self._cores)]) for i in range(self._count))
        ]


def none_of(listed: Listed, why: str) -> Listed:
    """The same devices, of which none can be used now; those that could not before keep their reason."""
    usable, unusable = listed
    now = [Unusable(index=one["index"], kind=one["kind"], name=one["name"], why=why) for one in usable]
    return [], sorted([*unusable, *now], key=lambda one: one["index"])


def host_memory() -> tuple[int, int]:
    """(total, available) bytes; in a container, unit or job with a memory limit, those of the limit."""
    memory, group = psutil.virtual_memory(), control_group.memory()
    total, available = int(memory.total), int(memory.available)
    return (total, available) if group is None else (min(total, group.limit), min(available, group.left))


def load_average() -> float:
    """One-minute load average divided by the number of cores: 1 = all busy."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def core_names(cores: Sequence[int]) -> dict[int, str]:
    """Names by core; a core's second thread (SMT) says which it shares, as both together do little more than one."""
    name, first = cpu_name(), {core: before(core, cores)[:1] for core in cores}
    return {core: f"{name}, core {core}" + "".join(f" (shares core {i})" for i in first[core]) for core in cores}


def cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine() or "CPU"
