"""Collectives between ranks of one host, through memory that they share: for CPU ranks, in place of gloo's sockets.

Each rank has a slot of two halves. A message goes through them piece by piece: a rank copies its piece into one half,
says so, waits until the others have said it, and reads theirs; meanwhile the other half is free for the next piece.
All add in the order of ranks, so all get the same bits. Nothing runs in the background: a work is done when somebody
waits for it, in the order in which works were begun, which is the same on every rank of a group.

Waiting is a futex (man 2 futex) behind a short look, so ranks that share a core do not take turns at looking. Linux
alone has it: elsewhere, between hosts and on other devices `open_group` says None, and gloo or NCCL it is.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

SWITCH = "TRAINYARD_SHARED_MEMORY"
"""The environment variable that turns it off where it is 0, for all ranks of a run."""
HALF = 1 << 22
"""Bytes of a piece: it stays in a core's cache between the one who writes it and those who read."""
_HEAD, _LINE = 4096, 64
_LOOKS = 200
_SYSCALL = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
_WAIT, _WAKE, _ALL = 0, 1, 2**31 - 1
_TIMEOUT_S = 600.0
_POSTED, _READ = 0, 1

_made: Counter[tuple[int, ...]] = Counter()
"""Groups of the same ranks so far: members count alike, so they find each other's."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_SECOND = _Timespec(1, 0)


class _Counter:
    """A number in shared memory that grows, and that others can wait for."""

    def __init__(self, memory: mmap.mmap, offset: int, libc: ctypes.CDLL) -> None:
        self._value = ctypes.c_int32.from_buffer(memory, offset)
        self._at, self._libc = ctypes.c_void_p(ctypes.addressof(self._value)), libc

    def tell(self, value: int) -> None:
        self._value.value = value
        self._libc.syscall(_SYSCALL, self._at, _WAKE, _ALL, None, None, 0)

    def reach(self, value: int) -> None:
        """Raises TimeoutError after ten minutes."""
        word = self._value
        for _ in range(_LOOKS):
            if _reached(word.value, value):
                return
        until = time.monotonic() + _TIMEOUT_S
        while not _reached(seen := word.value, value):
            self._libc.syscall(_SYSCALL, self._at, _WAIT, seen, ctypes.byref(_SECOND), None, 0)
            if time.monotonic() > until:
                raise TimeoutError(f"a rank of this host has not come for {_TIMEOUT_S:.0f} s")


def _reached(seen: int, value: int) -> bool:
    """Counted in 32 bits, which a long run goes through more than once."""
    return (seen - value) & 0xFFFFFFFF < 0x80000000


class HostWork:
    """A collective that was begun; as torch's Work it can be waited for."""

    def __init__(self, group: HostGroup, act: Callable[[], None]) -> None:
        self._group, self._act, self.done = group, act, False

    def run(self) -> None:
        self._act()
        self.done = True

    def wait(self) -> bool:
        self._group.finish(self)
        return True


