"""A run that begins from a folder of Llama weights has the values of one that begins from their import."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint.manifest import CheckpointError
from parallel_core.engine import checkpoint
from parallel_core.engine.llama import import_weights
from parallel_core.engine.trainer import Trainer
from parallel_core.generation_request import inference
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks
from tests.parallel_core.generated_texts import REQUEST, generated
from tests.parallel_core.test_llama import SEQ, put, tensors


@pytest.mark.parametrize("split", [{}, {"tp": 2}, {"pp": 2, "micro_batches": 2}, {"dp": 2, "zero": 3}], ids=str)
def test_values_are_those_of_the_import(split: dict[str, int], tmp_path: Path) -> None:
    weights = put(tmp_path / "theirs", tensors(torch.float32))
    made, _ = import_weights(weights, tmp_path / "ours", SEQ)
    spec = RunSpec.model_validate({**made.model_dump(), "parallel": split, "train": {"global_batch": 2}})

    def use(trainer: Trainer) -> Any:
        checkpoint.load_weights(trainer, weights)
        direct = trainer.flat.values.clone()
        trainer.flat.values.zero_()
        checkpoint.load(trainer, folders.path_of(tmp_path / "ours", 0))
        return torch.equal(direct, trainer.flat.values), bool(direct.any())

    assert set(ranks.run(spec, partial(ranks.with_trainer, use=use), ranks.scratch())) == {(True, True)}


@pytest.mark.parametrize("split", [{"tp": 1}, {"tp": 2}, {"tp": 1, "pp": 2}], ids=str)
def test_text_is_that_of_the_import(split: dict[str, Any], tmp_path: Path) -> None:
    weights = put(tmp_path / "theirs", tensors(torch.float32))
    made, _ = import_weights(weights, tmp_path / "ours", SEQ)
    request: Any = {**REQUEST, "prompt": [1, 2, 3], "new": 8}
    direct, imported = (
        generated(inference(made.model_dump(mode="json"), **split, weights=name), path, request)[0][0]
        for name, path in (("theirs", weights), ("", folders.path_of(tmp_path / "ours", 0)))
    )
    assert direct["tokens"] == imported["tokens"] and len(set(direct["tokens"][0])) > 2


def test_weights_of_another_model_are_refused_by_a_rank(tmp_path: Path) -> None:
    """Also where they were exchanged after the worker had looked at them."""
    weights = put(tmp_path / "theirs", tensors(torch.float32))
    made, _ = import_weights(weights, tmp_path / "ours", SEQ)
    spec = RunSpec.model_validate({"model": {**made.model.model_dump(), "layers": 3}, "train": {"global_batch": 2}})

    def use(trainer: Trainer) -> str:
        with pytest.raises(CheckpointError) as told:
            checkpoint.load_weights(trainer, weights)
        return str(told.value)

    (said,) = ranks.run(spec, partial(ranks.with_trainer, use=use), ranks.scratch())
    assert said == "The weights theirs have layers=2; this run has layers=3."
