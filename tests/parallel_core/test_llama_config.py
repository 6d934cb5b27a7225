"""The config.json of a Llama: fields that this engine supports are imported, others are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parallel_core.checkpoint.llama_weights import CONFIG, model_of
from parallel_core.checkpoint.manifest import CheckpointError
from parallel_core.engine.llama import import_weights
from tests.parallel_core.test_llama import CONFIGURED, SEQ, put, tensors


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"model_type": "mistral"}, "model_type='mistral'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, r"rope_scaling\.rope_type='llama3'; this engine has 'default'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, r"rope_scaling\.type='linear'"),
        ({"rope_scaling": "linear"}, "rope_scaling='linear'; it must be null or an object"),
        (
            {"rope_parameters": {"rope_theta": 500_000.0, "rope_type": "llama3", "factor": 8.0}},
            r"rope_parameters\.rope_type='llama3'; this engine has 'default'",
        ),
        (
            {"rope_parameters": {"rope_theta": 500_000.0, "partial_rotary_factor": 0.5}},
            r"rope_parameters\.partial_rotary_factor=0\.5; this engine has 1",
        ),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor=0\.5; this engine has 1"),
        (
            {"rope_parameters": {"rope_theta": 10_000.0}},
            r"rope_theta=500000 and rope_parameters\.rope_theta=10000; they must be the same",
        ),
        ({"rope_theta": "wide"}, "rope_theta='wide'; it must be a number"),
        ({"rope_theta": None, "rope_parameters": {"rope_type": "default"}}, "rope_parameters without rope_theta"),
        ({"rms_norm_eps": 1e-6}, "rms_norm_eps=1e-06"),
        ({"head_dim": 16}, "head_dim=16"),
        ({"num_attention_heads": 0}, "a size that is no number of a model"),
        ({"hidden_size": "wide"}, "a size that is no number of a model"),
        ({"rope_theta": 0.5}, "no model of this engine. model.rope_base: Must be at least 1; got 0.5"),
        ({"vocab_size": 128}, r"have shape \(64, 32\); config.json says \(128, 32\)"),
    ],
)
def test_another_model_is_refused(config: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=told):
        import_weights(put(tmp_path, tensors(), **config), tmp_path / "ours", SEQ)


@pytest.mark.parametrize(
    ("rope", "base"),
    [
        # as written by transformers 5
        ({"rope_parameters": {"rope_theta": 500_000.0, "rope_type": "default"}}, 500_000.0),
        ({"rope_theta": 500_000.0, "rope_scaling": None}, 500_000.0),
        ({"rope_theta": 500_000, "rope_parameters": {"rope_theta": 500_000.0}}, 500_000.0),
        ({"rope_theta": 500_000.0, "rope_parameters": None, "rope_scaling": {"rope_type": "default"}}, 500_000.0),
        ({}, 10_000.0),  # the default of the first Llama models
    ],
    ids=str,
)
def test_the_base_of_the_angles_is_found_wherever_it_stands(rope: dict[str, Any], base: float) -> None:
    config = {key: value for key, value in CONFIGURED.items() if key != "rope_theta"}
    assert model_of(config | rope, SEQ)["rope_base"] == base


@pytest.mark.parametrize("text", ["[]", "5", "[" * 100_000], ids=["a list", "a number", "deep lists"])
def test_a_description_of_nothing_is_refused(text: str, tmp_path: Path) -> None:
    (put(tmp_path, tensors()) / CONFIG).write_text(text)
    with pytest.raises(CheckpointError, match=CONFIG):
        import_weights(tmp_path, tmp_path / "ours", SEQ)
