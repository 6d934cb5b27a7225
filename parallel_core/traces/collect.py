"""Stores the events of one rank's trace as columns with only what later analysis needs, about 40 bytes per event."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_core.untrusted import printable

LONGEST_NAME, LONGEST_WAY = 200, 40
COPIES = {"gpu_memcpy", "gpu_memset"}
DEVICE = {"kernel", *COPIES}
HOST = {"cpu_op", "user_annotation"}
LAUNCH = {"cuda_runtime", "cuda_driver", "hip_runtime"}
_GROUPS = {"host": HOST, "device": DEVICE, "launch": LAUNCH}
KEPT = HOST | DEVICE | LAUNCH
"""Categories of events that are kept; calls of Python functions and arrows between events, for example, are not."""
LATEST = 9e15
"""Latest time in microseconds: as nanoseconds it fits into 63 bits."""
_SENDS_AND_RECEIVES = "SendRecv"
_BY_ARGUMENTS = "nccl"
"""Part of the names of kernels whose arguments say what they do, and in which process group."""
LONGEST_GROUP = 200

EVENT = np.dtype([("name", "<i4"), ("thread", "<i4"), ("start", "<i8"), ("end", "<i8"), ("link", "<i8")])
"""`name` and `thread` are indices; times are ns. `link` of kernels and launches is the correlation id of the two, -1
without; of host events it is OPERATION for operators, RECORDED for operators that autograd records for a backward, and
-1 for annotations."""
OPERATION, RECORDED = 1, 2


class Columns:
    """The events of one group, appended one by one."""

    def __init__(self) -> None:
        self._small, self._large = array("i"), array("q")

    def add(self, name: int, thread: int, start: int, end: int, link: int) -> None:
        """Adds an event; the numbers are the fields of EVENT, times in ns."""
        self._small.extend((name, thread))
        self._large.extend((start, end, link))

    def table(self) -> NDArray[np.void]:
        """Returns EVENT rows sorted by start; of events that start together, the longest first."""
        small = np.frombuffer(self._small, np.int32).reshape(-1, 2)
        large = np.frombuffer(self._large, np.int64).reshape(-1, 3)
        out = np.empty(len(small), EVENT)
        out["name"], out["thread"] = small.T
        out["start"], out["end"], out["link"] = large.T
        return out[np.lexsort((-out["end"], out["start"]))]


class Collected:
    """The contents of a trace: `host` operations and annotations, `device` kernels and copies, kernel `launches`."""

    def __init__(self, events: Iterable[dict[str, Any]]) -> None:
        self.names: list[str] = []
        """Name of each index; several of the same where process groups differ."""
        self.groups: list[str] = []
        """By name index: the process group of a kernel of NCCL, '' where nothing says it."""
        self.odd = 0
        """Number of events left out because of invalid times."""
        self._name_of: dict[tuple[str, str], int] = {}
        self._plain: dict[str, int] = {}
        """Event name -> index, for names that do not depend on the event's arguments."""
        self._threads: dict[tuple[str, str], int] = {}
        self._thread_of: dict[tuple[Any, Any], int] = {}
        self._copies: set[int] = set()
        groups = {"host": Columns(), "device": Columns(), "launch": Columns()}
        self._take(events, groups)
        self.host, self.device, self.launches = (columns.table() for columns in groups.values())
        self.copies = np.isin(np.arange(len(self.names)), list(self._copies))
        """By name index: whether it is a copy (or a fill) of memory, not a kernel."""

    def _take(self, events: Iterable[dict[str, Any]], groups: Mapping[str, Columns]) -> None:
        """Reads all events in one loop that makes few calls, since a long trace has millions of events."""
        adding = {kind: groups[group].add for group, kinds in _GROUPS.items() for kind in kinds}
        names_of, threads_of = self._plain, self._thread_of
        for event in events:
            kind = event.get("cat")
            if not isinstance(kind, str) or (add := adding.get(kind)) is None or event.get("ph") != "X":
                continue
            start, length, args = event.get("ts", ""), event.get("dur", 0), event.get("args")
            try:
                if not (-LATEST < start < LATEST and 0 <= length < LATEST and start + length < LATEST):
                    raise TypeError
            except TypeError:
                self.odd += 1
                continue
            name, thread = event.get("name", ""), (event.get("pid"), event.get("tid"))
            try:
                named, ran = names_of[name], threads_of[thread]
            except (KeyError, TypeError):
                named, ran = self._name(event, args), self._thread(thread)
            begin = round(start * 1000)
            add(named, ran, begin, begin + round(length * 1000), _link(kind, args if isinstance(args, dict) else {}))

    def _name(self, event: Mapping[str, Any], args: Any) -> int:
        """Returns the index of the event's name."""
        called, group, name = _event_name(event, args), _group(event, args), event.get("name", "")
        known = self._name_of.setdefault((called, group), len(self.names))
        if known == len(self.names):
            self.names.append(called)
            self.groups.append(group)
        if event.get("cat") in COPIES:
            self._copies.add(known)
        if isinstance(name, str) and _BY_ARGUMENTS not in name:
            self._plain[name] = known
        return known

    def _thread(self, key: tuple[Any, Any]) -> int:
        spelt = (str(key[0]), str(key[1]))
        known = self._threads.setdefault(spelt, len(self._threads))
        if all(isinstance(one, str | int | None) for one in key):
            self._thread_of[key] = known
        return known


def _event_name(event: Mapping[str, Any], args: Any) -> str:
    """The event's name. NCCL has one kernel to send, to receive, and for the collectives made of both; Kineto records
    separately which of them it was."""
    name = printable(str(event.get("name", "")))[:LONGEST_NAME]
    way = args.get("Collective name") if isinstance(args, dict) and _SENDS_AND_RECEIVES in name else None
    return f"{name} {printable(way[:LONGEST_WAY])}" if isinstance(way, str) and way else name


def _group(event: Mapping[str, Any], args: Any) -> str:
    """The process group of a kernel: its name and its ranks, since groups of one name may exist on other ranks."""
    if event.get("cat") != "kernel" or not isinstance(args, dict) or not args.get("Process Group Name"):
        return ""
    said = f"{args['Process Group Name']} {args.get('Process Group Ranks', '')}"
    return printable(said.strip())[:LONGEST_GROUP]


def _link(kind: str, args: Mapping[str, Any]) -> int:
    """Returns `link` of EVENT. Autograd gives a sequence number to what it records; its backward nodes also have the id
    of the forward thread."""
    if kind == "cpu_op":
        return RECORDED if "Sequence number" in args and not args.get("Fwd thread id") else OPERATION
    link = -1 if kind in HOST else args.get("correlation", -1)
    return link if isinstance(link, int) and 0 <= link < 2**62 else -1
