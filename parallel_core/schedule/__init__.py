"""Pipeline schedules as values: made here, executed by the engine, summed by the planner, drawn by the dashboard.

`build(spec)` makes the compute-only programs (one small file for each schedule) and lowers them with `passes`.

Recomputation is not an operation of these programs: the engine recomputes layer by layer *inside* BW, so BW stays
one operation and measured steps hold spans of kind R inside those of kind BW. Kind.R is for schedules that recompute
a whole stage at a time of their own choosing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from parallel_core.schedule import gpipe, interleaved, naive, one_f_one_b
from parallel_core.schedule.ir import Kind, Op, Schedule
from parallel_core.schedule.passes.communicate import communicate
from parallel_core.schedule.passes.reduce import reduce_and_step
from parallel_core.schedule.traits import TRAITS, place

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec


class _Maker(NamedTuple):
    programs: Callable[[int, int, int], list[list[Op]]]
    in_flight: Callable[[int, int, int], int] | None = None


_MAKERS = {
    "naive": _Maker(naive.programs, naive.in_flight),
    "gpipe": _Maker(gpipe.programs, gpipe.in_flight),
    "1f1b": _Maker(one_f_one_b.programs, one_f_one_b.in_flight),
    "interleaved": _Maker(interleaved.programs),
}


def names() -> tuple[str, ...]:
    """Names of the schedules, simplest first."""
    return tuple(_MAKERS)


def build(spec: RunSpec) -> Schedule:
    """The fully lowered schedule of a run: F, BW, SEND/RECV, the sums over replicas (dp > 1) and OPT_STEP."""
    split = spec.parallel
    plain = compute_only(split.schedule, split.pp, split.micro_batches, split.dp, split.chunks_per_rank)
    return reduce_and_step(communicate(plain), sharded=split.zero > 0)


def compute_only(name: str, pp: int, micro_batches: int, replicas: int = 1, chunks: int | None = None) -> Schedule:
    """Compute operations alone, for `micro_batches` per replica on `pp` places of `chunks` stages each (None = the
    schedule's default). Raises KeyError for an unknown name.

    Without a pipeline there is nothing to schedule: whatever the name, micro-batches are accumulated one by one.
    """
    chunks = (chunks or TRAITS[name].chunks) if pp > 1 else 1
    shape = TRAITS[name].shape
    made = _maker(name, pp).programs(pp, chunks, micro_batches)
    programs = tuple(
        tuple(replace(op, micro_batch=op.micro_batch * replicas + replica, replica=replica) for op in program)
        for replica in range(replicas)
        for program in made
    )
    placement = tuple(
        tuple(replica * pp + place(shape, stage, pp) for replica in range(replicas)) for stage in range(pp * chunks)
    )
    return Schedule(name, pp * chunks, micro_batches * replicas, placement, programs)


def in_flight(name: str, stage: int, pp: int, micro_batches: int, chunks: int | None = None) -> int:
    """Most micro-batches whose activations `stage` keeps at once; in closed form where its schedule has one."""
    maker = _maker(name, pp)
    if maker.in_flight is not None:
        return maker.in_flight(stage, pp, micro_batches)
    made = compute_only(name, pp, micro_batches, chunks=chunks)
    (rank,) = made.placement[stage]
    return _peak(op for op in made.programs[rank] if op.stage == stage)


def peak_in_flight(schedule: Schedule) -> tuple[int, ...]:
    """For each pipeline rank, the most that were forward but not yet backward at one time, over all its stages."""
    return tuple(map(_peak, schedule.programs))


def _peak(program: Iterable[Op]) -> int:
    held = peak = 0
    for op in program:
        held += (op.kind is Kind.F) - (op.kind in (Kind.BW, Kind.B))
        peak = max(peak, held)
    return peak


def _maker(name: str, pp: int) -> _Maker:
    maker = _MAKERS[name]
    return maker if pp > 1 else _MAKERS["naive"]
