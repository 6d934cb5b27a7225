"""Checkpoints that were truncated, changed or belong to another model are refused with the reason."""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import manifest as manifests
from parallel_core.checkpoint import match
from parallel_core.checkpoint.manifest import CheckpointError
from parallel_core.checkpoint.verify import verified
from parallel_core.engine import checkpoint
from parallel_core.spec import RunSpec
from tests.parallel_core.corrupt import change_byte
from tests.parallel_core.test_checkpoint import SAVED, alone, save, spec_of


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's checkpoint folder, to be copied and damaged."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    trainer = alone()
    trainer.step(0)
    save(trainer, folder, SAVED)
    return folder


@pytest.fixture
def spoilt(whole: Path, tmp_path: Path) -> Path:
    target = tmp_path / "step"
    target.mkdir()
    for file in folders.path_of(whole, SAVED).iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def refusal(path: Path, spec: RunSpec | None = None) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(alone(spec), path)
    return caught.value


def _sealed(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Changes the manifest and computes a valid digest for it."""
    file = folder / manifests.FILE
    raw = json.loads(file.read_text())
    del raw["digest"]
    raw = change(raw)
    file.write_text(json.dumps(raw | {"digest": manifests._digest(raw)}))


def _signed(folder: Path, piece: dict[str, Any], item: int) -> dict[str, Any]:
    """A piece of elements of `item` bytes, with the sha256 of its bytes in the file."""
    data = (folder / piece["file"]).read_bytes()[piece["start"] :][: math.prod(piece["sizes"]) * item]
    return piece | {"sha256": hashlib.sha256(data).hexdigest()}


def test_a_checkpoint_that_does_not_say_what_was_read_is_loaded(spoilt: Path) -> None:
    """As those of earlier versions."""
    _sealed(spoilt, lambda raw: {name: value for name, value in raw.items() if name != "reads"})
    assert manifests.read(spoilt).reads == {}
    assert checkpoint.load(alone(), spoilt) == SAVED


@pytest.mark.parametrize("reads", [["corpus"], {"corpus": 7}, {"corpus": "<b>"}, {"corpus": "0" * 65}, None])
def test_what_was_read_is_told_in_digits(reads: Any, spoilt: Path) -> None:
    _sealed(spoilt, lambda raw: raw | {"reads": reads})
    with pytest.raises(CheckpointError, match="lacks or spoils"):
        manifests.read(spoilt)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("made", [os.mkfifo, partial(os.symlink, "/dev/null")], ids=["pipe", "device"])
def test_a_manifest_that_is_no_file_is_refused(made: Callable[[Path], None], spoilt: Path) -> None:
    """A pipe would be waited for, and a device may never end."""
    (spoilt / manifests.FILE).unlink()
    made(spoilt / manifests.FILE)
    with pytest.raises(CheckpointError, match=r"manifest\.json cannot be read \(it is no file\)"):
        manifests.read(spoilt)


def test_a_truncated_file_is_named(spoilt: Path) -> None:
    data = (spoilt / "rank-0.bin").read_bytes()
    (spoilt / "rank-0.bin").write_bytes(data[:-8])
    assert f"rank-0.bin has {len(data) - 8} bytes instead of {len(data)}" in str(refusal(spoilt))


def test_a_missing_file_is_named(spoilt: Path) -> None:
    (spoilt / "rank-0.bin").unlink()
    assert "rank-0.bin is missing" in str(refusal(spoilt))


def test_a_changed_byte_is_found_and_its_parameter_named(spoilt: Path) -> None:
    """By the rank that loads it, and without torch by who reads it through."""
    piece = verified(spoilt).tensors["mean/block.1.mlp.fc1.weight"].pieces[0]
    change_byte(spoilt / piece.file, piece.start + 5)
    told = str(refusal(spoilt))
    assert "mean/block.1.mlp.fc1.weight in rank-0.bin does not match its sha256" in told
    with pytest.raises(CheckpointError, match=f"^{re.escape(told)}$"):
        verified(spoilt)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text.replace('"step":4', '"step":5'), "does not match its own sha256"),
        (lambda text: text[: len(text) // 2], "is no JSON"),
        (lambda text: '{"format": "another"}', "its format is not trainyard-checkpoint-1"),
        (lambda text: "[" * 100_000, "is no JSON"),
    ],
)
def test_a_changed_manifest_is_refused(spoilt: Path, change: Callable[[str], str], told: str) -> None:
    file = spoilt / manifests.FILE
    file.write_text(change(file.read_text()))
    assert told in str(refusal(spoilt))


def test_a_manifest_leads_to_no_other_file(spoilt: Path) -> None:
    """Even with a valid digest, the file names in the manifest are checked."""
    _sealed(spoilt, lambda raw: json.loads(json.dumps(raw).replace("rank-0.bin", "../outside.bin")))
    assert "file name '../outside.bin'" in str(refusal(spoilt))


@pytest.mark.parametrize(
    "change",
    [
        *({"step": step} for step in (1e999, -1, 1.5, "4", True)),
        *({"files": []}, {"scalars": "x"}, {"spec": {"model": "gpt"}}, {"tensors": {"value/a": []}}),
    ],
    ids=[
        *("a step without end", "a negative step", "half a step", "a text", "a truth value"),
        *("no files", "no numbers", "no model", "no tensor"),
    ],
)
def test_a_manifest_of_other_things_is_refused(spoilt: Path, change: dict[str, Any]) -> None:
    _sealed(spoilt, lambda raw: raw | change)
    assert "is damaged: manifest.json lacks or spoils" in str(refusal(spoilt))


def test_a_piece_of_other_dimensions_is_refused(spoilt: Path) -> None:
    def flat(raw: dict[str, Any]) -> dict[str, Any]:
        raw["tensors"]["value/embed.token.weight"]["pieces"][0]["offsets"] = [0]
        return raw

    _sealed(spoilt, flat)
    assert "a piece of (64, 32) at (0,) of shape (64, 32)" in str(refusal(spoilt))


def test_pieces_that_overlap_are_refused(spoilt: Path) -> None:
    """Their sizes add up to the tensor's. Half of it was left as it happened to be."""

    def doubled(raw: dict[str, Any]) -> dict[str, Any]:
        (whole,) = raw["tensors"]["value/embed.token.weight"]["pieces"]
        half = _signed(spoilt, whole | {"sizes": [32, 32]}, 4)
        raw["tensors"]["value/embed.token.weight"]["pieces"] = [half, half]
        return raw

    _sealed(spoilt, doubled)
    assert "its pieces do not cover value/embed.token.weight once" in str(refusal(spoilt))


def test_an_empty_piece_is_refused(spoilt: Path) -> None:
    def first(raw: dict[str, Any]) -> dict[str, Any]:
        pieces = raw["tensors"]["value/embed.token.weight"]["pieces"]
        pieces.insert(0, pieces[0] | {"sizes": [0, 32], "sha256": hashlib.sha256().hexdigest()})
        return raw

    _sealed(spoilt, first)
    assert "its pieces do not cover value/embed.token.weight once" in str(refusal(spoilt))


def test_a_shape_of_too_many_dimensions_is_refused(spoilt: Path) -> None:
    def deep(raw: dict[str, Any]) -> dict[str, Any]:
        pieces = [{"file": "rank-0.bin", "start": 0, "offsets": [0] * 64, "sizes": [1] * 64, "sha256": ""}]
        raw["tensors"]["value/a"] = {"dtype": "float32", "shape": [1] * 64, "pieces": pieces}
        return raw

    _sealed(spoilt, deep)
    assert "a shape of 64 dimensions" in str(refusal(spoilt))


def test_numbers_of_another_type_are_refused(spoilt: Path) -> None:
    """All else about them is right: they were read as such, and converted."""

    def narrow(raw: dict[str, Any]) -> dict[str, Any]:
        stored = raw["tensors"]["mean/embed.token.weight"]
        pieces = [_signed(spoilt, piece, 2) for piece in stored["pieces"]]
        raw["tensors"]["mean/embed.token.weight"] = stored | {"dtype": "bfloat16", "pieces": pieces}
        return raw

    _sealed(spoilt, narrow)
    told = "mean/embed.token.weight is of type bfloat16; the model's of float32"
    assert told in str(refusal(spoilt))


@pytest.mark.parametrize("name", ["steps", "loss_scale.good"])
def test_a_scalar_that_is_no_number_is_refused(spoilt: Path, name: str) -> None:
    _sealed(spoilt, lambda raw: raw | {"scalars": raw["scalars"] | {name: math.nan}})
    assert "lacks or spoils number nan" in str(refusal(spoilt))


def test_a_scalar_that_is_missing_is_named(spoilt: Path) -> None:
    def without(raw: dict[str, Any]) -> dict[str, Any]:
        del raw["scalars"]["loss_scale.good"]
        return raw

    _sealed(spoilt, without)
    assert "The checkpoint has no loss_scale.good." in str(refusal(spoilt))


def test_another_models_checkpoint_is_refused_field_by_field(whole: Path) -> None:
    error = refusal(folders.path_of(whole, SAVED), spec_of({"hidden": 64, "tied": True}, {"precision": "fp64"}))
    assert set(error.fields) == {"model.hidden", "model.tied", "train.precision"}
    assert error.fields["model.hidden"] == "The checkpoint was saved with hidden=32; this run has hidden=64."


def test_a_checkpoint_behind_the_last_step_is_refused(whole: Path) -> None:
    error = refusal(folders.path_of(whole, SAVED), spec_of({}, {"steps": SAVED}))
    assert "4 steps done; steps=4 leaves none" in error.fields["train.steps"]
    one = RunSpec.model_validate({"train": {"steps": 1, "warmup_steps": 0}})
    assert "has 1 step done; steps=1" in match.mismatches(one.model_dump(mode="json"), one, 1)["train.steps"]


def test_nothing_is_unpickled(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unpickled(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    names = sorted(file.name for file in folders.path_of(whole, SAVED).iterdir())
    assert names == ["manifest.json", "rank-0.bin"]
    trainer = alone()
    for where, name in ((pickle, "loads"), (pickle, "load"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(where, name, unpickled)
    assert checkpoint.load(trainer, folders.path_of(whole, SAVED)) == SAVED


class _Touches:
    """An object whose pickle creates a file where it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
        return Path.touch, (self.file,)


def test_a_pickle_in_place_of_numbers_is_never_run(spoilt: Path, tmp_path: Path) -> None:
    """Whoever can write a checkpoint can make its size and digests right."""
    data, touched = (spoilt / "rank-0.bin").read_bytes(), tmp_path / "touched"
    trap = pickle.dumps(_Touches(touched))
    trap += data[len(trap) :]
    (spoilt / "rank-0.bin").write_bytes(trap)
    read = manifests.read(spoilt)

    def right(raw: dict[str, Any]) -> dict[str, Any]:
        for name, tensor in raw["tensors"].items():
            for piece in tensor["pieces"]:
                length = read.tensors[name].item * math.prod(piece["sizes"])
                part = trap[piece["start"] : piece["start"] + length]
                piece["sha256"] = hashlib.sha256(part).hexdigest()
        return raw

    _sealed(spoilt, right)
    verified(spoilt)
    assert checkpoint.load(alone(), spoilt) == SAVED
    assert not touched.exists()
    pickle.loads(trap)
    assert touched.exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"train": {"clip": "global", "clip_norm": 1.0}}, "use pp=2 and cuts=3"),
        ({"parallel": {"schedule": "of a later version"}}, "does not understand which layers"),
    ],
)
def test_stages_with_own_updates_stay_whole_whatever_rules_came_later(changed: dict[str, Any], said: str) -> None:
    """The saved spec breaks a rule that its run did not know, or is not understood at all."""
    spec = RunSpec.model_validate(
        {
            "parallel": {"pp": 2, "cuts": [3], "schedule": "1f1b-stash", "micro_batches": 4},
            "train": {"clip": "stage", "steps": 9},
        }
    )
    dumped = spec.model_dump(mode="json")
    saved = {**dumped, **{section: {**dumped[section], **fields} for section, fields in changed.items()}}
    with pytest.raises(ValidationError):
        RunSpec.model_validate(saved)
    other = RunSpec.model_validate({**dumped, "parallel": {**dumped["parallel"], "cuts": [4]}})
    steps = {"steps.0": 8.0, "steps.1": 12.0}
    assert said in match.mismatches(saved, other, 4, steps)["parallel.pp"]
    assert not match.mismatches(saved, other, 4, {"steps": 8.0})
