"""Idle times of zero-bubble schedules in closed form, and those of their programs, simulated."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from parallel_core.analysis.rows import last_end
from parallel_core.plan.split_bubbles import IDLE
from parallel_core.schedule import compute_only
from parallel_core.schedule.ir import Kind
from parallel_core.schedule.traits import TRAITS
from parallel_core.simulate import Costs, simulate

Whole = tuple[int, int, int]
EACH = (
    *((6, 6, 6), (4, 6, 4), (4, 10, 4), (4, 12, 2), (6, 8, 0), (2, 14, 6), (4, 8, 4), (4, 8, 6)),
    *((8, 4, 6), (2, 4, 10), (8, 2, 4), (12, 2, 2), (2, 2, 12), (0, 2, 4)),
)
"""F, B and W of a rank: equal, without and with recomputation, with frozen weights; and B not the longest."""
MORE = ((0, 0, 0), (2, 3, 2), (4, 0, 4), (-1, -2, 5), (3, 4, 0))
"""By how much the output layer's rank is longer."""
NO_MORE: Whole = (0, 0, 0)


def simulated(name: str, p: int, m: int, each: Whole, more: Whole = NO_MORE) -> tuple[int, int]:
    """(length of a step with a flush, less the work of the rank with the output layer; its length)."""
    chunks = TRAITS[name].chunks
    made = compute_only(name, p, m)
    f, b, w = (time // chunks for time in each)
    compute = dict(Costs.uniform(made.stages, f, b, w).compute)
    for kind, longer in zip((Kind.F, Kind.B, Kind.W), more, strict=True):
        compute[made.stages - 1, kind] += longer
    step = last_end(simulate(made, Costs(compute)))
    return step - m * (sum(each) + sum(more)), step


def closed(name: str, p: int, m: int, each: Whole, more: Whole = NO_MORE) -> float:
    def columns(times: Whole) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        f, b, w = np.array(times, float)
        return f, b, w

    return float(IDLE[name](np.array(float(p)), np.array(float(m)), columns(each), columns(more)))


def agree(name: str, sizes: Iterable[tuple[int, int]]) -> None:
    for p, m in sizes:
        for each in EACH:
            for more in MORE if name != "zb-v" else (NO_MORE,):
                if more[0] >= -each[0] and more[1] >= -each[1]:
                    assert closed(name, p, m, each, more) == simulated(name, p, m, each, more)[0], (p, m, each, more)


@pytest.mark.parametrize("name", IDLE)
def test_closed_forms_are_what_the_programs_take(name: str) -> None:
    agree(name, ((p, m) for p in (2, 3, 4) for m in {*range(p, 2 * p + 1), 3 * p}))


@pytest.mark.full
@pytest.mark.parametrize("name", IDLE)
def test_closed_forms_are_what_the_programs_take_on_long_pipelines(name: str) -> None:
    agree(name, ((p, m) for p in (5, 7, 8, 13, 20) for m in {p, p + 1, 3 * p // 2, 2 * p - 2, 2 * p - 1, 4 * p}))


SIZES = st.integers(2, 7).flatmap(lambda p: st.tuples(st.just(p), st.integers(p, 4 * p)))
TIMES = st.tuples(*[st.integers(0, 12)] * 3)


@given(st.sampled_from([*IDLE]), SIZES, TIMES)
def test_closed_forms_are_exact_for_any_times(name: str, sizes: tuple[int, int], of_chunk: Whole) -> None:
    f, b, w = (TRAITS[name].chunks * time for time in of_chunk)
    assert closed(name, *sizes, (f, b, w)) == simulated(name, *sizes, (f, b, w))[0]


@given(st.sampled_from(["zb-h1", "zb-h2"]), SIZES, TIMES, TIMES)
def test_an_output_layer_on_the_last_place_is_counted_exactly(
    name: str, sizes: tuple[int, int], each: Whole, more: Whole
) -> None:
    """Also where its weight gradients, which the last place defers longest, are much longer than others."""
    assert closed(name, *sizes, each, more) == simulated(name, *sizes, each, more)[0]


@given(SIZES, TIMES, TIMES, TIMES)
@example((3, 5), (2, 4, 12), (0, 0, 0), (2, 3, 0))
def test_an_output_layer_with_less_of_another_kind(
    sizes: tuple[int, int], each: Whole, less: Whole, more: Whole
) -> None:
    """Whole layers fewer beside it, as where embedding and output layer count as layers: exact for ZB-H1."""
    f, b, w = (max(-time, longer - shorter) for time, longer, shorter in zip(each, more, less, strict=True))
    assume(f + b + w >= 0)
    assert closed("zb-h1", *sizes, each, (f, b, w)) == simulated("zb-h1", *sizes, each, (f, b, w))[0]
    idle, step = simulated("zb-h2", *sizes, each, (f, b, w))
    assert 0 <= idle - closed("zb-h2", *sizes, each, (f, b, w)) <= (0.04 * step if f + b < 0 else 0)


@given(SIZES, TIMES, TIMES)
def test_an_output_layer_on_the_first_place_of_a_v(sizes: tuple[int, int], of_chunk: Whole, more: Whole) -> None:
    """Never counted too long; too short by 5 % of the step at most, where neither F nor B is longer than the rest."""
    f, b, w = (2 * time for time in of_chunk)
    assume(f <= b + w and b <= f + w)
    idle, step = simulated("zb-v", *sizes, (f, b, w), more)
    assert 0 <= idle - closed("zb-v", *sizes, (f, b, w), more) <= 0.05 * step


def test_with_few_micro_batches_they_idle_longer() -> None:
    """Eight stages, F, B and W equal: against 126 with 1F1B, which does not depend on the micro-batches."""
    eight, sixteen = ({name: closed(name, 8, m, (6, 6, 6)) for name in IDLE} for m in (8, 15))
    assert eight == {"zb-h1": 42, "zb-h2": 60, "zb-v": 42}
    assert sixteen == {"zb-h1": 42, "zb-h2": 42, "zb-v": 21}
