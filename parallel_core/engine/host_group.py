"""Collectives between CPU ranks of one host through shared memory, in place of gloo's sockets.

Each rank has a slot of two halves. A message is exchanged in pieces: a rank copies its piece into one half, posts it,
waits until the others have posted theirs, and reads them; the other half can meanwhile take the next piece. All ranks
add in rank order, so all get the same bits; 16-bit values of more than two ranks are added in fp32 and rounded once.
Nothing runs in the background: a collective is executed when it is waited for, in the order in which collectives were
started, which must be the same on every rank of a group.
"""

from __future__ import annotations

import collections
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from parallel_core.engine import host_memory
from parallel_core.engine.host_memory import Counter
from parallel_core.engine.host_peers import NO_PEERS, Peers

HALF = 1 << 22
"""Largest piece in bytes: half a slot."""
_LINE, _PAGE = 64, 4096
_POSTED, _READ = 0, 1

_made: collections.Counter[tuple[int, ...]] = collections.Counter()
"""Ranks -> groups of them made so far: all members count alike, so they use the same key in the store."""


class HostWork:
    """A collective that was started; can be waited for like torch's Work."""

    def __init__(self, group: HostGroup, act: Callable[[], None]) -> None:
        self._group, self._act, self.done = group, act, False
        self._error: Exception | None = None

    def run(self) -> None:
        """Executes the collective now; called by `HostGroup.finish` in the order in which collectives were started."""
        self.done = True
        try:
            self._act()
        except Exception as error:
            self._error = error
            raise

    def wait(self) -> bool:
        """Executes the collective if it is not done. Raises what it raised, however often it is waited for."""
        self._group.finish(self)
        if self._error is not None:
            raise self._error
        return True


class _Piece(NamedTuple):
    """Views of one half for messages of one shape: `all` ranks' pieces, this rank's `own`, and `parts`: of each rank's
    piece, what this rank has to combine."""

    all: Tensor
    own: Tensor
    parts: tuple[Tensor, ...]


