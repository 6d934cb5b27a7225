"""Times what torch's `fully_shard` adds to a pass through a model's layers, with the engine's own code around it.

A pass with it and one without, in turns; the difference is the price. It hardly depends on how many samples a
micro-batch has where nothing is hidden behind computation: on CPUs few of them are enough.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch.distributed as dist

from parallel_core.profile.cpu_steal import undisturbed
from parallel_core.profile.layers import LayerBench, draw
from parallel_core.profile.links import Meeting, group_sizes
from parallel_core.profile.repeats import expected
from parallel_core.profile.table import FullySharded
from parallel_core.spec import RunSpec

_LEAST, _MOST = 4, 40
_WARM = 2


class _Pass(NamedTuple):
    """Seconds; `worked` are those of the processor."""

    forward: float
    backward: float
    worked: float


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
    took: tuple[list[_Pass], ...] = [], []
    until, turn = time.monotonic() + seconds, 0
    while turn < _WARM + _LEAST or _agreed(turn < _MOST and time.monotonic() < until, group):
        for bench, kept in zip(benches, took, strict=True):
            bench.read(batch)
            dist.barrier(group)
            once, share = undisturbed(partial(_pass, bench), group, at.device)
            if turn >= _WARM:
                again = share if apart else 1.0
                kept.append(_Pass(again * once.forward, again * once.backward, once.worked))
        turn += 1
    plain, cut = (_Pass(*map(expected, zip(*kept, strict=True))) for kept in took)
    forward, backward, worked = (max(0.0, own - other) for own, other in zip(cut, plain, strict=True))
    split, both = spec.parallel, forward + backward
    work = min(1.0, worked / both) if both and at.device.kind == "cpu" else 1.0
    return FullySharded(
        tp=split.tp, recompute=split.recompute, ranks=ranks, forward=forward, backward=backward, work=work
    )


def _pass(bench: LayerBench) -> _Pass:
    began = time.process_time()  # of all threads: some of torch's talk
    parts = bench.run(split=False)
    return _Pass(parts["forward"][0], parts["backward"][0], time.process_time() - began)


def _agreed(mine: bool, group: dist.ProcessGroup) -> bool:
    """What the first rank of the group says."""
    told = [mine]
    dist.broadcast_object_list(told, 0, group)
    return told[0]
