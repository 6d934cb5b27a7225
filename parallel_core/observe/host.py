"""Host information about a rank's process: resident memory, and how much of its device other processes used.

On Linux the numbers are from /proc; elsewhere unavailable ones are 0 (memory) or NaN (share of others).
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from parallel_core.observe.gpus import built_for_gpus, gpus, open_nvml

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_SHORT_S = 50 * _TICK_S
"""Over shorter times ticks say too little: a core and its processes are each counted to a tick or two, which would pass
for a tenth of the time."""


def rss() -> int:
    """Returns the resident bytes of this process now."""
    return _status("VmRSS")


def peak_rss() -> int:
    """Returns the largest number of resident bytes of this process so far (of a forked one, since its fork)."""
    return _status("VmHWM")


def interface_of(address: str) -> str:
    """Returns the name of the network interface with this address or host name; '' where there is none."""
    import psutil

    try:
        meant = {str(found[4][0]) for found in socket.getaddrinfo(address, None)} if address else set()
    except OSError:
        return ""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] in meant for one in addresses):
            return name
    return ""


def listen_at(address: str) -> socket.socket:
    """Returns a listening socket on a free port of this address or host name ('': all), IPv4 where a name has both.

    Raises OSError where the address is not one of this host.
    """
    found = socket.getaddrinfo(address or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, at = min(found, key=lambda one: one[0] != socket.AF_INET)
    return socket.create_server(at, family=family, backlog=1024)


def cuda_devices() -> list[str]:
    """Returns the GPUs that this process may use, each as in CUDA_VISIBLE_DEVICES; none, whatever that says, with a
    CPU-only build of PyTorch. Raises AmbiguousGpus."""
    nvml = open_nvml()
    return [gpu.name for gpu in gpus(nvml)] if nvml is not None or built_for_gpus() else []


class CpuOthers:
    """Measures the share (0..1) of one core's time that processes other than ours used.

    `pids` returns our processes that may run on that core (the ranks bound to it). Call `start` before the timed
    steps and `share` after them. The resolution is one clock tick (10 ms). Over less than _SHORT_S the share is instead
    that of the time for which our process, if there is one alone, was ready to run but another one had the core.
    """

    def __init__(self, core: int, pids: Callable[[], Iterable[int]]) -> None:
        self._core, self._pids = core, pids
        self.start()

    def start(self) -> None:
        """Measures from now on."""
        self._began, self._busy, self._ours = time.monotonic(), _busy(self._core), self._used()
        self._waited = self._waiting()

    def share(self) -> float:
        """Returns the share since `start`; NaN where the system does not report it."""
        lasted = time.monotonic() - self._began
        taken = self._waiting() - self._waited if lasted < _SHORT_S else math.nan
        if math.isnan(taken):
            taken = _busy(self._core) - self._busy - (self._used() - self._ours)
        return math.nan if math.isnan(taken) or lasted <= 0 else min(1.0, max(0.0, taken / lasted))

    def _used(self) -> float:
        return sum(cpu_seconds(pid) for pid in self._pids())

    def _waiting(self) -> float:
        """The seconds for which the main thread of our process waited for the core; NaN unless we have one alone."""
        pids = list(self._pids())
        return _waited(str(pids[0])) if len(pids) == 1 else math.nan


def waited() -> float:
    """The seconds for which this thread was ready to run but had to wait for a core; 0 where that is not available."""
    found = _waited("thread-self")
    return 0.0 if math.isnan(found) else found


def _waited(of: str) -> float:
    """As `waited` for the main thread of a process, or `thread-self`; NaN where that is not available. Source: the
    kernel's Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat."""
    try:
        return int(Path(f"/proc/{of}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return math.nan


def cpu_seconds(pid: int) -> float:
    """Returns the user and system seconds of a process with all its threads; 0 where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def _busy(core: int) -> float:
    """The seconds since boot for which a core was not idle. Time stolen by other virtual machines counts as busy."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return math.nan
    for line in lines:
        name, *ticks = line.split()
        if name == f"cpu{core}":
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, ticks[:8])
            return (user + nice + system + irq + softirq + steal) * _TICK_S
    return math.nan


def _status(name: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":")), 0)
