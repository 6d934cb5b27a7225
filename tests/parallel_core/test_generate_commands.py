"""The command line that generates text from a checkpoint."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from parallel_core.checkpoint import manifest as manifests
from parallel_core.cli import main


@pytest.mark.full
def test_command_line_of_any_split(trained: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["generate", str(trained["llama"]), "--prompt", "def ", "--new", "8"]
    assert main(asked) == 0
    alone = capsys.readouterr().out
    for split, texts in ((["--tp", "2"], 1), (["--pp", "2"], 1), (["--dp", "2", "--samples", "3"], 3)):
        assert main([*asked, *split]) == 0
        assert capsys.readouterr().out == texts * alone


@pytest.mark.full
def test_a_checkpoint_of_a_run_on_gpus_generates_on_the_cpu_too(
    trained: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = manifests.read(trained["gpt"])
    path = tmp_path / "kept"
    shutil.copytree(trained["gpt"], path)
    saved = {**found.spec, "train": {**found.spec["train"], "device": "cuda"}}
    (path / manifests.FILE).write_text(replace(found, spec=saved).text())
    assert main(["generate", str(path), "--prompt", "def ", "--new", "2"]) == 1
    assert "No GPU was found on this host; --device cpu" in capsys.readouterr().err
    assert main(["generate", str(path), "--prompt", "def ", "--new", "2", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.startswith("def ")


def test_command_line(trained: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = str(trained["llama"])
    assert main(["generate", path, "--prompt", "def ", "--new", "8", "--tp", "2"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("def ")
    assert "prefill of 4 tokens" in err
    assert "(median of 7)" in err
    assert "keys and values 3 KiB a rank" in err
    assert main(["generate", path, "--prompt", "def ", "--new", "8", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["texts"] == [out.removesuffix("\n")] and said["kv_bytes"] == 6 << 10
    assert [len(tokens) for tokens in said["tokens"]] == [12]
    assert said["token_s"] * said["tokens_per_s"] == pytest.approx(1) and said["prefill_s"] > 0
    assert said["overall_tokens_per_s"] > 0
    for wrong, told in (
        (["--prompt", ""], "the prompt is empty"),
        (["--ids", "300"], "tokens 0 to 255"),
        (["--ids", ""], "--ids are numbers with commas between; got ''"),
        (
            ["--prompt", "\udcff" * 49],
            "the model's sequence is 48 tokens and the prompt has 49",
        ),  # bytes that are no valid text
        (["--prompt", "a", "--new", "99"], "at most 47 can be generated"),
        (["--prompt", "a", "--tp", "3"], "tp=3 does not divide"),
        (
            ["--prompt", "a", "--new", "9", "--dp", "2"],
            "dp: dp=2 replicas share 1 text, and each needs one; use dp=1, or more texts",
        ),
        (["--prompt", "a", "--pp", "9"], "pp=9 is more than the model's 6 cuttable layers; use at most 6"),
    ):
        assert main(["generate", path, *wrong]) == 2
        assert told in capsys.readouterr().err
