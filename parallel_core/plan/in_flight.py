"""Micro-batches, weight versions and messages in flight at a rank while its pipeline is full."""

from __future__ import annotations

from functools import lru_cache
from math import gcd, lcm
from typing import NamedTuple

from parallel_core import schedule
from parallel_core.schedule.passes.versions import update
from parallel_core.schedule.peaks import peak_copies, peak_in_flight
from parallel_core.schedule.round_robin import under_way
from parallel_core.spec import ParallelSpec, RunSpec


def in_flight(spec: RunSpec, stage: int, replica: int = 0) -> int:
    """Most micro-batches whose activations this `replica` of `stage` keeps at once; the first one keeps most."""
    split, in_all = spec.parallel, micro_batches(spec, stage)
    if split.replicas is not None and not split.flushes:
        return _streamed(spec)[stage][replica].in_flight
    if split.replicas is not None:
        return min(under_way(split.replicas, stage), in_all)
    return schedule.in_flight(split.schedule, stage, split.pp, in_all)


def micro_batches(spec: RunSpec, stage: int) -> int:
    """Most micro-batches that a replica of `stage` runs between two flushes: those of a step, or of the whole run
    without flushes."""
    own = -(-spec.parallel.per_step // spec.parallel.copies[stage])
    return own * (1 if spec.parallel.flushes else spec.train.steps)


def copies(spec: RunSpec, place: int, replica: int = 0) -> int:
    """Most old weight versions that a rank of `place` keeps; 0 where the pipeline flushes."""
    return 0 if spec.parallel.flushes else _streamed(spec)[place][replica].copies


class _Kept(NamedTuple):
    """Most micro-batches, and old weight versions, that a rank keeps at once."""

    in_flight: int
    copies: int


def _streamed(spec: RunSpec) -> tuple[tuple[_Kept, ...], ...]:
    """[place][replica] of a pipeline without flushes; one replica where all are alike. Micro-batches are dealt out anew
    in each step: if they do not divide evenly, the first replicas get the last ones of a step and soon after the first
    ones of the next."""
    split = spec.parallel.model_copy(update={"dp": 1})
    few = -(-2 * sum(split.copies) // split.micro_batches) + 2  # steps until the pipeline is full and keeps its maximum
    return _stream(split, min(spec.train.steps, few))


@lru_cache(maxsize=64)
def _stream(split: ParallelSpec, steps: int) -> tuple[tuple[_Kept, ...], ...]:
    made = update(schedule.plain(split, steps))
    most = peak_in_flight(made)
    return tuple(tuple(_Kept(most[q], peak_copies(made.programs[q])) for q in ranks) for ranks in made.placement)


def peers(split: ParallelSpec, stage: int, step: int) -> int:
    """Replicas of stage `stage` + `step` that one replica of `stage` exchanges messages with; receives are per peer."""
    if split.replicas is None:
        return 1
    there = split.replicas[stage + step]
    return there // gcd(there, split.replicas[stage])


def unproven_gradients(split: ParallelSpec, stage: int) -> int:
    """Upper bound on sent gradients not yet implicitly acknowledged, in steady state.

    Counted at the backwards of a replica of `stage` (1 or more) in a full pipeline. An activation from the previous
    stage acknowledges the gradients of earlier micro-batches: those at least as many before it as there are devices
    from the previous stage on (`schedule.send_completion`).
    """
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
