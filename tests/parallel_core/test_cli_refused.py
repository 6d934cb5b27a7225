"""Commands say in a sentence what they refuse, whether a whole run or one argument."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parallel_core.cli import main


def test_a_time_to_save_that_is_no_number_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spec.json").write_text("{}")
    monkeypatch.setenv("TRAINYARD_SAVE_S", "soon")
    assert main(["train", str(tmp_path / "spec.json"), "--out", str(tmp_path / "out")]) == 2
    assert "TRAINYARD_SAVE_S: a number above 0 is needed; got 'soon'" in capsys.readouterr().err


def test_devices_of_other_ranks_are_counted_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({"parallel": {"pp": 2}}))
    assert main(["train", str(path), "--devices", "0"]) == 2
    assert capsys.readouterr().err == "--devices names 1 device, the run has 2 ranks\n"


def test_orders_that_keep_too_little_are_refused_by_the_name_of_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({"parallel": {"pp": 2, "micro_batches": 4}}))
    assert main(["order", str(path), "--keep", "0.5"]) == 2
    assert capsys.readouterr().err == "--keep: rank 0 must keep at least 1; 0.5 is too little.\n"


@pytest.mark.parametrize(
    ("parallel", "command", "said"),
    [
        ({"dp": 16_384}, "schedule", "16384 pipeline ranks are too many to print; use at most 2048"),
        ({"pp": 64, "micro_batches": 4096}, "schedule", "524288 operations are too many to print; use at most 1024"),
        ({"pp": 64, "micro_batches": 512}, "order", "65536 operations are too many to search; use at most 256"),
    ],
)
def test_what_would_take_minutes_is_refused_with_what_would_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], parallel: dict[str, Any], command: str, said: str
) -> None:
    path = tmp_path / "spec.json"
    train = {"global_batch": max(parallel.values())}
    path.write_text(json.dumps({"model": {"layers": 64}, "parallel": parallel, "train": train}))
    assert main([command, str(path)]) == 2
    assert said in capsys.readouterr().err


OWN = {"parallel": {"pp": 2, "replicas": [2, 1], "micro_batches": 4}}
TIED = {
    "model": {"layers": 4, "tied": True},
    "parallel": {"pp": 2, "micro_batches": 4, "schedule": "zb-v"},
    "train": {"clip": "stage"},
}


@pytest.mark.parametrize(
    ("given", "command", "said"),
    [
        (OWN, ["schedule", "--csv"], "--csv: stages with their own numbers of replicas have no such table; use JSON."),
        (OWN, ["order"], "parallel.replicas: orders are searched for equal replicas of all stages"),
        (TIED, ["order", "--effort", "1000"], "No order found for this run could run: clip=stage multiplies"),
    ],
)
def test_a_valid_run_that_a_command_cannot_take_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: dict[str, Any], command: list[str], said: str
) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(given))
    assert main([command[0], str(path), *command[1:]]) == 2
    told = capsys.readouterr()
    assert told.err.startswith(said) and not told.out


def test_a_file_of_brackets_alone_is_no_spec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spec.json"
    path.write_text("[" * 100_000)
    assert main(["schedule", str(path)]) == 2
    assert "stand too deep" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "inject", "said"),
    [
        ("{}", "warp", "--inject: there is no fault 'warp'; there are straggler,"),
        ("{}", "straggler:speed=2", "--inject: 'speed=2' says nothing about a straggler; it takes rank="),
        ("[1]", "straggler", "spec: An object with named fields is needed."),
        ('{"inject": 5}', "straggler", "inject: "),
        (None, "straggler", "spec.json cannot be read: No such file or directory"),
    ],
)
def test_a_fault_that_cannot_be_injected_is_told_where_it_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, inject: str, said: str
) -> None:
    path = tmp_path / "spec.json"
    if text is not None:
        path.write_text(text)
    assert main(["train", str(path), "--inject", inject]) == 2
    assert said in capsys.readouterr().err