class HostGroup:
    """`rank` of `size` ranks that share `memory`."""

    def __init__(self, memory: mmap.mmap, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        libc = ctypes.CDLL(None, use_errno=True)
        self._counters = [[_Counter(memory, _LINE * (2 * r + k), libc) for k in (0, 1)] for r in range(size)]
        whole = torch.frombuffer(memory, dtype=torch.uint8, offset=_HEAD)
        self._slots = whole.view(2, size, HALF)
        self._turn = 0
        self._begun: deque[HostWork] = deque()

    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> HostWork:
        """Of a contiguous tensor, in place: SUM or MAX."""
        combine = torch.maximum if op == dist.ReduceOp.MAX else torch.add
        return self._begin(lambda: self._all_reduce(tensor.view(-1), combine))

    def all_gather(self, out: Tensor, mine: Tensor) -> HostWork:
        """`out` (size x n) of everybody's `mine` (n)."""
        return self._begin(lambda: self._all_gather(out.view(self.size, -1), mine.view(-1)))

    def reduce_scatter(self, out: Tensor, tensor: Tensor) -> HostWork:
        """`out` (n): this rank's part of the sum of `tensor` (size x n)."""
        return self._begin(lambda: self._reduce_scatter(out.view(-1), tensor.view(self.size, -1)))

    def finish(self, work: HostWork) -> None:
        """Does everything that was begun up to `work`."""
        with torch.no_grad(), torch._C._DisableTorchDispatch():  # the slots are nobody's activations
            while not work.done:
                self._begun.popleft().run()

    def _begin(self, act: Callable[[], None]) -> HostWork:
        work = HostWork(self, act)
        self._begun.append(work)
        return work

    def _all_reduce(self, flat: Tensor, combine: Any) -> None:
        for part in flat.split(HALF // flat.element_size()):
            slots = self._exchange(part, part.dtype, (len(part),))
            combine(slots[0], slots[1], out=part)
            for other in slots[2:]:
                combine(part, other, out=part)
            self._let_go()

    def _all_gather(self, out: Tensor, mine: Tensor) -> None:
        pieces = zip(out.split(HALF // out.element_size(), 1), mine.split(HALF // mine.element_size()), strict=True)
        for rows, part in pieces:
            rows.copy_(self._exchange(part, part.dtype, (len(part),)))
            self._let_go()

    def _reduce_scatter(self, out: Tensor, rows: Tensor) -> None:
        most = HALF // out.element_size() // self.size
        for part, given in zip(out.split(most), rows.split(most, 1), strict=True):
            slots = self._exchange(given, part.dtype, (self.size, len(part)))[:, self.rank]
            torch.add(slots[0], slots[1], out=part)
            for other in slots[2:]:
                part.add_(other)
            self._let_go()

    def _exchange(self, mine: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """Everybody's piece, in the order of ranks; valid until `_let_go`."""
        self._turn += 1
        for counter in self._others(_READ):  # this half, two pieces ago
            counter.reach(self._turn - 2)
        slots = self._slots[self._turn & 1, :, : mine.nbytes].view(dtype).view(self.size, *shape)
        slots[self.rank].copy_(mine)
        self._counters[self.rank][_POSTED].tell(self._turn)
        for counter in self._others(_POSTED):
            counter.reach(self._turn)
        return slots

    def _let_go(self) -> None:
        self._counters[self.rank][_READ].tell(self._turn)

    def _others(self, which: int) -> Iterator[_Counter]:
        return (own[which] for r, own in enumerate(self._counters) if r != self.rank)


def open_group(ranks: Sequence[int], rank: int, store: dist.Store) -> HostGroup | None:
    """Of the global `ranks`, all of which ask for it; None on each of them where not all can share memory."""
    if os.environ.get(SWITCH) == "0":
        return None
    turn = _made[tuple(ranks)]
    _made[tuple(ranks)] += 1
    key = f"host-group/{'-'.join(map(str, ranks))}/{turn}"
    length = _HEAD + 2 * len(ranks) * HALF
    made = None
    if rank == ranks[0]:
        made = _create(length)
        store.set(key, f"{_host()} /proc/{os.getpid()}/fd/{made}" if made is not None else "none")
    memory = _open(store.get(key).decode(), length)
    store.set(f"{key}/{rank}", "shared" if memory else "apart")
    alike = [store.get(f"{key}/{other}") for other in ranks]  # read by all before the file is closed
    if made is not None:
        os.close(made)
    if memory is None or b"apart" in alike:
        return None
    return HostGroup(memory, list(ranks).index(rank), len(ranks))


def _create(length: int) -> int | None:
    """A file in memory that goes when the last of its users does."""
    if _SYSCALL is None or not hasattr(os, "memfd_create"):
        return None
    made = os.memfd_create("trainyard-group", os.MFD_CLOEXEC)
    os.ftruncate(made, length)
    return made


def _open(told: str, length: int) -> mmap.mmap | None:
    host, _, path = told.partition(" ")
    if _SYSCALL is None or host != _host():
        return None
    with suppress(OSError):
        file = os.open(path, os.O_RDWR)
        try:
            return mmap.mmap(file, length)
        finally:
            os.close(file)
    return None


def _host() -> str:
    """Of this boot of this machine."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return "unknown"
