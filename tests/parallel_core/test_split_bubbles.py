"""Idle times of zero-bubble schedules in closed form, and those of their programs, simulated."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from parallel_core.analysis.rows import last_end
from parallel_core.plan.split_bubbles import IDLE
from parallel_core.schedule import compute_only
from parallel_core.schedule.traits import TRAITS
from parallel_core.simulate import Costs, simulate

USUAL = ((6, 6, 6), (4, 6, 4), (4, 10, 4), (4, 12, 2), (6, 8, 0), (2, 14, 6), (4, 8, 4), (4, 8, 6))
"""F, B and W of a rank: equal, without and with recomputation, with frozen weights, with W longer than F."""
OTHER = ((8, 4, 6), (2, 4, 10), (8, 2, 4))
"""B is not the longest."""


def simulated(name: str, p: int, m: int, times: tuple[int, int, int]) -> int:
    """The length of a step with a flush, less the work of a rank."""
    chunks = TRAITS[name].chunks
    made = compute_only(name, p, m)
    each = Costs.uniform(made.stages, *(time // chunks for time in times))
    return last_end(simulate(made, each)) - m * sum(times)


def agree(name: str, sizes: Iterable[tuple[int, int]]) -> None:
    for p, m in sizes:
        for times in USUAL + OTHER * (name != "zb-v"):
            found = IDLE[name](*np.array([p, m, *times], float))
            assert found == simulated(name, p, m, times), (p, m, times)


@pytest.mark.parametrize("name", IDLE)
def test_closed_forms_are_what_the_programs_take(name: str) -> None:
    agree(name, ((p, m) for p in (2, 3, 4, 7) for m in {*range(p, 2 * p + 2), 3 * p}))


@pytest.mark.full
@pytest.mark.parametrize("name", IDLE)
def test_closed_forms_are_what_the_programs_take_on_long_pipelines(name: str) -> None:
    agree(name, ((p, m) for p in (5, 6, 8, 13, 20, 32) for m in {p, p + 1, 3 * p // 2, 2 * p - 2, 2 * p - 1, 4 * p}))


def test_zb_v_idles_no_less_where_f_or_w_is_longest() -> None:
    for p, m in ((4, 4), (4, 5), (5, 9)):
        for times in OTHER:
            assert 0 < IDLE["zb-v"](*np.array([p, m, *times], float)) <= simulated("zb-v", p, m, times)


def test_with_few_micro_batches_they_idle_longer() -> None:
    """Eight stages, F, B and W equal: against 126 with 1F1B, which does not depend on the micro-batches."""
    eight, sixteen = (
        {name: float(idle(*np.array([8, m, 6, 6, 6], float))) for name, idle in IDLE.items()} for m in (8, 15)
    )
    assert eight == {"zb-h1": 42, "zb-h2": 60, "zb-v": 42}
    assert sixteen == {"zb-h1": 42, "zb-h2": 42, "zb-v": 21}
