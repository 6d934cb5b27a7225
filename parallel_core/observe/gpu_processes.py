"""The processes that have a CUDA context on this process's GPU, as the driver's library (NVML) lists them."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from parallel_core.observe.gpus import AmbiguousGpus, gpus, open_nvml

_FIRST_NAMESPACE = 0xEFFFFFFC
"""Inode of the pid namespace that the host boots with (PROC_PID_INIT_INO in the kernel's linux/proc_ns.h)."""


def listed() -> frozenset[int] | None:
    """Returns the pids on the first GPU, or instance of one, that this process may use; it must have opened it.

    None where the driver says nothing, or does not list this process itself: in a container it lists no process, or
    all with the pids of the host.
    """
    if (nvml := open_nvml()) is None:
        return None
    try:
        first = next((gpu.handle for gpu in gpus(nvml)), None)
        found = nvml.nvmlDeviceGetComputeRunningProcesses(first) if first is not None else ()
    except (nvml.NVMLError, AmbiguousGpus):
        return None
    pids = frozenset(int(process.pid) for process in found)
    return pids if os.getpid() in pids else None


def others_in(pids: Collection[int] | None, ours: Collection[int]) -> int | None:
    """Returns how many of the listed `pids` are none of `ours`; None if that is not known: nothing was listed, or no
    other one in a container, where those of other containers may be hidden."""
    if pids is None:
        return None
    found = len(set(pids) - set(ours))
    return found if found or sees_all() else None


def sees_all() -> bool:
    """Whether this process is in the host's first pid namespace, in which every process of the host has a pid."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _FIRST_NAMESPACE
    except OSError:
        return False
