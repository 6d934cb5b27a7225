"""Times messages between the ranks of a host as the engine sends them: collectives, and tensors from stage to stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.distributed as dist

from parallel_core.engine.device import Device
from parallel_core.profile.table import Curve, Link, What

SIZES = tuple(2**k for k in range(10, 25, 2))
"""Bytes: 1 KiB to 16 MiB, the size of a gradient bucket."""
ENOUGH_S = 0.15
"""Of repeating one message of one size."""
_LEAST, _MOST = 8, 60

Send = Callable[[], None]


def group_sizes(world: int) -> list[int]:
    """2, 4, 8, ... and the world itself."""
    return sorted({world, *(2**k for k in range(1, 10) if 2**k < world)}) if world > 1 else []


def measure(rank: int, world: int, device: Device, sizes: Sequence[int] = SIZES) -> list[Link]:
    """Every rank of the world calls it; rank 0 gets the links, the others none."""
    found = []
    for ranks in group_sizes(world):
        group = dist.new_group(list(range(ranks)))
        dist.barrier()
        if rank < ranks:
            for what in ("all_reduce", "all_gather", "reduce_scatter"):
                found.append(_collective(what, group, ranks, device, sizes))
            if ranks == 2:
                found.append(_send(rank, group, device, sizes))
        dist.barrier()
    return found if rank == 0 else []


def _collective(what: What, group: dist.ProcessGroup, ranks: int, device: Device, sizes: Sequence[int]) -> Link:
    """Back to back, so that all ranks come to each one together. Sizes are those of the whole tensor."""
    timed = []
    for size in sizes:
        elements = max(1, size // (4 * ranks)) * ranks
        whole = torch.zeros(elements, device=device.torch)
        part = whole[: elements // ranks].clone()
        send = _sender(what, whole, part, group)
        timed.append(_repeat(send, device, group)[0])
    return _link(what, ranks, sizes, timed)


def _sender(what: What, whole: torch.Tensor, part: torch.Tensor, group: dist.ProcessGroup) -> Send:
    def send() -> None:
        if what == "all_reduce":
            work = dist.all_reduce(whole, group=group, async_op=True)
        elif what == "all_gather":
            work = dist.all_gather_single(whole, part, group=group, async_op=True)
        else:
            work = dist.reduce_scatter_single(part, whole, group=group, async_op=True)
        work.wait()

    return send


def _send(rank: int, group: dist.ProcessGroup, device: Device, sizes: Sequence[int]) -> Link:
    """There and back, halved; receives are posted before, as the engine does."""
    timed, work, peer = [], [], 1 - rank
    for size in sizes:
        there, back = (torch.zeros(max(1, size // 4), device=device.torch) for _ in range(2))
        turn = _turn(rank, peer, there, back, group)
        took, worked = _repeat(turn, device, group)
        work.append(worked / 2)
        timed.append([seconds / 2 for seconds in took])
    link = _link("send", 2, sizes, timed)
    return link.model_copy(update={"work": Curve(sizes=tuple(sizes), seconds=tuple(work))})


def _turn(rank: int, peer: int, there: torch.Tensor, back: torch.Tensor, group: dist.ProcessGroup) -> Send:
    def turn() -> None:
        coming = dist.irecv(back, peer, group=group)
        assert coming is not None
        if rank:
            coming.wait()
        going = dist.isend(there, peer, group=group)
        assert going is not None
        if not rank:
            coming.wait()
        going.wait()

    return turn


def _repeat(send: Send, device: Device, group: dist.ProcessGroup) -> tuple[list[float], float]:
    """(seconds of each repeat, processor seconds of one), after three to warm up; as many on all ranks of the group."""
    for _ in range(3):
        send()
    device.synchronise()
    began = time.perf_counter()
    send()
    device.synchronise()
    enough = min(_MOST, max(_LEAST, ENOUGH_S / (time.perf_counter() - began)))
    count = torch.tensor([enough], dtype=torch.float64, device=device.torch)
    dist.broadcast(count, 0, group=group)
    took, worked = [], time.process_time()
    for _ in range(int(count.item())):
        began = time.perf_counter()
        send()
        device.synchronise()
        took.append(time.perf_counter() - began)
    return took, (time.process_time() - worked) / len(took)


def _link(what: What, ranks: int, sizes: Sequence[int], timed: Sequence[Sequence[float]]) -> Link:
    low, middle, high = zip(*(np.percentile(took, (10, 50, 90)).tolist() for took in timed), strict=True)
    spread = tuple((h - lo) / 2 for lo, h in zip(low, high, strict=True))
    return Link(what=what, ranks=ranks, time=Curve(sizes=tuple(sizes), seconds=middle), spread=spread)
