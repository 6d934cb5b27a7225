"""How short a step can be at all: what no order can beat, and so proves a found one right where they meet."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, isfinite

from parallel_core.plan.orders.problem import Problem


def lower_bound(problem: Problem) -> int:
    """Ns below which no order of `problem` can be.

    The largest, over ranks, of four: its own work; its work outside of the forwards that memory admits before the first
    gradient can be back; what its micro-batches occupy, each from F to B at least as long as the way to the loss and
    back, over its limit; and (with a barrier) its F and B, and then the way of the last gradient to stage 0.
    """
    return max(_Rank(problem, rank).bound() for rank in range(problem.ranks))


@dataclass(frozen=True)
class _Rank:
    problem: Problem
    rank: int

    @property
    def own(self) -> tuple[int, ...]:
        return self.problem.stages_of[self.rank]

    def bound(self) -> int:
        own = max(self._work(), self._returned() + self._work() - self._ahead(), self._occupied())
        return max(self._head() + own, self._head() + self._chain()) if self.problem.barrier else own

    def _backward(self, stage: int) -> int:
        """Until its gradient goes on."""
        return min(self.problem.grad[stage], self.problem.whole[stage])

    def _both(self, stage: int) -> int:
        return min(self.problem.grad[stage] + self.problem.weight[stage], self.problem.whole[stage])

    def _work(self) -> int:
        problem = self.problem
        return problem.micro_batches * sum(problem.forward[s] + self._both(s) for s in self.own)

    def _head(self) -> int:
        """Before which nothing reaches the rank."""
        first, problem = self.own[0], self.problem
        return sum(problem.forward[:first]) + sum(problem.message[:first])

    def _returned(self) -> int:
        """From the rank's first F to its first backward, which its highest stage does."""
        problem, first, top = self.problem, self.own[0], self.own[-1]
        back = sum(self._backward(s) for s in range(top + 1, problem.stages)) + sum(problem.message[top:])
        return sum(problem.forward[first:]) + sum(problem.message[first:]) + back

    def _ahead(self) -> int:
        """The most forward work that fits before the first backward."""
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
        """Unit-nanoseconds that one micro-batch occupies on a stage, at least."""
        problem = self.problem
        behind = range(stage + 1, problem.stages)
        away = sum(problem.forward[s] + self._backward(s) for s in behind) + 2 * sum(problem.message[stage:])
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
