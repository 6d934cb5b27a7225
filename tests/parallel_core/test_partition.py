"""Stage cuts: the smallest possible largest stage, and the FLOPs used as weights."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.plan.partition import flop_weights, min_max_cut, min_max_cut_over
from parallel_core.spec import ModelSpec


def sums(weights: list[int], cuts: tuple[int, ...]) -> list[int]:
    return [sum(weights[a:b]) for a, b in pairwise((0, *cuts, len(weights)))]


@given(st.data(), st.lists(st.integers(0, 9), min_size=1, max_size=9))
def test_no_other_cut_has_a_smaller_largest_stage(data: st.DataObject, weights: list[int]) -> None:
    stages = data.draw(st.integers(1, len(weights)))
    cuts = min_max_cut(weights, stages)
    every = combinations(range(1, len(weights)), stages - 1)
    assert len(cuts) == stages - 1
    assert all(a < b for a, b in pairwise((0, *cuts, len(weights))))
    assert max(sums(weights, cuts)) == min(max(sums(weights, other)) for other in every)


@given(st.data(), st.lists(st.integers(0, 9), min_size=1, max_size=7))
def test_no_other_cut_has_a_smaller_largest_stage_a_device(data: st.DataObject, weights: list[int]) -> None:
    devices = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=len(weights))))

    def largest(cuts: tuple[int, ...]) -> float:
        return max(total / own for total, own in zip(sums(weights, cuts), devices, strict=True))

    cuts = min_max_cut_over(tuple(weights), devices)
    assert all(a < b for a, b in pairwise((0, *cuts, len(weights))))
    assert largest(cuts) == min(map(largest, combinations(range(1, len(weights)), len(devices) - 1)))


def test_ties_leave_the_first_stages_light() -> None:
    assert sums([1] * 8, min_max_cut([1] * 8, 5)) == [1, 1, 2, 2, 2]


def test_the_head_weighs_as_much_as_its_vocabulary() -> None:
    model = ModelSpec(layers=2, hidden=8, heads=2, seq=4, vocab=1000)
    embed, attention, mlp, *_, head = flop_weights(model)
    assert (embed, attention, mlp) == (4 * 8, 8 * 4 * 64 + 4 * 16 * 8, 16 * 4 * 64)
    assert head == 2 * 4 * 8 * 1000
    assert min_max_cut(flop_weights(model), 2) == (5,)


def test_weights_name_every_layer() -> None:
    model = ModelSpec(layers=3)
    assert len(flop_weights(model)) == len(model.units())


@pytest.mark.parametrize("stages", [0, 4])
def test_impossible_numbers_of_stages(stages: int) -> None:
    with pytest.raises(ValueError, match=f"cannot cut 3 layers into {stages} stages"):
        min_max_cut([1, 2, 3], stages)


def test_the_largest_model_is_cut_at_once() -> None:
    weights = flop_weights(ModelSpec(layers=1024, hidden=12288, heads=96, seq=2048, vocab=51200))
    assert len(min_max_cut(weights, 2050)) == 2049
