"""What a folder of Llama weights is said to hold, by its config and headers, and why a run cannot begin from others."""

from __future__ import annotations

import errno
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from parallel_core.checkpoint import llama_weights, safetensors, weights_listing
from parallel_core.checkpoint.manifest import CheckpointError
from parallel_core.engine.llama import import_weights
from parallel_core.outline.gpt import GptOutline
from parallel_core.spec import ModelSpec, RunSpec
from tests.parallel_core.test_llama import SEQ, put, tensors

HEAD = "lm_head.weight"
NORM = "model.norm.weight"


def shard(folder: Path) -> Path:
    """The same weights in two files with an index."""
    whole = safetensors.open_all(folder)
    where = {name: f"model-0000{1 + (name == HEAD)}-of-00002.safetensors" for name in whole}
    for file in sorted(set(where.values())):
        own = [name for name in whole if where[name] == file]
        about = {name: (whole[name].entries[name].dtype, whole[name].entries[name].shape) for name in own}
        safetensors.write(folder / file, about, (bytes(whole[name].data(name)) for name in own))
    (folder / safetensors.INDEX).write_text(json.dumps({"weight_map": where}))
    (folder / safetensors.SINGLE).unlink()
    return folder


@pytest.mark.parametrize("several", [False, True])
def test_weights_are_described_from_their_headers(several: bool, tmp_path: Path) -> None:
    weights = tensors(torch.bfloat16) | {NORM: tensors(torch.float32)[NORM]}
    folder = put(tmp_path, weights, max_position_embeddings=512)
    found = llama_weights.described(shard(folder) if several else folder)
    count = sum(tensor.numel() for tensor in weights.values())
    assert (found["dtype"], found["parameters"], found["bytes"]) == ("BF16, F32", count, 2 * count + 2 * 32)
    assert found["model"].keys() <= {"kind", *GptOutline.fields}, "an older yard knows no fields of images"
    model = ModelSpec.model_validate(found["model"])
    assert (model.layers, model.hidden, model.heads, model.kv_heads, model.vocab) == (2, 32, 4, 2, 64)
    assert (model.seq, model.rope_base, model.tied) == (512, 500_000.0, False)


def _cut(folder: Path) -> None:
    file = folder / safetensors.SINGLE
    file.write_bytes(file.read_bytes()[:-8])


def _pickled(folder: Path) -> None:
    """In place of the safetensors, a file that tells if it is ever loaded."""
    (folder / safetensors.SINGLE).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Told()))


class _Told:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("pickled weights were loaded",))


def _as(dtype: str, item: int) -> Callable[[Path], None]:
    """Writes the last norm as another element type."""

    def change(folder: Path) -> None:
        files = safetensors.open_all(folder)
        about = {name: (file.entries[name].dtype, file.entries[name].shape) for name, file in files.items()}
        data = [bytes(32 * item) if name == NORM else bytes(file.data(name)) for name, file in files.items()]
        safetensors.write(folder / safetensors.SINGLE, {**about, NORM: (dtype, (32,))}, data)

    return change


def _nothing(folder: Path) -> None: ...


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[Path], None], str]] = {
    "cut": ({}, {}, _cut, r"safetensors is no whole safetensors file: .* cut short"),
    "pickled": ({}, {}, _pickled, r"has pytorch_model\.bin, and pickled weights are never loaded"),
    "no weights": ({}, {}, lambda folder: (folder / safetensors.SINGLE).unlink(), "has no weights; it needs model"),
    "no config": ({}, {}, lambda folder: (folder / "config.json").unlink(), "config.json cannot be read"),
    "foreign": ({}, {"model_type": "mistral"}, _nothing, "model_type='mistral'; this engine has 'llama'"),
    "config of text for a truth": (
        {},
        {"tie_word_embeddings": "false"},
        _nothing,
        "tie_word_embeddings='false'; this engine has False",
    ),
    "config of biases": ({}, {"attention_bias": True}, _nothing, "attention_bias=True; this engine has False"),
    "bias": ({"model.layers.0.self_attn.q_proj.bias": (32,)}, {}, _nothing, "q_proj.bias; a Llama of this engine has"),
    "other tensor": ({"model.layers.0.self_attn.q_norm.weight": (8,)}, {}, _nothing, "q_norm.weight, which no Llama"),
    "more layers": ({"model.layers.2.input_layernorm.weight": (32,)}, {}, _nothing, "which no Llama"),
    "missing": ({NORM: None}, {}, _nothing, "The weights lack model.norm.weight"),
    "untied without a head": ({HEAD: None}, {}, _nothing, "lack lm_head.weight; config.json has tie_word_embeddings=F"),
    "tied with a head": ({}, {"tie_word_embeddings": True}, _nothing, "lm_head.weight, but config.json has tie"),
    "shape": ({NORM: (31,)}, {}, _nothing, r"norm.weight has shape \(31,\); config.json says \(32,\)"),
    "vocabulary": ({}, {"vocab_size": 65}, _nothing, r"has shape \(64, 32\); config.json says \(65, 32\)"),
    "quantised": ({}, {"quantization_config": {"quant_method": "gptq"}}, _nothing, "quantization_config 'gptq'"),
    "fp8": ({}, {}, _as("F8_E4M3", 1), "hold model.norm.weight as F8_E4M3; this engine reads F64, F32, F16, BF16"),
    "int8": ({}, {}, _as("I8", 1), "hold model.norm.weight as I8"),
}


