"""PipeDream's published speedups: the models are those of the papers, and the optimizer decides as it did there."""

from __future__ import annotations

import pytest

from parallel_core.plan.cluster import pipedream_2019
from parallel_core.plan.cluster.store import rows, table

KNOWN = {"VGG-16": (15.47e9, 138_357_544), "ResNet-50": (4.089e9, 25_557_032), "AlexNet": (0.714e9, 61_100_840)}
"""Multiply-adds for an image of 224 pixels, and parameters."""


@pytest.mark.parametrize("model", KNOWN)
def test_layers_add_up_to_the_model(model: str) -> None:
    layers = table(pipedream_2019.NAME)["models"][model]["layers"]
    work, parameters = KNOWN[model]
    assert sum(layer[1] for layer in layers) == pytest.approx(work, rel=1e-3)
    assert sum(layer[3] for layer in layers) == parameters


def test_each_published_row_has_a_prediction() -> None:
    found = pipedream_2019.speedups()
    assert [line.row.measured for line in found] == [line["speedup"] for line in rows(pipedream_2019.NAME)]
    assert all(line.row.predicted >= 1 for line in found), "data parallelism alone is among its choices"


def test_only_a_network_that_is_too_slow_makes_it_a_pipeline() -> None:
    found = {line.row.key.partition(":")[0]: line for line in pipedream_2019.speedups()}
    assert all(found[f"ResNet-50, cluster {cluster}"].found == "16" for cluster in "AB")
    for model in ("VGG-16", "AlexNet"):
        assert abs(found[f"{model}, cluster A"].row.error) < 0.2
        assert found[f"{model}, cluster A"].found.endswith("-1-1-2"), (
            "the linear layers, which hold the weights, get few workers"
        )
        assert found[f"{model}, cluster B"].row.error < -0.4, (
            "its formula hides the communication that was measured there"
        )
