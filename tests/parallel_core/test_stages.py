"""A chain of layers cut by hand: stage times, messages, the slowest stage, and other splits for comparison."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.plan.layer_graph import GraphLayer, LayerGraph
from parallel_core.plan.network_levels import Level
from parallel_core.plan.partition import flop_weights
from parallel_core.plan.pipedream import Form, partition
from parallel_core.plan.stages import balanced_cut, cut_chain, even_cut, layers_of
from parallel_core.spec import ModelSpec
from tests.parallel_core.tables import FLOP_S, table

LAYERS = [GraphLayer(str(i), f, 2 * f, 10.0, 100.0) for i, f in enumerate((1.0, 1.0, 2.0, 4.0))]


def test_the_slowest_stage_sets_the_pace() -> None:
    chain = cut_chain(LAYERS, (2, 3), (1, 1, 2), 1e9)
    assert [stage.compute for stage in chain.stages] == [6, 6, 12]
    assert [stage.seconds for stage in chain.stages] == [6, 6, 6]
    assert [stage.sent for stage in chain.stages] == [10, 10, 0]
    assert (chain.seconds, chain.noam, chain.cuts, chain.replicas) == (6, 4, (2, 3), (1, 1, 2))


def test_gradients_and_messages_cost_as_the_forms_say() -> None:
    paper, released = (cut_chain(LAYERS, (3,), (2, 1), 10.0, form) for form in ("paper", "released"))
    assert paper.stages[0].seconds == max(12, 2 * 300 / 10) / 2
    assert released.stages[0].seconds == (12 + 4 * 300 / (10 * 2)) / 2
    assert paper.stages[0].message == 2.0


@pytest.mark.parametrize(
    ("replicas", "messages"), [((2, 1, 1), [2, 2]), ((1, 2, 4), [1, 1]), ((4, 4, 1), [0.5, 2]), ((1, 1, 4), [2, 2])]
)
def test_the_released_tool_divides_a_message_over_the_workers_of_the_next_stage_or_fewer_own_ones(
    replicas: tuple[int, ...], messages: list[float]
) -> None:
    """But for the first stage: what leaves it counts by the next alone."""
    chain = cut_chain(LAYERS, (1, 2), replicas, 10.0, "released")
    assert [stage.message for stage in chain.stages] == [*messages, 0]


@pytest.mark.parametrize("form", get_args(Form))
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 400), st.integers(0, 300)), min_size=2, max_size=7),
    st.integers(2, 6),
)
def test_pipedreams_optimum_costs_what_its_programme_says(
    form: Form, sizes: list[tuple[int, int, int]], workers: int
) -> None:
    layers = [GraphLayer(str(i), float(f), 2.0 * f, float(a), float(p)) for i, (f, a, p) in enumerate(sizes)]
    found = partition(LayerGraph.chain(layers), [Level(workers, 40.0)], form)
    cuts, replicas = [stage.layers[0] for stage in found.stages[1:]], [stage.replicas for stage in found.stages]
    assert cut_chain(layers, cuts, replicas, 40.0, form).seconds == pytest.approx(found.seconds)


def test_a_message_can_set_the_pace() -> None:
    assert cut_chain(LAYERS, (2,), (1, 1), 0.1).seconds == 200


@pytest.mark.parametrize(("cuts", "replicas"), [((0,), (1, 1)), ((2, 2), (1, 1, 1)), ((4,), (1, 1)), ((2,), (1,))])
def test_cuts_that_cannot_be(cuts: tuple[int, ...], replicas: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"cuts must rise|as many numbers"):
        cut_chain(LAYERS, cuts, replicas, 1.0)


def test_megatron_shares_out_blocks() -> None:
    units = ModelSpec(layers=5).units()
    cuts = even_cut(units, 2)
    assert [units[cut] for cut in cuts] == ["block.3.attn"]
    with pytest.raises(ValueError, match="5 blocks cannot"):
        even_cut(units, 6)


def test_the_balanced_cut_is_exact() -> None:
    assert balanced_cut(LAYERS, 2) == (3,)


def test_layers_come_from_the_busy_rows_of_a_table() -> None:
    model = ModelSpec(layers=1, hidden=16, heads=2, seq=8)
    found = layers_of(table(model, slower=1.5), 6)
    assert [layer.name for layer in found] == model.units()
    for layer, flops in zip(found, flop_weights(model), strict=True):
        assert layer.forward == pytest.approx(1.5 * 6 * FLOP_S * flops)
        assert layer.backward == pytest.approx(2 * layer.forward)
        assert (layer.activation, layer.parameters) == (4 * 6 / 16, 4)