def other(name: str, folder: Path) -> str:
    """Makes the folder of that entry; returns what is said of it."""
    changes, config, change, said = REFUSED[name]
    weights = tensors(torch.float32) | {n: torch.zeros(s) for n, s in changes.items() if s is not None}
    put(folder, {n: t for n, t in weights.items() if changes.get(n, ()) is not None}, **config)
    change(folder)
    return said


@pytest.mark.parametrize("name", REFUSED)
def test_other_weights_are_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    said = other(name, tmp_path)
    with pytest.raises(CheckpointError, match=said):
        llama_weights.described(tmp_path)


@pytest.mark.parametrize("name", ["pickled", "bias", "other tensor", "more layers", "tied with a head", "quantised"])
def test_an_import_loses_no_tensor_silently(name: str, tmp_path: Path) -> None:
    said = other(name, tmp_path / "theirs")
    with pytest.raises(CheckpointError, match=said):
        import_weights(tmp_path / "theirs", tmp_path / "ours", SEQ)
    assert not (tmp_path / "ours").exists()


def test_a_run_of_another_model_is_told_both_values(tmp_path: Path) -> None:
    put(tmp_path / "tiny", tensors())
    same = ModelSpec.model_validate({**llama_weights.described(tmp_path / "tiny")["model"], "seq": 8, "dropout": 0.1})
    llama_weights.require_match(tmp_path / "tiny", same)
    wrong = same.model_copy(update={"layers": 3, "kv_heads": None})
    with pytest.raises(CheckpointError) as told:
        llama_weights.require_match(tmp_path / "tiny", wrong)
    kv_heads = "The weights tiny have kv_heads=2; this run has kv_heads=4."
    assert str(told.value) == f"The weights tiny have layers=2; this run has layers=3. {kv_heads}"


def test_only_a_llama_begins_from_weights() -> None:
    llama = {"positions": "rope", "activation": "swiglu", "norm": "rmsnorm", "bias": False}
    assert RunSpec.model_validate({"model": llama, "train": {"weights": "tiny"}}).train.weights == "tiny"
    with pytest.raises(
        ValueError, match=r"weights=tiny are those of a Llama, and this model has model\.norm=layernorm"
    ):
        RunSpec.model_validate({"model": {**llama, "norm": "layernorm"}, "train": {"weights": "tiny"}})
    for path in ("../tiny", "a/b", "/etc", ".hidden"):
        with pytest.raises(ValueError, match=r"train\.weights"):
            RunSpec.model_validate({"model": llama, "train": {"weights": path}})


def test_a_listing_names_what_can_be_used_and_why_the_rest_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "tiny", tensors(torch.float32))
    other("bias", tmp_path / "biased")
    put(tmp_path / "no name", tensors())
    (tmp_path / "empty").mkdir()
    known: weights_listing.Known = {}
    biased, tiny, unnamed = weights_listing.listing(tmp_path, known)
    assert unnamed["name"] == "no name" and unnamed["why"].endswith("rename the folder.")
    assert tiny == {"name": "tiny", **llama_weights.described(tmp_path / "tiny")}
    assert biased["name"] == "biased" and "has no biases" in biased["why"]

    read: list[Path] = []

    def reading(path: Path) -> dict[str, Any]:
        read.append(path)
        raise CheckpointError("x" * 1000)

    monkeypatch.setattr(weights_listing, "described", reading)
    assert weights_listing.listing(tmp_path, known) == [biased, tiny, unnamed] and not read, "nothing has changed"
    put(tmp_path / "tiny", tensors(torch.float64))
    assert weights_listing.listing(tmp_path, known)[1] == {"name": "tiny", "why": "x" * weights_listing.MOST_CHARACTERS}
    assert read == [tmp_path / "tiny"]


