"""What of a run is under way at a rank while its pipeline is full: micro-batches, weight versions, messages."""

from __future__ import annotations

from functools import lru_cache
from math import gcd, lcm

from parallel_core import schedule
from parallel_core.schedule.held import peak_copies
from parallel_core.schedule.passes.versions import update
from parallel_core.schedule.round_robin import under_way
from parallel_core.spec import ParallelSpec, RunSpec


def in_flight(spec: RunSpec, stage: int) -> int:
    """Most micro-batches whose activations a replica of `stage` keeps at once."""
    split, in_all = spec.parallel, micro_batches(spec, stage)
    if split.replicas is not None:
        return min(under_way(split.replicas, stage), in_all)
    return schedule.in_flight(split.schedule, stage, split.pp, in_all)


def micro_batches(spec: RunSpec, stage: int) -> int:
    """Micro-batches of a replica of `stage` between an empty pipeline and an empty one: most that one of them has."""
    own = -(-spec.parallel.per_step // spec.parallel.copies[stage])
    return own * (1 if spec.parallel.flushes else spec.train.steps)


def copies(spec: RunSpec, place: int) -> int:
    """Most older weight versions that a rank of `place` keeps; 0 where the pipeline flushes."""
    if spec.parallel.flushes:
        return 0
    split = spec.parallel.model_copy(update={"dp": 1})
    few = -(-2 * sum(split.copies) // split.micro_batches) + 2  # steps after which it is full, and all is kept
    return _stream_copies(split, min(spec.train.steps, few))[place]


@lru_cache(maxsize=64)
def _stream_copies(split: ParallelSpec, steps: int) -> tuple[int, ...]:
    """Of the first replica of every place."""
    made = update(schedule.plain(split, steps))
    return tuple(peak_copies(made.programs[ranks[0]]) for ranks in made.placement)


def peers(split: ParallelSpec, stage: int, step: int) -> int:
    """Replicas of the stage `step` on that one of `stage` exchanges messages with: receives are posted of each."""
    if split.replicas is None:
        return 1
    there = split.replicas[stage + step]
    return there // gcd(there, split.replicas[stage])


def unproven_gradients(split: ParallelSpec, stage: int) -> int:
    """Most gradients that a replica of `stage` (1 or more) has sent and that nothing proves to be taken, in a backward
    of a pipeline that is full: what a replica before sends forward proves that it took what came back for those as
    many before as there are devices from it on (`schedule.receipts`)."""
    if split.replicas is None:
        return 1
    before, own = split.replicas[stage - 1], split.replicas[stage]
    ahead, ahead_before = sum(split.replicas[stage:]), sum(split.replicas[stage - 1 :])
    every, far = lcm(before, own), 4 * lcm(before, own) * ahead_before

    def proven(gradient: int, received: int) -> bool:
        last = max(i for i in range(received, received - 2 * every, -1) if not (i - gradient) % every)
        return last >= gradient + ahead_before

    def held(k: int) -> int:
        received = k + (ahead - 1) // own * own
        return sum(not proven(gradient, received) for gradient in range(k - own, k - far, -own))

    return max(held(k) for k in range(far, far + every, own))
