"""Pipeline schedules as values: made here, executed by the engine, priced by the planner, drawn by the dashboard.

`build(spec)` makes the compute-only programs (one small file for each schedule) and lowers them with `passes`.

Recomputation is not an operation of these programs: the engine recomputes layer by layer *inside* BW, so BW stays one
operation and measured steps have spans of kind R inside those of kind BW. Kind.R is for schedules that recompute a
whole stage at a time of their own choice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from parallel_core.schedule import (
    dualpipe_v,
    gpipe,
    interleaved,
    looped_bfs,
    naive,
    one_f_one_b,
    round_robin,
    v_blocks,
    zb_v,
    zero_bubble,
)
from parallel_core.schedule.custom import read
from parallel_core.schedule.ir import Op, Schedule
from parallel_core.schedule.passes.communicate import communicate
from parallel_core.schedule.passes.early_gradients import hand_back
from parallel_core.schedule.passes.reduce import reduce_and_step
from parallel_core.schedule.passes.replicate import replicate
from parallel_core.schedule.passes.versions import stamp, update
from parallel_core.schedule.peaks import states
from parallel_core.schedule.runs import Run, operations
from parallel_core.schedule.traits import TRAITS, place

if TYPE_CHECKING:
    from parallel_core.spec import ParallelSpec, RunSpec


_Programs = Callable[[int, int, int], list[list[Op]]]
_Runs = Callable[[int, int, int], list[Run]]


class _Maker(NamedTuple):
    """Makes the programs of a schedule from (places, chunks, micro-batches); `in_flight`: closed form of its
    micro-batches in flight, if it has one."""

    programs: _Programs
    in_flight: Callable[[int, int, int], int] | None = None


_RUNS: dict[str, _Runs] = {
    "zb-h1": zero_bubble.h1,
    "zb-h2": zero_bubble.h2,
    "zb-v": zb_v.runs,
    "v-half": v_blocks.v_half,
    "v-min": v_blocks.v_min,
}
"""Schedules made as runs of (place, places, micro-batches)."""


def _written_out(runs: _Runs) -> _Programs:
    def programs(pp: int, chunks: int, micro_batches: int) -> list[list[Op]]:
        return [operations(runs(place, pp, micro_batches)) for place in range(pp)]

    return programs


_MAKERS = {
    "naive": _Maker(naive.programs, naive.in_flight),
    "gpipe": _Maker(gpipe.programs, gpipe.in_flight),
    "1f1b": _Maker(one_f_one_b.programs, one_f_one_b.in_flight),
    "interleaved": _Maker(interleaved.programs),
    "looped-bfs": _Maker(looped_bfs.programs),
    **{name: _Maker(_written_out(runs)) for name, runs in _RUNS.items()},
    "dualpipe-v": _Maker(dualpipe_v.programs),
    **{
        name: _Maker(one_f_one_b.programs, one_f_one_b.in_flight)  # the same order, without a flush
        for name in ("1f1b-naive", "1f1b-stash", "1f1b-vertical", "1f1b-2bw")
    },
}


def names() -> tuple[str, ...]:
    """Names of the schedules made here, simplest first."""
    return tuple(_MAKERS)


def build(spec: RunSpec, steps: int = 1) -> Schedule:
    """The fully lowered schedule of a run: compute, SEND/RECV, reductions over replicas (dp > 1) and OPT_STEP.

    Without a flush it is made for a stream of `steps` steps that begins and ends with an empty pipeline (`stream`).
    """
    split = spec.parallel
    return lower(replicate(plain(split, steps), split.dp), split.zero)


def lower(made: Schedule, zero: int = 0) -> Schedule:
    """Adds messages, reductions over replicas and updates to compute-only programs; `zero`: ZeRO stage."""
    if made.sync == "flush":
        return reduce_and_step(communicate(made), zero)
    return communicate(update(stamp(made)))


def places(split: ParallelSpec) -> tuple[int, ...]:
    """The place 0 .. pp - 1 of every stage."""
    if split.program is not None:
        return tuple(rank for (rank,) in read(split.program).placement)
    return tuple(place(TRAITS[split.schedule].shape, stage, split.pp) for stage in range(split.stages))


def compute_only(
    name: str, pp: int, micro_batches: int, replicas: int = 1, chunks: int | None = None, steps: int = 1
) -> Schedule:
    """Compute operations alone, for `micro_batches` per replica and step on `pp` places of `chunks` stages each (None:
    the schedule's default). Raises KeyError for an unknown name.

    Without a pipeline there is nothing to schedule: whatever the name, micro-batches are accumulated one by one.
    `steps` matter only without a flush: then they are one stream.
    """
    traits = TRAITS[name]
    chunks = (chunks or traits.chunks) if pp > 1 else 1
    sync, vertical = (traits.sync, traits.vertical) if pp > 1 else ("flush", False)
    total = micro_batches * (1 if sync == "flush" else steps)
    made = _maker(name, pp).programs(pp, chunks, total)
    placement = tuple((place(traits.shape, stage, pp),) for stage in range(pp * chunks))
    per_step = 0 if sync == "flush" else micro_batches
    one = Schedule(name, pp * chunks, total, placement, tuple(map(tuple, made)), sync, vertical, per_step)
    return stamp(replicate(one, replicas))


def plain(split: ParallelSpec, steps: int = 1) -> Schedule:
    """The compute-only schedule of one replica, or of all replicas where stages have different numbers of them."""
    if split.replicas is not None:
        made = round_robin.compute_only(split.schedule, split.replicas, split.micro_batches, steps)
        return hand_back(made) if split.early_gradients else made
    if split.program is not None:
        return read(split.program)
    one = compute_only(split.schedule, split.pp, split.micro_batches, chunks=split.chunks_per_rank, steps=steps)
    return hand_back(one) if split.early_gradients else one


def runs_of(split: ParallelSpec, place: int) -> list[Run] | None:
    """The compute operations of a replica's `place` as runs; None for a schedule that is not made of runs."""
    if split.pp == 1 or split.schedule not in _RUNS:
        return None
    return _RUNS[split.schedule](place, split.pp, split.micro_batches)


def in_flight(name: str, stage: int, pp: int, micro_batches: int) -> int:
    """Most micro-batches whose activations `stage` keeps at once, with the schedule's default number of chunks; in
    closed form if it has one."""
    maker = _maker(name, pp)
    if maker.in_flight is not None:
        return maker.in_flight(stage, pp, micro_batches)
    made = compute_only(name, pp, micro_batches)
    (rank,) = made.placement[stage]
    return max(held.forward for held in states(made.programs[rank], stage))


def _maker(name: str, pp: int) -> _Maker:
    maker = _MAKERS[name]
    return maker if pp > 1 else _MAKERS["naive"]
