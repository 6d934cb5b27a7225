"""The devices of this host: the GPUs that this process may use (by NVML), else one device for each CPU core."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from parallel_core.observe.cores import before, cores
from parallel_core.observe.gpus import gpus, model, open_nvml
from workers.contract import Device


class Devices:
    """Reads the devices at each call of `read`; the choice between CUDA and CPU is made once."""

    def __init__(self, cpu_devices: int | None = None, gpu_shares: int = 1) -> None:
        """`gpu_shares`: the number of devices that each GPU counts as; they are numbered round the GPUs, as in
        `launch_rank`."""
        nvml = open_nvml()
        self._nvml, self._shares = nvml if nvml is not None and gpus(nvml) else None, gpu_shares
        self._cores = cores()
        self._count = cpu_devices or len(self._cores)
        self._names = core_names(self._cores)
        psutil.cpu_percent(percpu=True)  # each call returns the load since the one before: make the first one now

    @property
    def kind(self) -> str:
        return "cuda" if self._nvml else "cpu"

    def read(self) -> list[Device]:
        return self._read_cuda(self._nvml) if self._nvml else self._read_cpu()

    def _read_cuda(self, nvml: Any) -> list[Device]:
        found = [self._gpu(nvml, index, gpu.handle) for index, gpu in enumerate(gpus(nvml))]
        shares = range(self._shares)
        return [self._share(gpu, share * len(found) + i, share) for share in shares for i, gpu in enumerate(found)]

    def _gpu(self, nvml: Any, index: int, handle: Any) -> Device:
        load = 0.0
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            total, used = int(memory.total), int(memory.used)
        except nvml.NVMLError:  # a GPU that uses the processor's memory
            total, available = host_memory()
            used = total - available
        with contextlib.suppress(nvml.NVMLError):  # not every device (MIG, some drivers) reports its load
            load = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        return Device(
            index=index,
            kind="cuda",
            name=model(nvml, handle),
            memory_total=total,
            memory_used=used,
            load=load,
        )

    def _share(self, gpu: Device, index: int, share: int) -> Device:
        if self._shares == 1:
            return gpu
        total, used = gpu["memory_total"] // self._shares, gpu["memory_used"] // self._shares
        name = f"{gpu['name']}, share {share + 1} of {self._shares}"
        return {**gpu, "index": index, "name": name, "memory_total": total, "memory_used": used}

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


def host_memory() -> tuple[int, int]:
    """(total, available) bytes; in a container with a memory limit, those of the limit."""
    memory = psutil.virtual_memory()
    total, available = int(memory.total), int(memory.available)
    folder = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):
        limit = int((folder / "memory.max").read_text())  # "max" = none: ValueError
        used = int((folder / "memory.current").read_text())
        if limit < total:
            return limit, min(available, max(0, limit - used))
    return total, available


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
