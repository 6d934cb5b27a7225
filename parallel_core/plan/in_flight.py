"""What of a run is under way at a rank while its pipeline is full: micro-batches, weight versions, messages."""

from __future__ import annotations

from functools import lru_cache
from math import gcd, lcm
from typing import NamedTuple

from parallel_core import schedule
from parallel_core.schedule.in_flight import peak_copies, peak_in_flight
from parallel_core.schedule.passes.versions import update
from parallel_core.schedule.round_robin import under_way
from parallel_core.spec import ParallelSpec, RunSpec


def in_flight(spec: RunSpec, stage: int, replica: int = 0) -> int:
    """Most micro-batches whose activations this `replica` of `stage` keeps at once; no other one keeps more than the
    first."""
    split, in_all = spec.parallel, micro_batches(spec, stage)
    if split.replicas is not None and not split.flushes:
        return _streamed(spec)[stage][replica].in_flight
    if split.replicas is not None:
        return min(under_way(split.replicas, stage), in_all)
    return schedule.in_flight(split.schedule, stage, split.pp, in_all)


def micro_batches(spec: RunSpec, stage: int) -> int:
    """Micro-batches of a replica of `stage` between an empty pipeline and an empty one: most that one of them has."""
    own = -(-spec.parallel.per_step // spec.parallel.copies[stage])
    return own * (1 if spec.parallel.flushes else spec.train.steps)


def copies(spec: RunSpec, place: int, replica: int = 0) -> int:
    """Most older weight versions that a rank of `place` keeps; 0 where the pipeline flushes."""
    return 0 if spec.parallel.flushes else _streamed(spec)[place][replica].copies


class _Kept(NamedTuple):
    """Most micro-batches, and older weight versions, that a rank keeps at once."""

    in_flight: int
    copies: int


def _streamed(spec: RunSpec) -> tuple[tuple[_Kept, ...], ...]:
    """Of each place its replicas: one, where all are alike. Each step deals out its micro-batches anew, so that one
    that does not come out even gives the first replicas its last ones, and soon the next step's first."""
    split = spec.parallel.model_copy(update={"dp": 1})
    few = -(-2 * sum(split.copies) // split.micro_batches) + 2  # steps after which it is full, and all is kept
    return _stream(split, min(spec.train.steps, few))


@lru_cache(maxsize=64)
def _stream(split: ParallelSpec, steps: int) -> tuple[tuple[_Kept, ...], ...]:
    made = update(schedule.plain(split, steps))
    most = peak_in_flight(made)
    return tuple(tuple(_Kept(most[q], peak_copies(made.programs[q])) for q in ranks) for ranks in made.placement)


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
