"""Orders found by our search compared with the zero-bubble paper's automatic scheduler (Qi et al. 2024a, Tables 5 and
6).

Both get the same input: the paper's profiled T_F, T_B, T_W and T_comm of a row, and room for p or 2p micro-batches on a
rank. Rates count as in the paper (section 5.3): (cost - m (T_F + T_B + T_W)) / cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from parallel_core.plan.cluster.store import rows
from parallel_core.plan.orders.problem import Problem
from parallel_core.plan.orders.search import find
from parallel_core.schedule.traits import Shape

LIMITS = {"ZB-1p": 1, "ZB-2p": 2}
"""Micro-batches that a rank may keep, in units of p."""
EFFORT = 100_000
"""Operations that a search times: 0.1 s to 2 s for the longest rows."""
PLACES = 1e-4
"""Precision of the published rates: percent with two decimals."""
_NS = 1_000_000
"""Nanoseconds of a millisecond."""


@dataclass(frozen=True, slots=True)
class Searched:
    """One row at one limit. Rates are shares of the step: the published scheduler's, ours, and our lower bound for any
    order with these times."""

    model: str
    stages: int
    micro_batches: int
    name: str
    published: float
    found: float
    least: float

    @property
    def points(self) -> float:
        """Found less published rate, in percentage points."""
        return 100 * (self.found - self.published)

    @property
    def equal(self) -> bool:
        """Whether the rates agree within the precision of the published one."""
        return abs(self.found - self.published) <= PLACES

    @property
    def longer(self) -> bool:
        """Whether our order is worse than the published one, beyond its precision."""
        return self.found > self.published + PLACES


@lru_cache(maxsize=16)
def searched(model: str) -> tuple[Searched, ...]:
    """Every row of the model at every limit, in the tables' order."""
    return tuple(
        _searched(row, name) for row in rows("zero_bubble_2024") if row["model"] == model for name in LIMITS
    )  # fmt: skip


def problem_of(row: dict[str, Any], limit: float, shape: Shape = "line") -> Problem:
    """The problem that the paper's scheduler solved: profiled times of a row, and `limit` micro-batches a rank."""
    profiled = row["profiled_ms"]
    f, b, w, message = (profiled[name] * _NS for name in ("F", "B", "W", "comm"))
    p, m = row["pp"], row["micro_batches"]
    return Problem.uniform(p, m, (f, b, w), message, limit, shape, needed_by_weights(row), barrier=False)


def needed_by_weights(row: dict[str, Any]) -> float:
    """The share of what F keeps that W still needs: 32 of 34 + 5as/h bytes (Qi et al. 2024a, Table 1)."""
    return float(32 / (34 + 5 * row["heads"] * row["seq"] / row["hidden"]))


def _searched(row: dict[str, Any], name: str) -> Searched:
    problem = problem_of(row, LIMITS[name] * row["pp"])
    made = find(problem, EFFORT)
    work = row["micro_batches"] * (problem.forward[0] + problem.grad[0] + problem.weight[0])
    found, least = (max(0.0, 1 - work / length) for length in (made.length, made.bound))
    return Searched(
        row["model"], row["pp"], row["micro_batches"], name, row["bubble"][name], found, least
    )  # fmt: skip
