"""The fork server has imported what its ranks use, so that no rank spends time on importing a library."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parallel_core.local import LocalRunner
from parallel_core.spec import RunSpec

GPT = {"layers": 2, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64}
LARGE, FEW = {"torch", "numpy", "sympy"}, 2
"""A library consists of hundreds of modules; torch's profiler imports one of its own only when it is used."""


@pytest.fixture(scope="module")
def importing() -> Iterator[LocalRunner]:
    with LocalRunner((sys.executable, "-m", "tests.parallel_core.importing_ranks")) as opened:
        yield opened


@pytest.mark.parametrize(
    ("model", "split", "more"),
    [
        (GPT, {}, {"train": {"precision": "fp16"}}),
        ({"kind": "gnmt", "layers": 2, "hidden": 16, "seq": 8, "vocab": 64}, {"pp": 2, "micro_batches": 2}, {}),
        ({"kind": "resnet50", "width": 4}, {"dp": 2, "zero": 3}, {"train": {"checkpoint_every": 1}}),
        (GPT, {"dp": 2, "zero": 3, "zero_backend": "fully_shard"}, {}),
        (GPT, {"tp": 2, "recompute": "full"}, {"train": {"deterministic": True}}),
        (GPT, {}, {"trace": {"profile_steps": [1]}}),
    ],
    ids=str,
)
def test_ranks_import_no_library(
    importing: LocalRunner, tmp_path: Path, model: dict[str, Any], split: dict[str, Any], more: dict[str, Any]
) -> None:
    train = {"steps": 3, "warmup_steps": 1, "global_batch": 8, **more.get("train", {})}
    spec = RunSpec.model_validate({**more, "model": model, "parallel": split, "train": train})
    outcome = importing.run(spec, tmp_path)
    assert outcome.ok, outcome.failure()
    imported = list(tmp_path.glob("imported-*"))
    assert len(imported) == spec.parallel.world
    names = {name for path in imported for name in path.read_text().splitlines()}
    found = [name for name in sorted(names) if name.partition(".")[0] in LARGE]
    assert len(found) <= FEW, found
