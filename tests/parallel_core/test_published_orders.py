"""Our schedule search compared with the zero-bubble paper's automatic scheduler, for the same times and memory."""

from __future__ import annotations

import pytest

from parallel_core.plan.cluster.published_orders import problem_of, searched
from parallel_core.plan.cluster.store import rows
from parallel_core.plan.cluster.zero_bubble import models
from parallel_core.plan.orders.problem import OrderError
from parallel_core.plan.orders.search import find
from parallel_core.schedule.check import check
from parallel_core.schedule.ir import Schedule
from parallel_core.schedule.passes.communicate import communicate
from parallel_core.schedule.passes.reduce import reduce_and_step

FIRST = rows("zero_bubble_2024")[0]
EFFORT = 20_000
LONG = ("6.2B", "14.6B", "28.3B")
LIMITS = ("ZB-1p", "ZB-2p")


@pytest.mark.parametrize("model", [pytest.param(m, marks=pytest.mark.full) if m in LONG else m for m in models()])
def test_no_published_order_is_shorter_at_equal_memory(model: str) -> None:
    found = searched(model)
    assert {(row.micro_batches, row.name) for row in found} == {
        (row["micro_batches"], name) for row in rows("zero_bubble_2024") if row["model"] == model for name in LIMITS
    }
    for row in found:
        print(f"{model} m={row.micro_batches} {row.name}: {row.found:.4f} against {row.published:.4f}")
        assert row.least <= row.found
        assert not row.longer, row


def _most(schedule: Schedule, needed: float) -> float:
    """Largest number of micro-batches held over all ranks: each counts fully from F to B, and with `needed` from B to
    W.
    """
    peak = 0.0
    for program in schedule.programs:
        held = 0.0
        for op in program:
            held += {"F": 1.0, "B": needed - 1, "W": 0.0, "BW": 0.0}[op.kind.name]
            peak = max(peak, held)
            held -= {"F": 0.0, "B": 0.0, "W": needed, "BW": 1.0}[op.kind.name]
    return peak


@pytest.mark.full
@pytest.mark.parametrize("micro_batches", [24, 64])
def test_less_room_than_1f1b_is_kept_to_and_costs_time(micro_batches: int) -> None:
    """With 8 stages 1F1B keeps 8 micro-batches. Less memory gives longer schedules, but valid ones, down to one
    micro-batch.
    """
    lengths = []
    for limit in (1.0, 2.0, 4.0, 6.5, 8.0):
        problem = problem_of({**FIRST, "micro_batches": micro_batches}, limit)
        found = find(problem, EFFORT)
        check(reduce_and_step(communicate(found.schedule)))
        assert _most(found.schedule, problem.needed[0]) <= limit + 1e-9
        assert found.bound <= found.length
        lengths.append(found.length)
    assert lengths == sorted(set(lengths), reverse=True)


@pytest.mark.parametrize("limit", [0.0, 0.99, -1.0])
def test_less_than_one_micro_batch_is_refused(limit: float) -> None:
    with pytest.raises(OrderError, match=f"rank 0 must keep at least 1; {limit:g} is too little"):
        problem_of(FIRST, limit)
