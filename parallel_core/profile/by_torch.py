"""Times what torch's `fully_shard` adds to a pass through a model's layers, with the engine's own code around it.

A pass with it and one without, in turns; the difference is the price. It hardly depends on how many samples a
micro-batch has where nothing is hidden behind computation: on CPUs few of them are enough.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import torch.distributed as dist

from parallel_core.profile.calm import undisturbed
from parallel_core.profile.layers import LayerBench, draw
from parallel_core.profile.links import Meeting, group_sizes
from parallel_core.profile.repeats import expected
from parallel_core.profile.table import FullySharded
from parallel_core.spec import RunSpec

_LEAST, _MOST = 4, 40
_WARM = 2


def measure(at: Meeting, specs: Sequence[RunSpec], devices: int, seconds: float) -> list[FullySharded]:
    """Every rank of the world calls it; rank 0 gets what was found, the others nothing. `specs` differ in recomputation
    and in the width of the tensor group, whose collectives are not sent; `seconds` are spent on each of them and each
    number of replicas. With a device each, time in which others had one is taken off."""
    found = []
    for ranks in group_sizes(at.world):
        group = dist.new_group(list(range(ranks)))  # all ranks ask for it
        for spec in specs:
            if spec.model.tied or spec.parallel.tp * ranks > at.world:
                continue
            if at.rank < ranks:
                found.append(_added(at, spec, group, ranks, ranks <= devices, seconds))
            dist.barrier()
    return found if at.rank == 0 else []


def _added(
    at: Meeting, spec: RunSpec, group: dist.ProcessGroup, ranks: int, apart: bool, seconds: float
) -> FullySharded:
    """By `fully_shard` over the group, to one micro-batch's forward and backward; `apart`: a device each."""
    units, batch = [spec.model.units()], draw(spec, at.device)
    benches = LayerBench(spec, units, at.device), LayerBench(spec, units, at.device, shards=group)
    took: tuple[list[tuple[float, ...]], ...] = [], []
    until, turn = time.monotonic() + seconds, 0
    while turn < _WARM + _LEAST or _agreed(turn < _MOST and time.monotonic() < until, group):
        for bench, kept in zip(benches, took, strict=True):
            bench.read(batch)
            dist.barrier(group)
            parts, share = undisturbed(partial(bench.run, split=False), group, at.device)
            if turn >= _WARM:
                kept.append(tuple((share if apart else 1.0) * parts[part][0] for part in ("forward", "backward")))
        turn += 1
    plain, cut = ([expected(each) for each in zip(*kept, strict=True)] for kept in took)
    forward, backward = (max(0.0, own - other) for own, other in zip(cut, plain, strict=True))
    split = spec.parallel
    return FullySharded(tp=split.tp, recompute=split.recompute, ranks=ranks, forward=forward, backward=backward)


def _agreed(mine: bool, group: dist.ProcessGroup) -> bool:
    """What the first rank of the group says."""
    told = [mine]
    dist.broadcast_object_list(told, 0, group)
    return told[0]
