"""The cores that this process may use, in the order in which they become devices.

A core with two hardware threads (SMT) is two to the system, and both at once do little more than one. So the first
threads of all cores come before any second one, and of a processor with two kinds of cores the fast ones before the
slow ones: ranks share a core, or have an efficient one, only where a run has more of them than there are others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

SYSTEM = Path("/sys/devices/system/cpu")
"""Linux's own account of them (docs.kernel.org, admin-guide/cputopology); a guest may be told that each is whole."""
_SPEEDS = ("cpu_capacity", "cpufreq/cpuinfo_max_freq")


def cores() -> list[int]:
    """Those that this process may use, in the order of the devices that they are."""
    return ordered(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def core_of(device: int) -> int:
    """The core that CPU device `device` stands for, among those this process may use."""
    usable = cores()
    return usable[device % len(usable)]


def ordered(usable: Iterable[int], system: Path = SYSTEM) -> list[int]:
    """First threads before second ones, then fast cores before slow ones, then by number."""
    every = set(usable)
    return sorted(every, key=lambda core: (len(before(core, every, system)), -_speed(core, system), core))


def before(core: int, usable: Iterable[int], system: Path = SYSTEM) -> list[int]:
    """The `usable` threads of the same core with lower numbers; [] where the system says nothing of it."""
    told = _read(system / f"cpu{core}/topology/thread_siblings_list")
    return sorted(other for other in _listed(told) & set(usable) if other < core)


def _listed(text: str) -> set[int]:
    """Of "0-2,8" {0, 1, 2, 8}."""
    ends = [part.partition("-") for part in text.split(",") if part]
    return {core for first, _, last in ends for core in range(int(first), int(last or first) + 1)}


def _speed(core: int, system: Path) -> int:
    """By whichever of _SPEEDS the system tells; all are alike where it tells none."""
    return next((int(told) for name in _SPEEDS if (told := _read(system / f"cpu{core}" / name))), 0)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
