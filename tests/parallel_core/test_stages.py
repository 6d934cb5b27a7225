"""A chain of layers cut by hand: stage times, messages, the slowest stage, and other splits for comparison."""

from __future__ import annotations

import pytest

from parallel_core.plan.layer_graph import GraphLayer
from parallel_core.plan.partition import flop_weights
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
    assert (paper.stages[0].message, released.stages[0].message) == (2.0, 1.0)


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
