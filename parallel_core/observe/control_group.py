"""What the control group (cgroup) of this process allows, in memory and in CPU time: the limits of a container, a
systemd unit or a batch job.

Version 2 and version 1 (docs.kernel.org, admin-guide/cgroup-v2 and admin-guide/cgroup-v1). The groups above count, too:
a batch system limits the job, not the group of each of its steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SYSTEM = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
"""Lines `number:controllers:/path of our group`; version 2 has one line, number 0 without controllers."""


class Room(NamedTuple):
    """Memory that a group may use, in bytes."""

    limit: int
    left: int


def memory(system: Path = SYSTEM, membership: Path = MEMBERSHIP) -> Room | None:
    """Returns the least limit on memory and the least that is left of one; None where there is none.

    Files in the page cache count as used there; what was not read lately is given up for new memory, and is left.
    """
    rooms = []
    for folder in _groups("memory", system, membership):
        limit = _number(folder, "memory.max", "memory.limit_in_bytes")
        used = _number(folder, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None:
            cached = _entry(folder / "memory.stat", "total_inactive_file", "inactive_file") or 0
            rooms.append(Room(limit, max(0, limit - max(0, used - cached))))
    return Room(min(room.limit for room in rooms), min(room.left for room in rooms)) if rooms else None


def processors(system: Path = SYSTEM, membership: Path = MEMBERSHIP) -> float | None:
    """Returns the CPU time per second that the group may use, in cores; None where that has no limit."""
    shares = []
    for folder in _groups("cpu", system, membership):
        told = (
            _read(folder / "cpu.max") or f"{_read(folder / 'cpu.cfs_quota_us')} {_read(folder / 'cpu.cfs_period_us')}"
        )
        quota, period = [*told.split(), "", ""][:2]
        if quota.isdigit() and period.isdigit():  # "max" or -1 without a limit
            shares.append(int(quota) / int(period))
    return min(shares, default=None)


def oom_kills(system: Path = SYSTEM, membership: Path = MEMBERSHIP) -> int | None:
    """Returns how many processes of the group the kernel has killed for want of memory; None where it does not say."""
    for folder in _groups("memory", system, membership):
        for name in ("memory.events", "memory.oom_control"):
            if (killed := _entry(folder / name, "oom_kill")) is not None:
                return killed
    return None


def _groups(controller: str, system: Path, membership: Path) -> Iterator[Path]:
    """Yields the folders of our group and of those above it. In a container the mount may begin at our own group, by
    a path that is the host's, so that only the last one exists."""
    for line in _read(membership).splitlines():
        number, names, own = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not names:
            top = system
        elif controller in names.split(","):
            top = system / controller
        else:
            continue
        path = Path(own.strip("/"))
        path = Path() if ".." in path.parts else path  # of a namespace that does not show our group
        yield from (top / part for part in (path, *path.parents) if (top / part).is_dir())


def _number(folder: Path, *names: str) -> int | None:
    told = (_read(folder / name).strip() for name in names)
    return next((int(text) for text in told if text.isdigit()), None)


def _entry(path: Path, *keys: str) -> int | None:
    """Returns the value of the first of `keys` in a file of lines `key value`."""
    found = dict(line.split(" ", 1) for line in _read(path).splitlines() if " " in line)
    return next((int(found[key]) for key in keys if key in found), None)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
