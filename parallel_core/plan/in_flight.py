"""Micro-batches, weight versions and messages in flight at a rank while its pipeline is full."""

from __future__ import annotations

from functools import lru_cache
from math import lcm
from typing import NamedTuple

from parallel_core import schedule
from parallel_core.schedule.passes.versions import update
from parallel_core.schedule.peaks import peak_copies, peak_in_flight
from parallel_core.schedule.round_robin import under_way
from parallel_core.schedule.traits import CUSTOM, TRAITS
from parallel_core.spec import ParallelSpec, RunSpec

_FULL = 6
"""Micro-batches for each stage in which every schedule fills and empties, and is full in between."""
_ALONE = {
    name: ParallelSpec.model_fields[name].default
    for name in (
        *("dp", "tp", "widths", "cuts", "sequence", "tensor_split"),
        *("recompute", "recompute_layers", "zero", "zero_backend"),
    )
}
"""Fields of a split that change no program, at their defaults."""


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


def alike(split: ParallelSpec) -> ParallelSpec:
    """The same pipeline with one device a stage, whatever the layers, their recomputation and what is sharded: all with
    the same programs share a result."""
    return split.model_copy(update=_ALONE)


def shortened(split: ParallelSpec) -> ParallelSpec:
    """The pipeline with fewer micro-batches and as much idle time, if it has many. Once it is full, each micro-batch
    only repeats what the one before it did (with interleaving, each round of p of them), and nobody idles."""
    m, pp = split.micro_batches, split.pp
    most = _FULL * pp + m % pp
    repeats = split.schedule not in ("naive", CUSTOM) and (split.schedule != "interleaved" or m % pp == 0)
    same = split.flushes and split.replicas is None and repeats
    return split.model_copy(update={"micro_batches": most}) if same and m > most else split


def saturated(split: ParallelSpec) -> ParallelSpec:
    """The pipeline with fewer micro-batches, if it has many and its ranks keep as much at their peak."""
    return split if TRAITS[split.schedule].keeps_all else shortened(split)


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
    return _stream(split, min(spec.train.steps, stream_steps(split)))


def stream_steps(split: ParallelSpec) -> int:
    """Steps until a pipeline without flushes is full and keeps its maximum."""
    return -(-2 * sum(split.copies) // split.micro_batches) + 2


@lru_cache(maxsize=64)
def _stream(split: ParallelSpec, steps: int) -> tuple[tuple[_Kept, ...], ...]:
    made = update(schedule.plain(split, steps))
    most = peak_in_flight(made)
    return tuple(tuple(_Kept(most[q], peak_copies(made.programs[q])) for q in ranks) for ranks in made.placement)


def peers(split: ParallelSpec, stage: int, step: int, replica: int = 0) -> int:
    """Replicas of stage `stage` + `step` that a `replica` of `stage` exchanges messages with; receives are per peer.
    Every step deals its micro-batches out anew, so that with few of them it meets fewer."""
    if split.replicas is None:
        return 1
    there = split.replicas[stage + step]
    return len({i % there for i in range(replica, split.per_step, split.replicas[stage])})


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