def _elsewhere(folder: Path, file: str) -> None:
    where = dict.fromkeys(safetensors.open_all(folder), file)
    (folder / safetensors.INDEX).write_text(json.dumps({"weight_map": where}))


def _pipe(file: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / file).unlink()
        os.mkfifo(folder / file)

    return change


def _device_of_config(folder: Path) -> None:
    (folder / llama_weights.CONFIG).unlink()
    (folder / llama_weights.CONFIG).symlink_to(os.devnull)


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a link that leads nowhere": (lambda folder: (folder / "extra").symlink_to("nowhere"), ""),
    "a file of no possible name": (lambda folder: _elsewhere(folder, "a\0b"), "cannot be read: it is no file"),
    "a file of half a character": (lambda folder: _elsewhere(folder, "a\ud800"), "cannot be read: it is no file"),
    "the folder itself": (lambda folder: _elsewhere(folder, ""), "leads out of its folder"),
    "the folder above": (lambda folder: _elsewhere(folder, ".."), "leads out of its folder"),
    "an index that is a folder": (lambda folder: (folder / safetensors.INDEX).mkdir(), "index.json cannot be read"),
    "a pipe": (_pipe(safetensors.SINGLE), "cannot be read: it is no file"),
    "a pipe of an index": (lambda folder: os.mkfifo(folder / safetensors.INDEX), "index.json cannot be read"),
    "a device of a config": (_device_of_config, "cannot be read: it is no file"),
    "a pipe of a config": (_pipe(llama_weights.CONFIG), "cannot be read: it is no file"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_does_not_hide_the_others(name: str, tmp_path: Path) -> None:
    spoil, why = BROKEN[name]
    spoil(put(tmp_path / "broken", tensors(torch.float32)))
    put(tmp_path / "tiny", tensors(torch.float32))
    broken, tiny = weights_listing.listing(tmp_path, {})
    assert (broken["name"], tiny["name"]) == ("broken", "tiny") and "model" in tiny
    assert why in broken["why"] if why else "model" in broken


def test_a_folder_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("closed", "tiny"):
        put(tmp_path / name, tensors(torch.float32))
    known: weights_listing.Known = {}
    before = weights_listing.listing(tmp_path, known)
    number = errno.EACCES
    looking = Path.iterdir

    def failing(self: Path) -> Iterator[Path]:
        if self.name == "closed":
            raise OSError(number, "not now")
        return looking(self)

    monkeypatch.setattr(Path, "iterdir", failing)
    closed, tiny = weights_listing.listing(tmp_path, known)
    assert closed == {"name": "closed", "why": f"{tmp_path / 'closed'} cannot be read: not now."} and "model" in tiny
    number = errno.EIO
    assert weights_listing.listing(tmp_path, known) == before, "a disk that fails may be there again soon"


def test_the_folders_that_are_left_out_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        put(tmp_path / name, tensors(torch.float32))
    monkeypatch.setattr(weights_listing, "MOST_LISTED", 1)
    assert weights_listing.listing(tmp_path, {})[1:] == [{"name": "b", "why": "Only 1 folders are read; left out: 2."}]


def test_a_file_that_is_written_anew_while_it_is_looked_at_ends_no_process(tmp_path: Path) -> None:
    """As `cp` does: it empties the file first. The memory of a mapping that reached further is gone then."""
    file = put(tmp_path, tensors(torch.float32)) / safetensors.SINGLE
    whole, seen = file.read_bytes(), 0
    reader = subprocess.Popen([sys.executable, "-c", LOOKING, str(file)], stdout=subprocess.PIPE)
    while reader.poll() is None:
        file.write_bytes(whole)
        seen += 1
    assert reader.returncode == 0 and seen


LOOKING = """
import sys
from pathlib import Path
from parallel_core.checkpoint.manifest import CheckpointError
from parallel_core.checkpoint.safetensors import SafeTensors
for _ in range(30_000):
    try:
        SafeTensors(Path(sys.argv[1]))
    except CheckpointError:
        pass
"""
