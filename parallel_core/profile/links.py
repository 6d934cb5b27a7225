"""Measures messages between ranks as the engine sends them: collectives, and tensors from stage to stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from parallel_core.engine.collectives import (
    Group,
    LinkGroup,
    all_gather,
    all_reduce,
    irecv,
    isend,
    reduce_scatter,
)
from parallel_core.engine.device import Device
from parallel_core.engine.host_links import ChannelLayout, HostLinks
from parallel_core.engine.near_groups import own_group, own_links
from parallel_core.profile.curves import Curve, Link, What
from parallel_core.profile.repeats import expected
from parallel_core.schedule.ways import BACK, FORTH, LinkKind

SIZES = tuple(2**k for k in range(10, 25, 2))
"""Message sizes in bytes: 1 KiB to 16 MiB, the size of a gradient bucket."""
ENOUGH_S = 0.05
"""Seconds for which a message of one size is repeated."""
_LEAST, _MOST = 8, 60
_BETWEEN = 1 << 25
"""Bytes of other tensors accessed between two messages, to replace the contents of the caches."""

COLLECTIVES: tuple[What, ...] = ("all_reduce", "all_gather", "reduce_scatter")
BOTH_WAYS: tuple[LinkKind, ...] = (FORTH, BACK)
Send = Callable[[], None]


class Meeting(NamedTuple):
    """A rank of the world, with its device and store; `moved` is called before every message."""

    rank: int
    world: int
    store: dist.Store
    device: Device
    moved: Callable[[], None]


def group_sizes(world: int) -> list[int]:
    """Returns 2, 4, 8, ... and the world itself."""
    return sorted({world, *(2**k for k in range(1, 10) if 2**k < world)}) if world > 1 else []


def measure(at: Meeting, sizes: Sequence[int] = SIZES) -> list[Link]:
    """Measures all links. Every rank of the world calls it; rank 0 gets the links, others []."""
    found = []
    for ranks in group_sizes(at.world):
        group = own_group([range(ranks)], at.rank, at.store)
        links = own_links([range(ranks)], BOTH_WAYS, at.rank, at.store) if ranks == 2 else {}
        dist.barrier()
        if at.rank < ranks:
            found += collectives(at, group, ranks, sizes)
            if ranks == 2:
                found.append(send(at, (0, 1), links, group, sizes))
        dist.barrier()
    return found if at.rank == 0 else []


def collectives(at: Meeting, group: Group, ranks: int, sizes: Sequence[int]) -> list[Link]:
    """Measures each collective of a group of `ranks` ranks, all of which call it."""
    return [_collective(at, what, group, ranks, sizes) for what in COLLECTIVES]


def _collective(at: Meeting, what: What, group: Group, ranks: int, sizes: Sequence[int]) -> Link:
    """Measures one collective, which all ranks start together. Sizes are those of the whole tensor."""
    timed, layers = [], _Layers(at, group)
    for size in sizes:
        elements = max(1, size // (4 * ranks)) * ranks
        whole = torch.zeros(elements, device=at.device.torch)
        part = whole[: elements // ranks].clone()
        send = _sender(what, whole, part, group)
        timed.append(_repeat(send, layers)[0])
    return _link(what, ranks, sizes, timed)


def _sender(what: What, whole: torch.Tensor, part: torch.Tensor, group: Group) -> Send:
    def send() -> None:
        if what == "all_reduce":
            work = all_reduce(whole, group)
        elif what == "all_gather":
            work = all_gather(whole, part, group)
        else:
            work = reduce_scatter(part, whole, group)
        work.wait()

    return send


def send(
    at: Meeting, pair: tuple[int, int], links: Mapping[LinkKind, LinkGroup], group: Group, sizes: Sequence[int]
) -> Link:
    """Measures messages between a pair of ranks, which both call it: there and back, divided by two.

    Receives are posted in advance, as in the engine. `group` contains this pair and those that send at the same time,
    all of which start together.
    """
    timed, work, layers = [], [], _Layers(at, group)
    shared = [link for link in links.values() if isinstance(link, HostLinks)]
    for link in shared:
        link.layout = ChannelLayout(max(sizes))
    end = _End(at.rank == pair[0], pair[at.rank == pair[0]], links)
    _connect(end, at.device)
    for size in sizes:
        there, back = (torch.zeros(max(1, size // 4), device=at.device.torch) for _ in range(2))
        took, worked = _repeat(_turn(end, there, back), layers, fresh=there)
        work.append(_cold_busy_seconds(end, there, back, layers, len(took)) if shared else worked / 2)
        timed.append([seconds / 2 for seconds in took])
    found = _link("send", 2, sizes, timed)
    return found.model_copy(update={"work": Curve(sizes=tuple(sizes), seconds=tuple(work))})


class _End(NamedTuple):
    """One rank of a pair: whether it sends first, and the other's global rank."""

    begins: bool
    other: int
    links: Mapping[LinkKind, LinkGroup]

    def way(self, mine: bool) -> LinkGroup:
        """Returns the group for its own messages (`mine`), or for those of the other."""
        return self.links[FORTH if self.begins == mine else BACK]


