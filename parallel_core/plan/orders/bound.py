"""A lower bound on the length of any order; an order that reaches it is optimal."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, isfinite

from parallel_core.plan.orders.problem import Problem


def lower_bound(problem: Problem) -> int:
    """Nanoseconds below which no order of `problem` can be.

    The largest, over ranks, of four bounds:
    - the rank's own work
    - the time to the first returning gradient, plus its work beyond the forwards that memory admits until then
    - the memory x time that its micro-batches occupy, each from F to B at least as long as the way to the loss and
      back, divided by its limit
    - with a barrier: its F and B, then the way of the last gradient to stage 0
    """
    return max(_Rank(problem, rank).bound() for rank in range(problem.ranks))


@dataclass(frozen=True)
class _Rank:
    """Bounds of one rank, in ns."""

    problem: Problem
    rank: int

    @property
    def own(self) -> tuple[int, ...]:
        return self.problem.stages_of[self.rank]

    def bound(self) -> int:
        own = max(self._work(), self._returned() + self._work() - self._ahead(), self._occupied())
        return max(self._head() + own, self._head() + self._chain()) if self.problem.barrier else own

    def _backward(self, stage: int) -> int:
        """Shortest time until the stage's input gradient can be sent on."""
        return min(self.problem.grad[stage], self.problem.whole[stage])

    def _both(self, stage: int) -> int:
        """Shortest whole backward of the stage, as B + W or BW."""
        return min(self.problem.grad[stage] + self.problem.weight[stage], self.problem.whole[stage])

    def _work(self) -> int:
        problem = self.problem
        return problem.micro_batches * sum(problem.forward[s] + self._both(s) for s in self.own)

    def _head(self) -> int:
        """Earliest time at which an activation can reach the rank."""
        first, problem = self.own[0], self.problem
        return sum(problem.forward[:first]) + sum(problem.message[:first])

    def _returned(self) -> int:
        """Time from the rank's first F to its first backward, which runs on its last stage."""
        problem, first, top = self.problem, self.own[0], self.own[-1]
        back = sum(self._backward(s) for s in range(top + 1, problem.stages)) + sum(problem.message[top:])
        return sum(problem.forward[first:]) + sum(problem.message[first:]) + back

    def _ahead(self) -> int:
        """The most forward work that memory admits before the first backward."""
        problem, limit = self.problem, self.problem.limit[self.rank]
        total = problem.micro_batches * sum(problem.forward[s] for s in self.own)
        if not isfinite(limit) or not all(problem.kept[s] for s in self.own):
            return total
        if len(self.own) == 1:
            (stage,) = self.own
            return min(total, floor(limit / problem.kept[stage] + 1e-9) * problem.forward[stage])
        return min(total, ceil(max(problem.forward[s] / problem.kept[s] for s in self.own) * limit))

    def _occupied(self) -> int:
        problem, limit = self.problem, self.problem.limit[self.rank]
        if not isfinite(limit):
            return 0
        return floor(problem.micro_batches * sum(map(self._area, self.own)) / limit)

    def _area(self, stage: int) -> float:
        """Memory x time (units of `kept` x ns) that one micro-batch occupies on a stage, at least."""
        problem = self.problem
        later = range(stage + 1, problem.stages)
        away = sum(problem.forward[s] + self._backward(s) for s in later) + 2 * sum(problem.message[stage:])
        kept, needed = problem.kept[stage], problem.needed[stage]
        split = kept * problem.grad[stage] + needed * problem.weight[stage]
        return kept * (problem.forward[stage] + away) + min(split, kept * problem.whole[stage])

    def _chain(self) -> int:
        problem, first = self.problem, self.own[0]
        each = sum(problem.forward[s] + self._backward(s) for s in self.own)
        if first == 0:
            return problem.micro_batches * each + self._both(0) - self._backward(0)
        down = sum(self._backward(s) for s in range(1, first)) + sum(problem.message[:first]) + self._both(0)
        return problem.micro_batches * each + down
