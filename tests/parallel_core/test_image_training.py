"""Models of images learn from a user's own file: under data parallelism, and from where a run ended."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_core.checkpoint import folder as folders
from parallel_core.data.image_file import pack
from parallel_core.local import LocalRunner
from parallel_core.spec import RunSpec

CLASSES = 3


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with 90 images of noise, of 8 x 8 pixels, whose class is the channel that is brighter."""
    folder, random = tmp_path_factory.mktemp("data"), np.random.default_rng(5)
    labels = random.integers(0, CLASSES, 90)
    images = random.integers(0, 150, (90, CLASSES, 8, 8))
    images[np.arange(90), labels] += 100
    pack([images.astype(np.uint8)], labels, folder / "bright.images")
    return folder


def spec_of(model: dict[str, Any], steps: int, dp: int = 1, **train: Any) -> RunSpec:
    """Holds the last 18 images out."""
    held_out = {"eval_every": steps, "eval_samples": 18}
    return RunSpec.model_validate(
        {
            "model": {"channels": 3, "classes": CLASSES, **model},
            "parallel": {"dp": dp},
            "train": {
                "corpus": "images:bright",
                "steps": steps,
                "warmup_steps": 1,
                "global_batch": 16,
                "lr": 3e-3,
                **held_out,
                **train,
            },
            "trace": {"memory": False, "reference": False},
        }
    )


def test_replicas_learn_the_classes_of_a_file(runner: LocalRunner, data: Path, tmp_path: Path) -> None:
    mlp = {"kind": "mlp", "layers": 1, "hidden": 32}
    outcomes = [runner.run(spec_of(mlp, 30, dp), tmp_path / str(dp), corpora=data) for dp in (1, 2)]
    assert [outcome.failure() for outcome in outcomes] == ["", ""]
    one, two = (outcome.series("loss")["value"] for outcome in outcomes)
    assert two == pytest.approx(one, rel=1e-4)
    assert outcomes[1].series("eval_loss")["value"][-1] < math.log(CLASSES) / 4, "guessing costs log(classes)"


SPLITS: dict[str, dict[str, Any]] = {
    "ZeRO-3": {"dp": 2, "zero": 3},
    "fully_shard": {"dp": 2, "zero": 3, "zero_backend": "fully_shard"},
    "pipeline": {"pp": 2, "micro_batches": 4, "recompute": "full"},
}


def test_every_split_trains_alike_where_classes_do_not_divide(runner: LocalRunner, data: Path, tmp_path: Path) -> None:
    plain = spec_of({"kind": "mlp", "layers": 3, "hidden": 5}, 4, precision="fp64")
    losses = {}
    for name, split in {"one": {}, **SPLITS}.items():
        spec = RunSpec.model_validate(plain.model_dump() | {"parallel": split})
        outcome = runner.run(spec, tmp_path / name, corpora=data)
        assert not outcome.failure(), name
        losses[name] = [outcome.series(what)["value"] for what in ("loss", "eval_loss")]
    for name in SPLITS:
        for found, exact in zip(losses[name], losses["one"], strict=True):
            assert found == pytest.approx(exact, rel=1e-9), name


def test_a_run_ends_with_its_reason_where_the_file_is_cut(runner: LocalRunner, data: Path, tmp_path: Path) -> None:
    (tmp_path / "bright.images").write_bytes((data / "bright.images").read_bytes()[:-1])
    outcome = runner.run(spec_of({"kind": "mlp", "layers": 1}, 3), tmp_path / "run", corpora=tmp_path)
    assert "bright.images is cut short or damaged" in outcome.failure()


@pytest.mark.full
@pytest.mark.parametrize("kind", ["vgg16", "resnet50"])
def test_convolutions_learn_under_dp_2_and_go_on_from_a_checkpoint(
    kind: str, runner: LocalRunner, data: Path, tmp_path: Path
) -> None:
    model = {"kind": kind, "width": 4}
    spec = spec_of(model, 40, 2, checkpoint_every=20)
    whole = runner.run(spec, tmp_path / "whole", corpora=data)
    assert not whole.failure()
    losses = whole.series("loss")["value"]
    assert losses[-5:].mean() < losses[:5].mean() / 2
    half = folders.path_of(tmp_path / "whole" / folders.CHECKPOINTS, 20)
    resumed = runner.run(spec, tmp_path / "resumed", resume=half, corpora=data)
    assert not resumed.failure()
    assert resumed.series("loss")["value"] == pytest.approx(losses[20:], rel=1e-4), "the same samples are drawn"