def _connect(end: _End, device: Device) -> None:
    """Uses both directions once, in the same order on both ends: at its first use NCCL waits for the other rank."""
    one = torch.zeros(1, device=device.torch)
    for mine in (end.begins, not end.begins):
        work = isend(one, end.other, end.way(mine=True)) if mine else irecv(one, end.other, end.way(mine=False))
        work.wait()


def _turn(end: _End, there: torch.Tensor, back: torch.Tensor) -> Send:
    def turn() -> None:
        coming = irecv(back, end.other, end.way(mine=False))
        if not end.begins:
            coming.wait()
        going = isend(there, end.other, end.way(mine=True))
        if end.begins:
            coming.wait()
        going.wait()

    return turn


def _cold_busy_seconds(end: _End, there: torch.Tensor, back: torch.Tensor, layers: _Layers, count: int) -> float:
    """Returns the mean seconds for which a message keeps its sender or receiver busy if it is received long after it
    was sent, so that a message in shared memory leaves the caches in between."""
    took = []
    for turn in range(count):
        sends = (turn % 2 == 0) == end.begins
        going = None
        for mine in (sends, not sends):
            layers.work(there)
            began = time.perf_counter()
            if mine and sends:
                going = isend(there, end.other, end.way(mine=True))
            elif mine:
                irecv(back, end.other, end.way(mine=False)).wait()
            if mine:
                took.append(time.perf_counter() - began)
        if going is not None:
            going.wait()
    return expected(took)


class _Layers:
    """Stands for the layers between two messages of a run, whose tensors replace the contents of the caches."""

    def __init__(self, at: Meeting, group: Group) -> None:
        self.device, self.group, self._moved = at.device, group, at.moved
        self._tensors = torch.zeros(_BETWEEN // 4, device=at.device.torch)

    def work(self, fresh: torch.Tensor | None) -> None:
        """Accesses other tensors, writes to `fresh` last, and synchronizes the ranks of the group."""
        self._moved()
        self._tensors.add_(1.0)
        if fresh is not None:
            fresh.zero_()
        self.most(0.0)
        self.device.synchronise()

    def most(self, mine: float) -> float:
        """Returns the largest of the numbers of all ranks."""
        told = torch.tensor([mine], dtype=torch.float64, device=self.device.torch)
        all_reduce(told, self.group, dist.ReduceOp.MAX).wait()
        return float(told.item())


def _repeat(send: Send, layers: _Layers, fresh: torch.Tensor | None = None) -> tuple[list[float], float]:
    """Returns (seconds of each repeat, mean processor seconds), after three warm-up repeats; equally many on all ranks
    of the group. They meet after each: what one does next is no part of a message that another still waits for, on a
    core that they share."""
    for _ in range(3):
        send()
    began = time.perf_counter()
    layers.work(fresh)
    send()
    layers.device.synchronise()
    count = layers.most(min(_MOST, max(_LEAST, ENOUGH_S / (time.perf_counter() - began))))
    took, worked = [], 0.0
    for _ in range(int(count)):
        layers.work(fresh)
        began, used = time.perf_counter(), time.process_time()
        send()
        layers.device.synchronise()
        took.append(time.perf_counter() - began)
        worked += time.process_time() - used
        layers.most(0.0)
    return took, worked / len(took)


def _link(what: What, ranks: int, sizes: Sequence[int], timed: Sequence[Sequence[float]]) -> Link:
    low, high = zip(*(np.percentile(took, (10, 90)).tolist() for took in timed), strict=True)
    spread = tuple((h - lo) / 2 for lo, h in zip(low, high, strict=True))
    time_of = Curve(sizes=tuple(sizes), seconds=tuple(map(expected, timed)))
    return Link(what=what, ranks=ranks, time=time_of, spread=spread)
