"""Pipeline schedules as values: made here, executed by the engine, summed by the planner, drawn by the dashboard.

`build(spec)` makes the compute-only programs (one small file for each schedule) and lowers them with `passes`.

Recomputation is not an operation of these programs: the engine recomputes layer by layer *inside* BW, so BW stays
one operation and measured steps hold spans of kind R inside those of kind BW. Kind.R is for schedules that recompute
a whole stage at a time of their own choosing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from parallel_core.schedule import gpipe, naive, one_f_one_b
from parallel_core.schedule.ir import Kind, Op, Schedule
from parallel_core.schedule.passes.communicate import communicate
from parallel_core.schedule.passes.reduce import reduce_and_step
from parallel_core.spec import RunSpec


class _Maker(NamedTuple):
    program: Callable[[int, int, int], list[tuple[Kind, int]]]
    in_flight: Callable[[int, int, int], int]


_MAKERS = {
    "naive": _Maker(naive.program, naive.in_flight),
    "gpipe": _Maker(gpipe.program, gpipe.in_flight),
    "1f1b": _Maker(one_f_one_b.program, one_f_one_b.in_flight),
}


def names() -> tuple[str, ...]:
    """Names of the schedules, simplest first."""
    return tuple(_MAKERS)


def build(spec: RunSpec) -> Schedule:
    """The fully lowered schedule of a run: F, BW, SEND/RECV, ALLREDUCE (dp > 1) and OPT_STEP."""
    split = spec.parallel
    return reduce_and_step(communicate(compute_only(split.schedule, split.pp, split.micro_batches, split.dp)))


def compute_only(name: str, stages: int, micro_batches: int, replicas: int = 1) -> Schedule:
    """F and BW alone, for `micro_batches` per replica. Raises KeyError for an unknown name.

    Without stages there is nothing to schedule: whatever the name, micro-batches are accumulated one by one.
    """
    make = _maker(name, stages).program
    programs = tuple(
        tuple(
            Op(kind, stage, micro_batch=i * replicas + replica, replica=replica)
            for kind, i in make(stage, stages, micro_batches)
        )
        for replica in range(replicas)
        for stage in range(stages)
    )
    placement = tuple(tuple(replica * stages + stage for replica in range(replicas)) for stage in range(stages))
    return Schedule(name, stages, micro_batches * replicas, placement, programs)


def in_flight(name: str, stage: int, stages: int, micro_batches: int) -> int:
    """Most micro-batches whose activations `stage` keeps at once, in closed form (`peak_in_flight` counts them)."""
    return _maker(name, stages).in_flight(stage, stages, micro_batches)


def peak_in_flight(schedule: Schedule) -> tuple[int, ...]:
    """For each pipeline rank, the most micro-batches that were forward but not yet backward at one time."""
    peaks = []
    for program in schedule.programs:
        held = peak = 0
        for op in program:
            held += (op.kind is Kind.F) - (op.kind in (Kind.BW, Kind.B))
            peak = max(peak, held)
        peaks.append(peak)
    return tuple(peaks)


def _maker(name: str, stages: int) -> _Maker:
    maker = _MAKERS[name]
    return maker if stages > 1 else _MAKERS["naive"]
