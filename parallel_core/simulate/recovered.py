"""Recovers the pipeline of a job that was not launched here from the spans of one step.

Annotations name the micro-batch of an operation, and mostly its stage. Where they name no stage, it follows from the
order in which ranks start their first micro-batch, since a stage cannot start before the previous one has ended. Ranks
with the same stages are replicas, or a tensor-parallel group if collectives start in every one of their forwards. The
operations of each rank in order then form a schedule, which must be valid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.schedule import compute_only, names
from parallel_core.schedule.check import check
from parallel_core.schedule.error import ScheduleError
from parallel_core.schedule.ir import P2P, Kind, Op, Schedule
from parallel_core.schedule.passes.communicate import communicate
from parallel_core.schedule.passes.reduce import reduce_and_step
from parallel_core.schedule.traits import TRAITS, flushes

Spans = Mapping[int, NDArray[np.void]]
_PASSES = (Kind.F, Kind.B, Kind.W, Kind.BW)
_NAMED = 3
"""Most missing operations listed in a message."""


class NotRecovered(ValueError):
    """Why no pipeline can be recovered, as the end of a sentence."""


class RecoveredOp(NamedTuple):
    """One operation of one rank; ns on the clock of the spans."""

    kind: Kind
    stage: int
    micro_batch: int
    start: int
    end: int


@dataclass(frozen=True)
class Pipeline:
    """`ranks[place][member]`: ranks of the trace; those of a place hold the same stages, ordered by replica and within
    it by tensor rank. `done[rank]`: the rank's operations in order, micro-batches numbered within their replica.
    `schedule`: compute-only schedule of one replica, named after a known one or "custom"."""

    ranks: tuple[tuple[int, ...], ...]
    replicas: int
    done: Mapping[int, tuple[RecoveredOp, ...]]
    schedule: Schedule
    stages_named: bool
    """Whether stages come from annotations, not from the order in which ranks start."""

    @property
    def width(self) -> int:
        """Tensor ranks of a replica."""
        return len(self.ranks[0]) // self.replicas


def is_pipeline(spans: Spans) -> bool:
    """Whether ranks send to each other, or annotations name several stages."""
    kinds = [int(kind) for kind in P2P]
    if any(np.isin(rows["kind"], kinds).any() for rows in spans.values()):
        return True
    return len({int(stage) for rows in spans.values() for stage in np.unique(rows["stage"][_passes(rows)])} - {-1}) > 1


def recover(spans: Spans) -> Pipeline:
    """The pipeline of the spans. Raises NotRecovered with what is missing."""
    named, done = staged(spans)
    places = _places(done)
    replicas, places = _members(done, places, spans)
    done = {rank: _renumbered(own) for rank, own in done.items()}
    made = _schedule(done, places)
    return Pipeline(places, replicas, done, made, named)


def staged(spans: Spans) -> tuple[bool, dict[int, tuple[RecoveredOp, ...]]]:
    """(whether stages are annotated, each rank's operations with annotated micro-batches); raises NotRecovered."""
    done = {rank: operations(rows) for rank, rows in sorted(spans.items())}
    bare = [rank for rank, own in done.items() if not own]
    if bare:
        raise NotRecovered(
            "nothing names stages or micro-batches; torch.distributed.pipelining and this engine annotate them"
            if len(bare) == len(done)
            else f"nothing names the micro-batches of rank {bare[0]}"
        )
    named = all(one.stage >= 0 for own in done.values() for one in own)
    return named, done if named else _staged(done)


def _passes(rows: NDArray[np.void]) -> NDArray[np.bool_]:
    return np.isin(rows["kind"], [int(kind) for kind in (*_PASSES, Kind.R)]) & (rows["micro_batch"] >= 0)


def operations(rows: NDArray[np.void]) -> tuple[RecoveredOp, ...]:
    """Annotated operations in order: each from its first span to its last, but not beyond the start of the next one."""
    own = rows[_passes(rows)]
    kinds = own["kind"].astype(np.int64)
    split = own[kinds == Kind.B]
    halves = set(zip(split["stage"].tolist(), split["micro_batch"].tolist(), strict=True))
    again = np.flatnonzero(kinds == Kind.R)
    keys = list(zip(own["stage"].tolist(), own["micro_batch"].tolist(), strict=True))
    for i in again.tolist():  # a recomputation is part of the backward that needs it
        kinds[i] = Kind.B if keys[i] in halves else Kind.BW
    found: dict[tuple[int, int, int], list[int]] = {}
    for kind, (stage, micro_batch), start, end in zip(
        kinds.tolist(), keys, own["start"].tolist(), own["end"].tolist(), strict=True
    ):
        seen = found.setdefault((kind, stage, micro_batch), [start, end])
        seen[0], seen[1] = min(seen[0], start), max(seen[1], end)
    out = sorted((start, end, *name) for name, (start, end) in found.items())
    nexts = [start for start, *_ in out[1:]] + [1 << 62] * bool(out)
    return tuple(
        RecoveredOp(Kind(kind), stage, micro_batch, start, min(end, after))
        for (start, end, kind, stage, micro_batch), after in zip(out, nexts, strict=True)
    )


def _staged(done: Mapping[int, tuple[RecoveredOp, ...]]) -> dict[int, tuple[RecoveredOp, ...]]:
    """Numbers the stages by the order of the ranks' first forwards: a rank that starts before any rank of the latest
    stage has ended its first forward belongs to that stage."""
    firsts = {rank: next((one for one in own if one.kind is Kind.F), None) for rank, own in done.items()}
    stages: dict[int, int] = {}
    ends: list[int] = []
    for rank, first in sorted(firsts.items(), key=lambda item: item[1].start if item[1] else -1):
        if first is None:
            raise NotRecovered(f"rank {rank} has no forward in this step")
        if not ends or first.start >= ends[-1]:
            ends.append(first.end)
        ends[-1] = min(ends[-1], first.end)
        stages[rank] = len(ends) - 1
    if len(ends) == 1:
        raise NotRecovered("annotations name no stages, and all ranks begin together, as replicas do")
    return {rank: tuple(one._replace(stage=stages[rank]) for one in own) for rank, own in done.items()}


def _places(done: Mapping[int, tuple[RecoveredOp, ...]]) -> tuple[tuple[int, ...], ...]:
    held: dict[tuple[int, ...], list[int]] = {}
    for rank, own in done.items():
        held.setdefault(tuple(sorted({one.stage for one in own})), []).append(rank)
    twice = [stage for stage, count in Counter(stage for stages in held for stage in stages).items() if count > 1]
    if twice:
        raise NotRecovered(f"stage {min(twice)} is on ranks whose other stages differ")
    known = sorted(stage for stages in held for stage in stages)
    absent = sorted(set(range(known[-1] + 1)) - set(known))
    if absent:
        raise NotRecovered(f"no rank did anything of stage {absent[0]}: its trace is missing")
    if len(held) == 1:
        raise NotRecovered("all ranks hold the same stages, as replicas do")
    if len({len(stages) for stages in held}) > 1 or len({len(ranks) for ranks in held.values()}) > 1:
        raise NotRecovered("stages have different numbers of ranks, or ranks of stages")
    return tuple(tuple(held[stages]) for stages in sorted(held))


def _members(
    done: Mapping[int, tuple[RecoveredOp, ...]], places: Sequence[tuple[int, ...]], spans: Spans
) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """(replicas, the ranks of each place by replica): ranks with the same micro-batches belong together."""
    ids = {rank: tuple(sorted({one.micro_batch for one in own})) for rank, own in done.items()}
    counts = {len(own) for own in ids.values()}
    if len(counts) > 1:
        fewest = min(ids, key=lambda rank: len(ids[rank]))
        most = max(counts)
        raise NotRecovered(f"rank {fewest} worked on {len(ids[fewest])} micro-batches, another on {most}")
    ordered = tuple(tuple(sorted(own, key=lambda rank: (ids[rank], rank))) for own in places)
    sets = [[ids[rank] for rank in own] for own in ordered]
    if any(own != sets[0] for own in sets):
        raise NotRecovered("the ranks of one stage worked on other micro-batches than those of the next")
    different = len(set(sets[0]))
    if different > 1:
        return different, ordered
    return (1 if all(_meets_inside(spans[rank], own) for rank, own in done.items()) else len(places[0])), ordered


def _meets_inside(rows: NDArray[np.void], done: Sequence[RecoveredOp]) -> bool:
    """Whether a collective starts in every forward, as in a tensor-parallel group."""
    starts = np.sort(rows["start"][rows["kind"] == Kind.BUCKET])
    inside = (np.diff(np.searchsorted(starts, (one.start, one.end))) for one in done if one.kind is Kind.F)
    return all(count > 0 for (count,) in inside)


def _renumbered(own: tuple[RecoveredOp, ...]) -> tuple[RecoveredOp, ...]:
    number = {given: i for i, given in enumerate(sorted({one.micro_batch for one in own}))}
    return tuple(one._replace(micro_batch=number[one.micro_batch]) for one in own)


def _schedule(done: Mapping[int, tuple[RecoveredOp, ...]], places: Sequence[tuple[int, ...]]) -> Schedule:
    programs = []
    for own in places:
        orders = {tuple(Op(one.kind, one.stage, one.micro_batch) for one in done[rank]) for rank in own}
        if len(orders) > 1:
            raise NotRecovered(f"ranks {own[0]} and {own[-1]} hold the same stages but did not work in the same order")
        programs.append(orders.pop())
    homes = {op.stage: q for q, program in enumerate(programs) for op in program}
    count = len({op.micro_batch for op in programs[0]})
    _require_whole(programs, len(homes), count)
    placement = tuple((homes[stage],) for stage in sorted(homes))
    made = Schedule("custom", len(homes), count, placement, tuple(programs))
    try:
        check(reduce_and_step(communicate(made)))
    except ScheduleError as error:
        raise NotRecovered(f"no pipeline could have run in this order: {error.message}") from error
    return next((known for known in _known(made) if known.programs == made.programs), made)


def _require_whole(programs: Sequence[Sequence[Op]], stages: int, count: int) -> None:
    """Raises NotRecovered unless every micro-batch has a forward and a backward on every stage."""
    there = {(op.kind, op.stage, op.micro_batch) for program in programs for op in program}
    absent = []
    for stage in range(stages):
        for i in range(count):
            if (Kind.F, stage, i) not in there:
                absent.append(f"the forward of micro-batch {i} on stage {stage}")
            halves = [(kind, stage, i) in there for kind in (Kind.BW, Kind.B, Kind.W)]
            if not (halves[0] or all(halves[1:])):
                absent.append(f"the backward of micro-batch {i} on stage {stage}")
    if absent:
        more = f" and {len(absent) - _NAMED} more" if len(absent) > _NAMED else ""
        raise NotRecovered(
            f"the step lacks {', '.join(absent[:_NAMED])}{more}: the trace is cut, or the pipeline does not run empty "
            "between steps"
        )


def _known(made: Schedule) -> list[Schedule]:
    """Schedules of this engine with the same numbers of ranks, stages and micro-batches, simplest first."""
    pp, chunks = made.pipeline_ranks, made.stages // made.pipeline_ranks
    fitting = [
        name
        for name in names()
        if flushes(name)
        and TRAITS[name].least <= chunks <= (TRAITS[name].most or chunks)
        and not (TRAITS[name].pairs and made.micro_batches < 2 * pp)
    ]
    return [compute_only(name, pp, made.micro_batches, chunks=chunks) for name in fitting]


def overtaken(pipeline: Pipeline) -> int:
    """Most ns by which a stage's forward started before the previous stage's ended: a lower bound on clock error."""
    ends: dict[tuple[int, int, int], int] = {}
    starts: dict[tuple[int, int, int], int] = {}
    for own in pipeline.ranks:
        for member, rank in enumerate(own):
            for one in pipeline.done[rank]:
                if one.kind is Kind.F:
                    ends[member, one.stage, one.micro_batch] = one.end
                    starts[member, one.stage, one.micro_batch] = one.start
    before = ((ends.get((member, stage - 1, i)), at) for (member, stage, i), at in starts.items())
    return max((end - at for end, at in before if end is not None), default=0)
