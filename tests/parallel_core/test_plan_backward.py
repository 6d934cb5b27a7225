"""The predicted peak compared with the meter's, at the moments of a GPT's backward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parallel_core.local import LocalRunner
from tests.parallel_core.metered import assert_predicted

GPT = {"layers": 4, "hidden": 64, "heads": 4, "seq": 64, "vocab": 256}
SHARED = {"tp": 2, "sequence": True}


@pytest.mark.parametrize("more", [{"positions": "rope"}, {"kv_heads": 2}], ids=["rope", "shared keys"])
def test_a_mix_that_w_needs_is_there_when_gradients_of_queries_keys_and_values_become_one(
    runner: LocalRunner, tmp_path: Path, more: dict[str, Any]
) -> None:
    split = {**SHARED, "pp": 2, "micro_batches": 4, "schedule": "zb-h1", "recompute": "selective"}
    assert_predicted(runner, tmp_path, GPT | more, split, "fp32", within=0.003)


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_the_gradient_of_an_output_is_there_once(runner: LocalRunner, tmp_path: Path, recompute: str) -> None:
    """This rank's rows and, while they are gathered, those of all ranks: it goes through the residual connection and
    the layer.
    """
    model = {**GPT, "layers": 2, "seq": 32, "positions": "rope", "activation": "swiglu", "norm": "rmsnorm"}
    assert_predicted(runner, tmp_path, model, {**SHARED, "recompute": recompute}, "fp32", within=0.01)
