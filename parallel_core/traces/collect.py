"""The events of one rank's trace as columns: what a later look needs of each, some 40 bytes an event."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

LONGEST_NAME = 200
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
HOST = {"cpu_op", "user_annotation"}
LAUNCH = {"cuda_runtime", "cuda_driver", "hip_runtime"}

EVENT = np.dtype([("name", "<i4"), ("thread", "<i4"), ("start", "<i8"), ("end", "<i8"), ("link", "<i8")])
"""`name` and `thread` are indices; times are ns. `link` is the correlation of a kernel with its launch, -1 without;
of host events it is OPERATION for those that do something themselves, RECORDED for those of them that autograd
records, to go backward through them."""
OPERATION, RECORDED = 1, 2


class Columns:
    """Events of one group, appended one by one."""

    def __init__(self) -> None:
        self._small, self._large = array("i"), array("q")

    def add(self, name: int, thread: int, start: int, end: int, link: int) -> None:
        self._small.extend((name, thread))
        self._large.extend((start, end, link))

    def table(self) -> NDArray[np.void]:
        """EVENT rows in order of their start; of two that start together the longer first."""
        small = np.frombuffer(self._small, np.int32).reshape(-1, 2)
        large = np.frombuffer(self._large, np.int64).reshape(-1, 3)
        out = np.empty(len(small), EVENT)
        out["name"], out["thread"] = small.T
        out["start"], out["end"], out["link"] = large.T
        return out[np.lexsort((-out["end"], out["start"]))]


class Collected:
    """What a trace holds: `host` operations and annotations, `device` kernels and copies, `launches` of kernels."""

    def __init__(self, events: Iterable[dict[str, Any]]) -> None:
        self.names: list[str] = []
        self.odd = 0
        """Events whose times make no sense."""
        self._name_of: dict[str, int] = {}
        self._thread_of: dict[tuple[Any, Any], int] = {}
        self._groups = {"host": Columns(), "device": Columns(), "launch": Columns()}
        for event in events:
            self._take(event)
        self.host, self.device, self.launches = (columns.table() for columns in self._groups.values())
        del self._groups

    def _take(self, event: dict[str, Any]) -> None:
        kind = event.get("cat")
        group = "host" if kind in HOST else "device" if kind in DEVICE else "launch" if kind in LAUNCH else None
        if group is None or event.get("ph") != "X":
            return
        start, length, args = event.get("ts", ""), event.get("dur", 0), event.get("args")
        if not _is_time(start) or not _is_time(length) or length < 0:
            self.odd += 1
            return
        link = _link(str(kind), args if isinstance(args, dict) else {})
        begin = round(start * 1000)
        self._groups[group].add(
            self._name(_called(event, args)),
            self._thread((event.get("pid"), event.get("tid"))),
            begin,
            begin + round(length * 1000),
            link if isinstance(link, int) and 0 <= link < 2**62 else -1,
        )

    def _name(self, name: str) -> int:
        known = self._name_of.setdefault(name, len(self.names))
        if known == len(self.names):
            self.names.append(name)
        return known

    def _thread(self, key: tuple[Any, Any]) -> int:
        return self._thread_of.setdefault((str(key[0]), str(key[1])), len(self._thread_of))


def _called(event: Mapping[str, Any], args: Any) -> str:
    """Its name. One kernel of NCCL sends and receives; beside it Kineto writes for which of the two it was launched."""
    name = str(event.get("name", ""))[:LONGEST_NAME]
    way = args.get("Collective name") if isinstance(args, dict) and "SendRecv" in name else None
    return f"{name} {way}" if way in ("send", "recv") else name


def _link(kind: str, args: Mapping[str, Any]) -> Any:
    """What EVENT keeps of it. Autograd numbers what it records; its own nodes name the thread that went forward."""
    if kind not in HOST:
        return args.get("correlation", -1)
    if kind != "cpu_op":
        return -1
    return RECORDED if "Sequence number" in args and not args.get("Fwd thread id") else OPERATION


def _is_time(value: Any) -> bool:
    """Microseconds that fit into 63 bits of nanoseconds."""
    return isinstance(value, int | float) and abs(value) < 9e15
