"""A list scheduler after Qi et al. 2024a, section 3.1: every rank picks its next operation whenever it is free.

As many forwards as memory allows before the first backward, then one forward and one backward alternately; weight
gradients fill gaps and run where memory is exhausted. `Rules` are the options over which the paper does a grid search.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from parallel_core.plan.orders.problem import B, F, Problem, W

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Rules:
    """Options of the list scheduler."""

    patient: bool = False
    """In a gap shorter than W, a rank waits instead of running W."""
    eager: bool = False
    """A forward may delay the first backward."""
    ahead: float = inf
    """Most micro-batches with F done but not B, as a multiple of 1F1B's: stages - s on stage s."""


def greedy(problem: Problem, rules: Rules) -> list[list[int]] | None:
    """The programs; None where memory is exhausted in a way that these rules do not resolve."""
    return _Walk(problem, rules).run()


class _Rank:
    """What a rank has done, and when it is free."""

    def __init__(self, problem: Problem, rank: int) -> None:
        self.stages = problem.stages_of[rank]
        self.limit = problem.limit[rank]
        self.program: list[int] = []
        self.free = 0
        self.held = 0.0
        self.last = B
        """Whichever of F and B ran last."""
        self.begun = False
        """Whether it has run a backward."""


class _Walk:
    """Discrete-event simulation of all ranks, in order of time."""

    def __init__(self, problem: Problem, rules: Rules) -> None:
        self._problem, self._rules = problem, rules
        self._ranks = [_Rank(problem, rank) for rank in range(problem.ranks)]
        stages = range(problem.stages)
        self._done = [[0 for _ in stages] for _ in (F, B, W)]
        self._arrived: list[list[list[int]]] = [[[] for _ in stages] for _ in (F, B)]
        self._arrived[F][0] = [0] * problem.micro_batches
        caps = (rules.ahead * (problem.stages - s) for s in stages)
        self._cap = [max(1, int(cap)) if cap < inf else problem.micro_batches for cap in caps]

    def run(self) -> list[list[int]] | None:
        queue = [(0, rank) for rank in range(len(self._ranks))]
        while queue:
            now, index = heappop(queue)
            rank = self._ranks[index]
            if now < rank.free:
                continue
            chosen, when = self._choose(rank, now)
            if chosen is None:
                if when < inf:
                    heappush(queue, (int(when), index))
                continue
            woken = self._do(rank, *chosen, now)
            if woken is not None:
                heappush(queue, (max(now, self._ranks[woken].free), woken))
            heappush(queue, (rank.free, index))
        whole = 3 * self._problem.micro_batches
        done = all(len(rank.program) == whole * len(rank.stages) for rank in self._ranks)
        return [rank.program for rank in self._ranks] if done else None

    def _do(self, rank: _Rank, kind: int, stage: int, now: int) -> int | None:
        """Appends the operation to the rank's program; returns the rank that will receive its message, if any."""
        problem = self._problem
        rank.program.append(stage * 4 + kind)
        self._done[kind][stage] += 1
        rank.free = now + problem.took[kind][stage]
        kept, needed = problem.kept[stage], problem.needed[stage]
        rank.held += (kept, needed - kept, -needed)[kind]
        if kind == W:
            return None
        rank.last = kind
        rank.begun |= kind == B
        last = problem.stages - 1
        if kind == F and stage == last:
            self._arrived[B][last].append(rank.free)
            return None
        to = stage + (1 if kind == F else -1)
        if to < 0:
            return None
        self._arrived[kind][to].append(rank.free + problem.message[min(stage, to)])
        return problem.placement[to]

    def _next(self, rank: _Rank, kind: int) -> tuple[float, int]:
        """(time, stage) of the operation of `kind` that the rank can start first, as far as known; of those that it can
        start at the same time, that of the deepest stage."""
        best = (inf, -1)
        for stage in reversed(rank.stages):
            known, done = self._arrived[kind][stage], self._done[kind][stage]
            if done < len(known) and self._room(rank, kind, stage):
                when = known[done] if known[done] > rank.free else rank.free
                if when < best[0]:
                    best = (when, stage)
        return best

    def _room(self, rank: _Rank, kind: int, stage: int) -> bool:
        """Whether memory admits it, with room reserved for one micro-batch on each deeper stage of the rank."""
        problem = self._problem
        kept, needed = problem.kept[stage], problem.needed[stage]
        if kind == B:
            return rank.held + needed - kept <= rank.limit + _ROUNDING
        ahead = self._done[F][stage] - self._done[B][stage]
        deeper = sum(problem.kept[s] for s in rank.stages if s > stage)
        return ahead < self._cap[stage] and rank.held + kept + deeper <= rank.limit + _ROUNDING

    def _choose(self, rank: _Rank, now: int) -> tuple[tuple[int, int] | None, float]:
        """((kind, stage), now), or (None, time to ask again)."""
        (f, forward), (b, backward) = self._next(rank, F), self._next(rank, B)
        owed = next((s for s in rank.stages if self._done[B][s] > self._done[W][s]), None)
        if not rank.begun:
            # Warm-up: forwards, unless the first backward would have to wait for one.
            if f <= now and (self._rules.eager or now + self._problem.forward[forward] <= b):
                return (F, forward), now
            return ((B, backward), now) if b <= now else (None, _later(now, f, b))
        turn = ((B, b, backward), (F, f, forward))
        for kind, when, stage in turn if rank.last == F else reversed(turn):
            if when <= now:
                return (kind, stage), now
        if owed is not None and self._fills(rank, owed, min(f, b) - now):
            return (W, owed), now
        return None, _later(now, f, b)

    def _fills(self, rank: _Rank, stage: int, gap: float) -> bool:
        """Whether to run a W now, although another operation may become ready `gap` from now."""
        if gap >= self._problem.weight[stage] or not self._rules.patient:
            return True
        started = (self._done[F][s] < self._problem.micro_batches for s in rank.stages)
        return any(started) and rank.held + self._problem.kept[stage] > rank.limit + _ROUNDING


def _later(now: int, *when: float) -> float:
    """The first of the times after `now`."""
    return min((one for one in when if one > now), default=inf)