class HostGroup:
    """Rank `rank` of `size` ranks that share `memory`; `peers` watches the processes of the others."""

    def __init__(self, memory: mmap.mmap, rank: int, size: int, peers: Peers = NO_PEERS) -> None:
        self.rank, self.size, self._peers = rank, size, peers
        self._counters = [[Counter(memory, _LINE * (2 * r + k)) for k in (0, 1)] for r in range(size)]
        whole = torch.frombuffer(memory, dtype=torch.uint8, offset=_head(size))
        self._slots = whole.view(2, size, HALF)
        self._pieces: dict[tuple[int, torch.dtype, tuple[int, ...]], _Piece] = {}
        """Cached views: right after a layer's computation, making them takes longer than a small message."""
        self._turn = 0
        self._begun: deque[HostWork] = deque()

    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> HostWork:
        """Starts an in-place all-reduce (SUM or MAX) of a contiguous tensor. Its values are read when the collective is
        waited for."""
        combine, flat = torch.maximum if op == dist.ReduceOp.MAX else torch.add, tensor.view(-1)
        return self._begin(lambda: self._all_reduce(flat, combine))

    def all_gather(self, out: Tensor, mine: Tensor) -> HostWork:
        """Starts gathering every rank's `mine` [n] into `out` [size x n]."""
        rows, flat = out.view(self.size, mine.numel()), mine.view(-1)
        return self._begin(lambda: self._all_gather(rows, flat))

    def reduce_scatter(self, out: Tensor, tensor: Tensor) -> HostWork:
        """Starts summing `tensor` [size x n] over the ranks; `out` [n] receives this rank's part."""
        flat, rows = out.view(-1), tensor.view(self.size, out.numel())
        return self._begin(lambda: self._reduce_scatter(flat, rows))

    def finish(self, work: HostWork) -> None:
        """Executes everything that was started, up to and including `work`."""
        with torch.no_grad(), torch._C._DisableTorchDispatch():  # the memory meter must not count the slots
            while not work.done:
                self._begun.popleft().run()

    def _begin(self, act: Callable[[], None]) -> HostWork:
        work = HostWork(self, act)
        self._begun.append(work)
        return work

    def _all_reduce(self, flat: Tensor, combine: Any) -> None:
        for (part,) in _split(HALF // flat.itemsize, flat):
            _combined(self._exchange(part).parts, part, combine)
            self._release()

    def _all_gather(self, out: Tensor, mine: Tensor) -> None:
        for rows, part in _split(HALF // out.itemsize, out, mine):
            rows.copy_(self._exchange(part).all)
            self._release()

    def _reduce_scatter(self, out: Tensor, rows: Tensor) -> None:
        for part, given in _split(HALF // out.itemsize // self.size, out, rows):
            _combined(self._exchange(given).parts, part, torch.add)
            self._release()

    def _exchange(self, mine: Tensor) -> _Piece:
        """Posts this rank's piece and returns every rank's, in rank order; valid until `_release`. Of a two-dimensional
        piece each rank combines its own row."""
        self._turn += 1
        for counter in self._others(_READ):  # until they have read this half's last piece, two pieces ago
            counter.reach(self._turn - 2, self._peers.look)
        piece = self._piece(mine)
        piece.own.copy_(mine)
        self._counters[self.rank][_POSTED].tell(self._turn)
        for counter in self._others(_POSTED):
            counter.reach(self._turn, self._peers.look)
        return piece

    def _piece(self, mine: Tensor) -> _Piece:
        key = self._turn & 1, mine.dtype, mine.shape
        found = self._pieces.get(key)
        if found is None:
            slots = self._slots[key[0], :, : mine.nbytes].view(mine.dtype).view(self.size, *mine.shape)
            parts = slots if mine.dim() == 1 else slots[:, self.rank]
            found = self._pieces[key] = _Piece(slots, slots[self.rank], parts.unbind())
        return found

    def _release(self) -> None:
        self._counters[self.rank][_READ].tell(self._turn)

    def _others(self, which: int) -> Iterator[Counter]:
        return (own[which] for r, own in enumerate(self._counters) if r != self.rank)


def _split(most: int, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Cuts all of `tensors` alike into pieces of at most `most` columns."""
    if tensors[0].shape[-1] <= most:
        return (tensors,)
    return zip(*(tensor.split(most, -1) for tensor in tensors), strict=True)


def _combined(parts: Sequence[Tensor], out: Tensor, combine: Any) -> None:
    """Writes to `out` [n] the combination of the ranks' parts [n each], in rank order."""
    narrow = len(parts) > 2 and out.is_floating_point() and out.itemsize < 4
    total = torch.empty_like(out, dtype=torch.float32) if narrow else out
    combine(parts[0].to(total.dtype) if narrow else parts[0], parts[1], out=total)
    for other in parts[2:]:
        combine(total, other, out=total)
    if narrow:
        out.copy_(total)


class Shared(NamedTuple):
    """Memory shared by some ranks, and the processes of the other ranks."""

    memory: mmap.mmap
    peers: Peers


def open_group(ranks: Sequence[int], rank: int, store: dist.Store) -> HostGroup | None:
    """Returns the group of the global `ranks`, all of which must call it; None on all of them where not all can share
    memory."""
    shared = share(new_key(ranks), ranks, rank, store, length_of(len(ranks)))
    return HostGroup(shared.memory, list(ranks).index(rank), len(ranks), shared.peers) if shared else None


def length_of(size: int) -> int:
    """Bytes of memory that a group of `size` ranks shares: their counters, then their slots."""
    return _head(size) + 2 * size * HALF


def _head(size: int) -> int:
    """Bytes of the counters, two per rank, in whole pages."""
    return -(-2 * size * _LINE // _PAGE) * _PAGE


def new_key(ranks: Sequence[int]) -> str:
    """Returns a store key that only `ranks` use, and only once."""
    turn = _made[tuple(ranks)]
    _made[tuple(ranks)] += 1
    return f"host-memory/{'-'.join(map(str, ranks))}/{turn}"


def share(key: str, ranks: Sequence[int], rank: int, store: dist.Store, length: int) -> Shared | None:
    """Returns memory that all of `ranks` share; None on all of them where any cannot open it. `key`: from `new_key`."""
    made = host_memory.create(length) if rank == ranks[0] else None
    if rank == ranks[0]:
        store.set(key, host_memory.address(made))
    memory = host_memory.open_file(store.get(key).decode(), length)
    store.set(f"{key}/{rank}", str(os.getpid()) if memory else "apart")
    told = {other: store.get(f"{key}/{other}").decode() for other in ranks}  # all have opened it before it is closed
    if made is not None:
        os.close(made)
    if memory is None or "apart" in told.values():
        return None
    return Shared(memory, Peers({other: int(pid) for other, pid in told.items() if other != rank}))
