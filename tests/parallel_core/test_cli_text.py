"""A text of the user's own on the command line: its name, its folder, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from parallel_core.checkpoint import llama_weights
from parallel_core.cli import main, own_text
from parallel_core.cli.common import CommandError, read_spec
from parallel_core.data.dataset import open_dataset
from parallel_core.plan.largest import trial
from parallel_core.spec import RunSpec
from tests.parallel_core.test_llama import put, tensors

TEXT = b"It was a dark and stormy night.\n" * 10


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_bytes(TEXT)
    return path


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({"model": {"seq": 16}}))
    return path


def test_its_bytes_are_what_a_run_reads(book: Path, written: Path) -> None:
    spec = read_spec(written, corpus=own_text.name_of(book))
    assert spec.train.corpus == f"blob:{hashlib.sha256(TEXT).hexdigest()}"
    with own_text.folder_of(spec, book, None) as corpora:
        inputs, _ = open_dataset(spec, corpora).take(np.array([3]))
        assert bytes(inputs[0].tolist()) == TEXT[3:19]
    assert corpora is not None and not corpora.exists()
    assert book.read_bytes() == TEXT


def test_a_text_in_a_folder_is_the_one_that_its_name_says(tmp_path: Path, book: Path, written: Path) -> None:
    spec, corpora = read_spec(written, corpus=own_text.name_of(book)), tmp_path / "corpora"
    corpora.mkdir()
    kept = corpora / spec.train.corpus.removeprefix("blob:")
    kept.write_bytes(TEXT)
    with own_text.folder_of(spec, None, corpora) as found:
        assert found == corpora
    kept.write_bytes(TEXT[:-1])
    with pytest.raises(CommandError, match=f"{kept} was changed: its sha256 is now "):
        own_text.require_sound(spec, corpora)


@pytest.mark.parametrize("command", ["train", "fit"])
@pytest.mark.parametrize(
    ("corpus", "more", "said"),
    [
        ("stdlib", "--text empty", "--text: empty is empty"),
        ("stdlib", "--text nowhere", "nowhere: No such file or directory"),
        ("tokens:own", "--text book.txt", "--text is read as bytes, and the spec's corpus tokens:own are tokens"),
        (f"blob:{'0' * 64}", "", "is a text of yours; --corpora names the folder that has it, or give it as --text"),
        (f"blob:{'0' * 64}", "--corpora .", "is a text of yours; . has no such file, or give it as --text FILE"),
    ],
)
def test_what_cannot_be_trained_on_is_said_before_anything_starts(
    command: str,
    corpus: str,
    more: str,
    said: str,
    tmp_path: Path,
    book: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").touch()
    Path("spec.json").write_text(json.dumps({"train": {"corpus": corpus}}))
    line = ["--out", "out"] if command == "train" else ["--cap", "100"]
    assert main([command, "spec.json", *line, *more.split()]) == 2
    assert said in capsys.readouterr().err
    assert not Path("out").exists()


def test_an_image_model_takes_no_text(tmp_path: Path, book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({"model": {"kind": "mlp"}}))
    assert main(["train", str(path), "--text", str(book), "--out", str(tmp_path / "out")]) == 2
    assert "use corpus=digits" in capsys.readouterr().err


def test_a_pipe_is_refused_as_no_rank_could_read_it_again(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CommandError, match="pipe is not a file; every rank has to read it"):
        own_text.name_of(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("change", "more", "said"),
    [
        ({}, "", "train.weights: tiny is a folder of Llama weights; --corpora names the folder that has it"),
        ({}, "--corpora nowhere", "train.weights: The weights tiny are not there: nowhere/tiny is no folder."),
        ({}, "--text book.txt", "--text: train.weights=tiny is read from the folder of --corpora; keep the text there"),
        ({"layers": 3}, "--corpora .", "train.weights: The weights tiny have layers=2; this run has layers=3."),
    ],
)
def test_weights_that_cannot_be_begun_from_are_refused_before_anything_starts(
    change: dict[str, int],
    more: str,
    said: str,
    tmp_path: Path,
    book: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "tiny", tensors(torch.float32, 256), vocab_size=256)
    model = {**llama_weights.described(tmp_path / "tiny")["model"], "seq": 16, **change}
    Path("spec.json").write_text(json.dumps({"model": model, "train": {"weights": "tiny"}}))
    assert main(["train", "spec.json", "--out", "out", *more.split()]) == 2
    assert said in capsys.readouterr().err and not Path("out").exists()


def test_the_search_for_the_most_layers_needs_no_weights() -> None:
    llama = {"positions": "rope", "activation": "swiglu", "norm": "rmsnorm", "bias": False}
    spec = RunSpec.model_validate({"model": llama, "train": {"weights": "tiny"}})
    assert trial(spec, 9, None).train.weights == ""
