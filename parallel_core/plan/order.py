"""Finds a pipeline order itself: from the times of F, B, W and a message, and a limit on the activations kept.

A list scheduler after Qi et al. 2024, section 3.1: as many forwards as memory allows before the first backward, then
one forward and one backward in turn, weight gradients in the gaps and where memory runs out. ZB-H1 and ZB-H2 stand
beside what it finds where they keep within the limit, and the shortest order is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from parallel_core.schedule import compute_only
from parallel_core.schedule.ir import Kind, Op, Schedule
from parallel_core.schedule.passes.communicate import communicate
from parallel_core.simulate import Costs, simulate
from parallel_core.simulate.idle import idle_times


class Times(NamedTuple):
    """Nanoseconds of one micro-batch on one stage, all stages alike, and of a message to the next one."""

    f: int
    b: int
    w: int
    message: int = 0

    @property
    def work(self) -> int:
        return self.f + self.b + self.w


@lru_cache(maxsize=64)
def handmade(name: str, pp: int, micro_batches: int, chunks: int | None = None) -> Schedule:
    """A schedule by name, with its messages."""
    return communicate(compute_only(name, pp, micro_batches, chunks=chunks))


def bubble_rate(schedule: Schedule, times: Times) -> float:
    """(cost - m (F + B + W)) / cost, cost = the longest time from a rank's first to its last operation (Qi et al.
    2024, section 5.3): no rank waits for another before its optimizer. A rank's times are cut evenly over its chunks.
    """
    chunks = schedule.stages // schedule.pipeline_ranks
    each = Costs.uniform(schedule.stages, times.f // chunks, times.b // chunks, times.w // chunks, times.message)
    cost = max(one.busy + one.idle for one in idle_times(simulate(schedule, each)).values())
    return 1 - schedule.micro_batches * times.work / cost


def find(pp: int, micro_batches: int, times: Times, limit: float, kept: float = 0.5) -> Schedule:
    """The shortest schedule found (with its messages) that keeps at most `limit` micro-batches' activations on a stage.

    `kept` = the share of a micro-batch's activations that its weight gradient still needs after B. Raises ValueError
    where the limit is below one.
    """
    if limit < 1:
        raise ValueError(f"limit={limit:g}: at least one micro-batch must be kept.")
    most = {"zb-h1": pp, "zb-h2": 2 * pp - 1}
    found = [handmade(name, pp, micro_batches) for name, keeps in most.items() if limit >= min(keeps, micro_batches)]
    placement = tuple((stage,) for stage in range(pp))
    for patient in (False, True):
        programs = _Walk(pp, micro_batches, times, _Rules(limit, kept, patient)).run()
        found.append(communicate(Schedule("found", pp, micro_batches, placement, programs)))
    return min(found, key=lambda made: bubble_rate(made, times))


@dataclass(frozen=True, slots=True)
class _Rules:
    limit: float
    kept: float
    patient: bool
    """In a gap shorter than W a stage waits instead of doing W."""


@dataclass(slots=True)
class _Stage:
    """What a stage has done, and when it is free."""

    index: int
    ops: list[Op] = field(default_factory=list)
    done: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys((Kind.F, Kind.B, Kind.W), 0))
    free: int = 0

    def keeps(self, kept: float) -> float:
        f, b, w = self.done[Kind.F], self.done[Kind.B], self.done[Kind.W]
        return (f - b) + kept * (b - w)


class _Walk:
    """All stages, each deciding what to do next whenever it is free, in the order of time."""

    def __init__(self, pp: int, micro_batches: int, times: Times, rules: _Rules) -> None:
        self._m, self._times, self._rules = micro_batches, times, rules
        self._stages = [_Stage(i) for i in range(pp)]
        self._took = {Kind.F: times.f, Kind.B: times.b, Kind.W: times.w}
        kinds = (Kind.F, Kind.B)
        self._arrived: dict[tuple[Kind, int], list[int]] = {(kind, i): [] for kind in kinds for i in range(pp)}
        self._arrived[Kind.F, 0] = [0] * micro_batches

    def run(self) -> tuple[tuple[Op, ...], ...]:
        queue: list[tuple[int, int]] = [(0, stage.index) for stage in self._stages]
        while queue:
            now, index = heappop(queue)
            stage = self._stages[index]
            if now < stage.free:
                continue
            kind, when = self._choose(stage, now)
            if kind is None:
                if when < inf:
                    heappush(queue, (int(when), index))
                continue
            for woken in self._do(stage, kind, now):
                heappush(queue, (max(now, self._stages[woken].free), woken))
            heappush(queue, (stage.free, index))
        return tuple(tuple(stage.ops) for stage in self._stages)

    def _do(self, stage: _Stage, kind: Kind, now: int) -> list[int]:
        """Appends the operation; returns the neighbours that now know of a message to come."""
        i = stage.done[kind]
        stage.ops.append(Op(kind, stage.index, i))
        stage.done[kind] += 1
        stage.free = now + self._took[kind]
        last = len(self._stages) - 1
        if kind is Kind.F and stage.index == last:
            self._arrived[Kind.B, last].append(stage.free)
            return []
        to = stage.index + (1 if kind is Kind.F else -1)
        if kind is Kind.W or not 0 <= to <= last:
            return []
        self._arrived[kind, to].append(stage.free + self._times.message)
        return [to]

    def _ready(self, stage: _Stage, kind: Kind) -> float:
        """When the next operation of `kind` could start as far as is known."""
        known = self._arrived[kind, stage.index]
        return known[stage.done[kind]] if stage.done[kind] < len(known) else inf

    def _choose(self, stage: _Stage, now: int) -> tuple[Kind | None, float]:
        """What to do now, or (None, when to ask again)."""
        done, rules = stage.done, self._rules
        room = stage.keeps(rules.kept) + 1 <= rules.limit + 1e-9
        f, b = self._ready(stage, Kind.F) if room else inf, self._ready(stage, Kind.B)
        owed = done[Kind.B] > done[Kind.W]
        if done[Kind.B] == 0:
            # Warm-up: forwards, unless the first backward would have to wait for one.
            if f <= now and now + self._times.f <= b:
                return Kind.F, now
            if b <= now:
                return Kind.B, now
            return None, _later(now, f, b)
        turn = self._turn(stage, f, b, now)
        if turn is not None:
            return turn, now
        gap = min(f, b) - now
        full = not room and done[Kind.F] < self._m
        if owed and (full or gap >= self._times.w or not rules.patient or gap == inf):
            return Kind.W, now
        return None, _later(now, f, b)

    def _turn(self, stage: _Stage, f: float, b: float, now: int) -> Kind | None:
        """F or B, whichever is its turn and ready; out of turn where the other one is not."""
        ahead = stage.done[Kind.F] - stage.done[Kind.B]
        last = next(op.kind for op in reversed(stage.ops) if op.kind is not Kind.W)
        order = (Kind.F, Kind.B) if last is Kind.B else (Kind.B, Kind.F)
        for kind in order:
            when = f if kind is Kind.F else b
            if when <= now and not (kind is Kind.F and ahead >= self._rules.limit):
                return kind
        return None


def _later(now: int, *when: float) -> float:
    """The first of the instants behind `now`."""
    return min((one for one in when if one > now), default=inf)
