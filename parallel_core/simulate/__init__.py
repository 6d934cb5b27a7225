"""A schedule and a cost table -> the spans that a measured step would have: the same records, without running a rank.

`simulate` walks all programs at once: a rank advances until it waits for a message or a barrier, and is resumed when
that arrives. Each operation is visited once, so a step of n operations takes O(n).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from parallel_core.observe.recorder import LANE_COLLECTIVE, LANE_P2P, lane_of
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import COLLECTIVES, P2P, SENDS, Kind, Op, Program, Schedule
from parallel_core.schedule.passes.communicate import communicate
from parallel_core.simulate.costs import Costs, Prices

__all__ = ["Costs", "Prices", "simulate"]

Spans = NDArray[np.void]
"""Rows of records.SPAN, in program order; times in ns from the start of the step."""

ROLES = _COMPUTE, _SEND, _RECV, _REDUCE, _STEP = range(5)
_NORM = "norm"


def simulate(schedule: Schedule, costs: Prices) -> dict[int, Spans]:
    """Spans of each pipeline rank for one step; SENDs and RECVs are added to a compute-only schedule first.

    A RECV lasts from when the rank reaches it until the tensor has arrived. ALLREDUCE and the other replica collectives
    start when the last replica of the stage has reached them. The ranks' own work in either comes from the cost table.
    Raises ValueError for a deadlock.
    """
    if not any(op.kind in P2P for program in schedule.programs for op in program):
        schedule = communicate(schedule)
    walk = _Walk(schedule, costs)
    walk.run()
    return {rank: walk.spans(rank) for rank in range(schedule.pipeline_ranks)}


class _Walk:
    """State of all ranks: their clocks, their positions, and what has arrived or is awaited."""

    def __init__(self, schedule: Schedule, costs: Prices) -> None:
        self._schedule, self._costs = schedule, costs
        self._barrier = costs.norm and schedule.sync == "flush"
        ranks = schedule.pipeline_ranks
        self._starts: list[list[int]] = [[] for _ in range(ranks)]
        self._ends: list[list[int]] = [[] for _ in range(ranks)]
        self._clock = [costs.begin(rank) for rank in range(ranks)]
        self._waiting: dict[object, list[int]] = defaultdict(list)
        self._arrived: dict[object, int] = {}
        self._free: dict[tuple[int, int], int] = {}
        self._came: dict[object, dict[int, int]] = defaultdict(dict)
        self._ready = deque(range(ranks))

    def spans(self, rank: int) -> Spans:
        """The rows of `rank`; the norm and the wait for it are a NORM inside its OPT_STEP, as in measured spans."""
        rows = span_rows(self._schedule.programs[rank], self._starts[rank], self._ends[rank], self._costs.message_bytes)
        if not self._costs.norm or rank not in self._came[_NORM]:
            return rows
        return np.concatenate(
            [rows, norm_row(self._came[_NORM][rank], self._arrived[_NORM] + self._costs.meeting(rank))]
        )

    def run(self) -> None:
        """Walks every program to its end."""
        while self._ready:
            self._advance(self._ready.popleft())
        stuck = [q for q, program in enumerate(self._schedule.programs) if len(self._ends[q]) < len(program)]
        if stuck:
            ops = ", ".join(f"rank {q} in {self._schedule.programs[q][len(self._ends[q])]}" for q in stuck[:4])
            raise ValueError(f"the programs wait for each other in a circle: {ops}.")

    def _advance(self, rank: int) -> None:
        """Advances `rank` until it has to wait."""
        program, starts, ends = self._schedule.programs[rank], self._starts[rank], self._ends[rank]
        clock = self._clock[rank]
        for i in range(len(ends), len(program)):
            op = program[i]
            until = self._end(op, rank, clock)
            if until is None:
                break
            starts.append(clock)
            ends.append(until)
            clock = until
        self._clock[rank] = clock

    def _end(self, op: Op, rank: int, clock: int) -> int | None:
        """When `op` ends if `rank` reaches it at `clock`; None if that is not known yet."""
        role = ROLE[op.kind]
        if role == _COMPUTE:
            return clock + self._costs.of(op)
        if role == _SEND:
            forward = op.kind is Kind.SEND_ACT
            to = op.stage + (1 if forward else -1)
            begins = max(clock, self._free.get((rank, op.peer), clock))
            self._free[rank, op.peer] = begins + self._costs.turn(op)
            self._bring((forward, to, op.micro_batch), begins + self._costs.latency(op))
            return clock + self._costs.of(op)
        if role == _RECV:
            ready = self._await((op.kind is Kind.RECV_ACT, op.stage, op.micro_batch), rank, clock)
        elif role == _REDUCE:
            what = (op.kind, op.stage, op.version)
            ready = self._meet(what, self._schedule.placement[op.stage], rank, clock)
        elif self._barrier:
            ready = self._normed(rank, clock)
        else:
            ready = clock
        return None if ready is None else ready + self._costs.of(op)

    def _normed(self, rank: int, clock: int) -> int | None:
        """When the rank, which may have several stages to update, has the norm; None if not known yet."""
        met = self._meet(_NORM, range(self._schedule.pipeline_ranks), rank, self._came[_NORM].get(rank, clock))
        return None if met is None else max(clock, met + self._costs.meeting(rank))

    def _bring(self, what: object, at: int) -> None:
        """Records that `what` arrives at time `at`, and resumes the ranks that wait for it."""
        self._arrived[what] = at
        self._ready.extend(self._waiting.pop(what, ()))

    def _await(self, what: object, rank: int, clock: int) -> int | None:
        """When `rank`, at `clock`, can go on with `what`; None (and it is queued) if it has not arrived."""
        at = self._arrived.get(what)
        if at is None:
            self._waiting[what].append(rank)
            return None
        return max(clock, at)

    def _meet(self, what: object, group: Sequence[int], rank: int, clock: int) -> int | None:
        """When the last rank of `group` has reached the collective; None if not known yet."""
        came = self._came[what]
        came.setdefault(rank, clock)
        if what not in self._arrived and len(came) == len(group):
            self._bring(what, max(came.values()))
        return self._await(what, rank, clock)


def _role(kind: Kind) -> int:
    if kind in P2P:
        return _SEND if kind in SENDS else _RECV
    if kind in COLLECTIVES:
        return _REDUCE
    return _STEP if kind is Kind.OPT_STEP else _COMPUTE


ROLE = {kind: _role(kind) for kind in Kind}
_LANE = np.array([lane_of(Kind(kind)) if kind in {*Kind} else 0 for kind in range(max(Kind) + 1)])
_NAMES = ("kind", "stage", "micro_batch", "replica", "version")
_named = attrgetter(*_NAMES)


def span_rows(program: Program, starts: Sequence[int], ends: Sequence[int], message_bytes: int) -> Spans:
    """Rows of records.SPAN for a program whose operations start and end at these times in ns."""
    rows = np.zeros(len(program), SPAN)
    given = np.array(list(map(_named, program)), np.int64).reshape(-1, len(_NAMES))
    for name, column in zip(_NAMES, given.T, strict=True):
        rows[name] = column
    rows["lane"] = _LANE[rows["kind"]]
    rows["start"], rows["end"] = starts, ends
    rows["bytes"] = np.where(rows["lane"] == LANE_P2P, message_bytes, 0)
    return rows


def norm_row(start: int, end: int) -> Spans:
    """The gradient norm and the wait for it, which lie inside an OPT_STEP."""
    norm = np.zeros(1, SPAN)
    norm["kind"], norm["lane"], norm["micro_batch"] = Kind.NORM, LANE_COLLECTIVE, -1
    norm["start"], norm["end"] = start, end
    return norm
