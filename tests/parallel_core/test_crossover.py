"""Tensor or pipeline parallelism: the limits of the closed forms, and the crossover between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.plan.cluster.problems import Unphysical
from parallel_core.plan.crossover import AROUND, RANGES, Along, CrossoverCase, bounds, flip, limits

CASE = CrossoverCase(4096, 32, 2048, 64, 16, 8, 150e12, 25e9)
FREE = replace(CASE, bandwidth=1e15, alpha=0.0)


def test_with_free_links() -> None:
    """With free links TP is ideal, and a pipeline keeps its bubble: n m / (m + n - 1) (Huang et al. 2019)."""
    assert FREE.tensor() == pytest.approx(8, rel=1e-3)
    assert FREE.pipeline() == pytest.approx(8 * 16 / (16 + 7), rel=1e-3)
    assert replace(CASE, devices=1).tensor() == replace(CASE, devices=1).pipeline() == 1


def test_what_one_measure_does() -> None:
    for along in RANGES:
        less, more = (CASE.at(along, factor * getattr(CASE, along)) for factor in (0.5, 2))
        if along != "micro_batches":
            assert less.tensor() < CASE.tensor() < more.tensor()
        assert less.pipeline() < CASE.pipeline() < more.pipeline()


@given(st.sampled_from(tuple(RANGES)), st.floats(1e8, 1e12), st.sampled_from((64, 1024, 8192)), st.sampled_from((2, 8)))
def test_both_are_equally_fast_at_the_flip(along: Along, bandwidth: float, hidden: int, devices: int) -> None:
    case = replace(CASE, bandwidth=bandwidth, hidden=hidden, devices=devices)
    turn = flip(case, along)
    if turn is None:
        ends = [case.at(along, end) for end in bounds(case, along)]
        assert len({end.tensor() > end.pipeline() for end in ends}) == 1
    else:
        there = case.at(along, turn)
        assert there.tensor() == pytest.approx(there.pipeline(), rel=1e-6)


def test_limits_are_what_many_devices_tend_to() -> None:
    found = {one.name: one.speedup for one in limits(CASE)}
    assert found["DP"] == CASE.batch
    assert found["PP"] == pytest.approx(32 * 16 / (32 + 15))
    assert replace(FREE, devices=10_000).pipeline() == pytest.approx(found["PP"], rel=1e-3)
    assert found["TP"] >= max(replace(CASE, devices=1 << i).tensor() for i in range(6))


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (replace(CASE, heads=96), "most with 24 devices, of the widths that divide 96 heads: beyond, "),
        (replace(CASE, alpha=1.0), "most with 1 device, of the widths that divide 32 heads: beyond, "),
        (replace(CASE, heads=20), "with 20 devices: a tensor group divides the 20 heads"),
        (replace(CASE, heads=31), "with 31 devices: a tensor group divides the 31 heads"),
        (FREE, "with 32 devices: a tensor group divides the 32 heads"),
    ],
)
def test_why_tensor_ranks_are_no_faster_is_true(case: CrossoverCase, words: str) -> None:
    tensor = limits(case)[1]
    assert tensor.formula.startswith(words)
    widths = [n for n in range(1, case.heads + 1) if case.heads % n == 0]
    assert tensor.speedup == max(replace(case, devices=n).tensor() for n in widths)


def test_what_cannot_be_is_named() -> None:
    wrong: dict[str, Any] = {"bandwidth": 0.0, "flops": -1.0, "layers": 0, "alpha": float("nan")}
    for field, value in wrong.items():
        with pytest.raises(Unphysical, match=field):
            limits(replace(CASE, **{field: value}))


@pytest.mark.parametrize("batch", [1, 3, 64, 4096])
def test_a_batch_has_at_most_as_many_micro_batches_as_sequences(batch: int) -> None:
    with pytest.raises(Unphysical, match=rf"micro_batches: Must be at most the batch, {batch}; got {batch + 1}\."):
        flip(replace(CASE, batch=batch, micro_batches=batch + 1), "hidden")
    assert bounds(replace(CASE, batch=batch), "micro_batches") == (1, batch)


@pytest.mark.parametrize(("hidden", "bandwidth"), [(16_384, 3e9), (1 << 20, 25e9), (8, 25e9)])
def test_a_flip_is_found_wherever_a_chart_shows_it(hidden: int, bandwidth: float) -> None:
    """Wider models than are trained may be asked about, too, and their charts go to 16 times the width."""
    case = replace(CASE, hidden=hidden, bandwidth=bandwidth)
    around = [case.at("hidden", max(1.0, hidden * factor)) for factor in (1 / AROUND, 1, AROUND)]
    turn = flip(case, "hidden")
    assert turn is not None and (turn > 65_536) == (bandwidth < 25e9)
    assert all((one.tensor() > one.pipeline()) == (one.hidden > turn) for one in around)


def test_no_flip_is_found_beyond_the_batch() -> None:
    """The pipeline would be ahead from four micro-batches on."""
    assert flip(CASE, "micro_batches") == pytest.approx(3.5, abs=0.5)
    small = replace(CASE, batch=3, micro_batches=3)
    assert flip(small, "micro_batches") is None and small.tensor() > small.pipeline()
    many = replace(CASE, batch=1 << 18, micro_batches=64, bandwidth=1e13)
    turn = flip(many, "micro_batches")
    assert turn is not None and turn > 1024
