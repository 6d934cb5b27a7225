"""The CPU cores that this process may use, in the order in which they become devices.

A core with two hardware threads (SMT) appears as two cores to the system, but both together do little more than one. So
the first threads of all cores come before any second one, and on a processor with two kinds of cores the fast ones
before the slow ones: ranks share a core, or run on an efficiency core, only where a run has more ranks than there are
others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from parallel_core.observe import control_group

SYSTEM = Path("/sys/devices/system/cpu")
"""Linux's CPU topology (docs.kernel.org, admin-guide/cputopology); a virtual machine may not show shared cores."""
_SPEEDS = ("cpu_capacity", "cpufreq/cpuinfo_max_freq")


def cores() -> list[int]:
    """Returns the cores that this process may use, in device order: no more than its control group's CPU time fills,
    at least one. On more of them than that, ranks would be halted in turn until the next period begins."""
    usable = ordered(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))
    share = control_group.processors()
    return usable if share is None else usable[: max(1, int(share))]


def core_of(device: int) -> int:
    """Returns the core of CPU device `device`, among those this process may use."""
    usable = cores()
    return usable[device % len(usable)]


def ordered(usable: Iterable[int], system: Path = SYSTEM) -> list[int]:
    """Sorts cores: first threads before second ones, then fast cores before slow ones, then by number."""
    every = set(usable)
    return sorted(every, key=lambda core: (len(before(core, every, system)), -_speed(core, system), core))


def before(core: int, usable: Iterable[int], system: Path = SYSTEM) -> list[int]:
    """Returns the `usable` threads of the same core with lower numbers; [] where the topology is unknown."""
    told = _read(system / f"cpu{core}/topology/thread_siblings_list")
    return sorted(other for other in _listed(told) & set(usable) if other < core)


def _listed(text: str) -> set[int]:
    """Parses "0-2,8" to {0, 1, 2, 8}."""
    ends = [part.partition("-") for part in text.split(",") if part]
    return {core for first, _, last in ends for core in range(int(first), int(last or first) + 1)}


def _speed(core: int, system: Path) -> int:
    """Returns the core's speed by the first of _SPEEDS that is available; 0, the same for all cores, where none is."""
    return next((int(told) for name in _SPEEDS if (told := _read(system / f"cpu{core}" / name))), 0)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
