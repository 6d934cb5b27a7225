"""Schedules found by search: valid, within their memory, and never worse than the known ones."""

from __future__ import annotations

import pytest

from parallel_core.plan.bubble_rates import Times, bubble_rate, find, handmade
from parallel_core.schedule.check import check
from parallel_core.schedule.passes.reduce import reduce_and_step
from parallel_core.schedule.peaks import peak_in_flight

TIMES = Times(1000, 980, 510, 30)


@pytest.mark.parametrize(("pp", "micro_batches", "limit"), [(4, 12, 4), (4, 12, 8), (3, 5, 2), (8, 8, 16), (2, 1, 1)])
def test_a_found_order_is_valid_and_keeps_within_its_memory(pp: int, micro_batches: int, limit: int) -> None:
    made = find(pp, micro_batches, TIMES, limit)
    check(reduce_and_step(made))
    assert max(peak_in_flight(made)) <= limit


def test_more_memory_never_makes_it_longer() -> None:
    rates = [bubble_rate(find(4, 16, TIMES, limit), TIMES) for limit in (2, 4, 8)]
    assert rates[0] > rates[1] > rates[2]
    assert rates[1] <= bubble_rate(handmade("zb-h1", 4, 16), TIMES)
    assert rates[2] <= bubble_rate(handmade("zb-h2", 4, 16), TIMES)


def test_no_memory_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one micro-batch"):
        find(4, 8, TIMES, 0.5)
