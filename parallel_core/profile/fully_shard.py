"""Measures the time that torch's `fully_shard` adds to a pass through a model's layers, within the engine's own code.

Passes with and without it alternate; the difference is its cost. Where nothing is hidden behind computation, it
hardly depends on the samples of a micro-batch: on CPUs a few samples are enough.
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
    """Seconds of forward and backward, and `worked`: processor seconds of both."""

    forward: float
    backward: float
    worked: float


def measure(at: Meeting, specs: Sequence[RunSpec], devices: int, seconds: float) -> list[FullySharded]:
    """Measures the cost for each number of replicas and each of `specs`. Every rank calls it; rank 0 gets the results,
    others [].

    `specs` differ in recomputation and in the width of the tensor-parallel group, whose collectives are not run;
    `seconds` is spent on each spec and number of replicas. Where each rank has its own device, the time in which other
    processes used it is subtracted.
    """
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
    """Returns the time that `fully_shard` over the group adds to forward and backward of one micro-batch; `apart`: each
    rank has its own device."""
    units, batch = [spec.model.units()], draw(spec, at.device)
    made = partial(LayerBench, spec, units, at.device, moved=at.moved)
    benches = made(), made(shards=group)
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
    began = time.process_time()  # of all threads, since torch communicates in some of them
    parts = bench.run(split=False)
    return _Pass(parts["forward"][0], parts["backward"][0], time.process_time() - began)


def _agreed(mine: bool, group: dist.ProcessGroup) -> bool:
    """Returns the value on the first rank of the group, so that all ranks decide alike."""
    told = [mine]
    dist.broadcast_object_list(told, 0, group)
    return told[0]
