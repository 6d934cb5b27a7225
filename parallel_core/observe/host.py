"""What the host says about a rank's process: resident memory, and how much of its device others were using.

Linux reads /proc; elsewhere the numbers that cannot be had are 0 (memory) or NaN (share of others).
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from parallel_core.observe.gpus import gpus, open_nvml

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def rss() -> int:
    """Resident bytes of this process now."""
    return _status("VmRSS")


def peak_rss() -> int:
    """The most bytes this process was ever resident with (a forked one counts from its fork on)."""
    return _status("VmHWM")


def interface_of(address: str) -> str:
    """Name of the network interface that has this address or host name; '' where none has it."""
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
    """A listening socket on a free port of this address or host name, IPv4 where a name has both; '' is everywhere.

    Raises OSError where it is not this host's.
    """
    found = socket.getaddrinfo(address or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, at = min(found, key=lambda one: one[0] != socket.AF_INET)
    return socket.create_server(at, family=family, backlog=1024)


def cuda_devices() -> list[str]:
    """What CUDA_VISIBLE_DEVICES would call each GPU that this process may use: those that it was given, else all."""
    return [gpu.name for gpu in gpus(open_nvml())]


class CpuOthers:
    """The share (0..1) of one core's time that processes other than ours used.

    `pids` names our processes that may run on that core (the ranks bound to it). Call `start` before the timed steps
    and `share` after them; the resolution is one clock tick (10 ms), so the time between should be seconds.
    """

    def __init__(self, core: int, pids: Callable[[], Iterable[int]]) -> None:
        self._core, self._pids = core, pids
        self.start()

    def start(self) -> None:
        self._began, self._busy, self._ours = time.monotonic(), _busy(self._core), self._used()

    def share(self) -> float:
        """Since `start`; NaN where the system does not tell."""
        lasted = time.monotonic() - self._began
        busy, ours = _busy(self._core) - self._busy, self._used() - self._ours
        return math.nan if math.isnan(busy) or lasted <= 0 else min(1.0, max(0.0, (busy - ours) / lasted))

    def _used(self) -> float:
        return sum(cpu_seconds(pid) for pid in self._pids())


def waited() -> float:
    """Seconds that this thread was ready to run and had no core, because others ran on it; 0 where nobody tells."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def cpu_seconds(pid: int) -> float:
    """User and system seconds of a process and all its threads; 0 where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def _busy(core: int) -> float:
    """Seconds that a core was not idle, since boot. Time stolen by other guests of the machine counts as busy."""
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
