"""Damaged weights are refused with the reason, and what fails leaves nothing."""

from __future__ import annotations

import errno
import io
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import manifest as manifests
from parallel_core.checkpoint.manifest import CheckpointError
from parallel_core.cli import main
from parallel_core.engine import storage
from parallel_core.engine.llama import export_weights, import_weights
from parallel_core.engine.shares import Box, Share
from tests.parallel_core.test_llama import SEQ, put, tensors


def _header(data: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    (length,) = struct.unpack("<Q", data[:8])
    raw = json.loads(data[8 : 8 + length])
    change(raw)
    text = json.dumps(raw).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + length :]


SPOILT: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "it has 0 bytes"),
    "cut": (lambda data: data[:-8], "cut short"),
    "longer": (lambda data: data + b"x", "cut short, or damaged"),
    "header": (lambda data: struct.pack("<Q", 2**40) + data[8:], "its header claims"),
    "no json": (lambda data: data[:8] + b"x" + data[9:], "its header is spoilt"),
    "type": (lambda data: _header(data, lambda raw: raw["lm_head.weight"].update(dtype="F8")), "element type 'F8'"),
    "shape": (
        lambda data: _header(data, lambda raw: raw["lm_head.weight"].update(shape=[65, 32])),
        "lm_head.weight does not lie where",
    ),
    "shape without end": (
        lambda data: _header(data, lambda raw: raw["lm_head.weight"].update(shape=[1e999, 32])),
        "its header is spoilt",
    ),
    "deep lists": (lambda data: struct.pack("<Q", 100_000) + b"[" * 100_000, "its header is spoilt"),
    "missing": (
        lambda data: _header(data, lambda raw: raw.pop("lm_head.weight")),
        "does not lie where its header says",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_file_is_refused(name: str, tmp_path: Path) -> None:
    spoil, told = SPOILT[name]
    file = put(tmp_path, tensors()) / "model.safetensors"
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(CheckpointError, match=told):
        import_weights(tmp_path, tmp_path / "ours", SEQ)


@pytest.mark.parametrize("name", ["self_attn.q_proj", "input_layernorm"])
def test_weights_of_other_sizes_are_refused(name: str, tmp_path: Path) -> None:
    weights, spoilt = tensors(), f"model.layers.1.{name}.weight"
    folder = put(tmp_path, weights | {spoilt: weights[spoilt][:0].clone()})
    with pytest.raises(CheckpointError, match=r"The weights for block\.1\.attn"):
        import_weights(folder, tmp_path / "ours", SEQ)


@pytest.mark.parametrize("where", ["", "checkpoints", "step-00000100"], ids=["itself", "of a run", "a checkpoint"])
def test_nothing_is_imported_beside_checkpoints(where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`train --resume` would continue from the newest checkpoint there instead of the imported weights."""
    theirs, ours = put(tmp_path / "theirs", tensors()), tmp_path / "ours"
    import_weights(theirs, ours / "kept", SEQ)
    trained = ours / "checkpoints" / "step-00000100" if where == "checkpoints" else ours / "step-00000100"
    trained.parent.mkdir(exist_ok=True)
    folders.path_of(ours / "kept", 0).rename(trained)
    out = trained if where == trained.name else ours
    assert main(["import-llama", str(theirs), "--out", str(out), "--seq", "16"]) == 2
    assert f"--out: {out} holds a checkpoint already; name a folder without checkpoints" in capsys.readouterr().err
    assert manifests.read(trained).step == 0 and not list(ours.rglob("step-00000000"))


class _FullDisk(io.BufferedWriter):
    """A file on a disk that has room for a few bytes."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > 1000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def _on_a_full_disk(self: Path, mode: str = "r", *given: Any, open: Any = Path.open, **more: Any) -> Any:
    return _FullDisk(io.FileIO(self, "w")) if mode == "wb" else open(self, mode, *given, **more)


def test_a_full_disk_is_said_and_nothing_stays_on_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = put(tmp_path / "in", tensors())
    import_weights(weights, tmp_path / "ours", SEQ)
    np.zeros(1000, "<u2").tofile(tmp_path / "raw")
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(Path, "open", _on_a_full_disk)
    for command in (
        ["import-llama", str(weights)],
        ["export-llama", str(tmp_path / "ours")],
        ["pack-tokens", str(tmp_path / "raw"), "--vocab", "9", "--name", "a"],
    ):
        assert main([*command, "--out", str(tmp_path / "out")]) == 2
        assert "cannot be written (No space left on device)" in capsys.readouterr().err
        assert [*(tmp_path / "out").iterdir()] == []


def test_a_checkpoint_that_is_removed_while_it_is_loaded_is_said_to_be(tmp_path: Path) -> None:
    """It may be rotated away by the run that saved it."""
    _, manifest = import_weights(put(tmp_path / "in", tensors()), tmp_path / "ours", SEQ)
    path = folders.path_of(tmp_path / "ours", 0)
    folders.drop(path)
    share = Share((32,), [(Box((0,), (32,)), torch.zeros(32, dtype=torch.float64))])
    with pytest.raises(CheckpointError, match=r"was removed or damaged meanwhile: rank-0\.bin cannot be read"):
        storage.load({"value/head.norm.weight": share}, path, manifest)


def _changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """An imported checkpoint whose manifest was changed, and given a valid digest."""
    import_weights(put(folder / "theirs", tensors()), folder / "ours", SEQ)
    (file,) = (folder / "ours").glob(f"*/{manifests.FILE}")
    raw = json.loads(file.read_text())
    change(raw)
    del raw["digest"]
    file.write_text(json.dumps(raw | {"digest": manifests._digest(raw)}))
    return file.parent


def test_a_checkpoint_of_no_spec_is_not_exported(tmp_path: Path) -> None:
    path = _changed(tmp_path, lambda raw: raw["spec"]["model"].update(layers=0))
    with pytest.raises(CheckpointError, match=r"Its spec is none of this engine's: Must be at least 1; got 0\."):
        export_weights(path, tmp_path / "out")


def test_a_checkpoint_that_lacks_a_tensor_is_not_exported(tmp_path: Path) -> None:
    path = _changed(tmp_path, lambda raw: raw["tensors"].pop("value/head.norm.weight"))
    with pytest.raises(CheckpointError, match=r"The checkpoint has no value/head\.norm\.weight\."):
        export_weights(path, tmp_path / "out")


def test_a_checkpoint_with_a_tensor_of_another_shape_is_not_exported(tmp_path: Path) -> None:
    def swap(raw: dict[str, Any]) -> None:
        raw["tensors"]["value/block.0.attn.qkv.weight"] = raw["tensors"]["value/head.norm.weight"]

    path = _changed(tmp_path, swap)
    with pytest.raises(CheckpointError, match=r"value/block\.0\.attn\.qkv\.weight has shape \(32,\); the model's has"):
        export_weights(path, tmp_path / "out")
