"""`python -m parallel_core partition`: the results of the released PipeDream tool for its own profiles, and
refusals.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parallel_core.cli import main
from tests.parallel_core.pipedream_profiles import released

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLE = str(ROOT / "examples" / "branches.graph.txt")


def test_stages_and_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partition", EXAMPLE, "--level", "4@1"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "3-1: 36 ms a micro-batch with 2 stages on 4 workers, 3.08x of one worker."
    assert said[2] == "NOAM is 2: so many micro-batches each input worker admits."
    assert len(said) == 5 and "6 layers: Conv2d(3, 64) to AdaptiveAvgPool2d" in said[3]


def test_a_stage_of_one_layer_is_not_plural(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partition", EXAMPLE, "--level", "4@12", "--level", "4@1.25"]) == 0
    assert " 1 layer: Linear(12544, 4096)" in capsys.readouterr().out


def test_memory_that_data_parallelism_does_not_fit_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partition", EXAMPLE, "--level", "4@1", "--memory", "0.45", "--form", "paper"]) == 0
    assert "Data parallelism alone does not fit: every worker would hold all layers." in capsys.readouterr().out


def test_one_worker_is_one_stage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partition", EXAMPLE, "--level", "1@1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seconds"] == pytest.approx(0.111) and [len(s["layers"]) for s in found["stages"]] == [8]
    assert main(["partition", EXAMPLE, "--level", "1@1"]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "1: 111 ms a micro-batch with 1 stage on one worker."
    assert second.startswith("NOAM is 1"), "one worker is no data parallelism"


def test_vgg_on_sixteen_workers_as_the_released_tool_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partition", str(released("vgg16")), "--level", "16@0.4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["seconds"] == pytest.approx(0.08078, abs=5e-6) and found["stages"][0]["replicas"] == 15


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--level", "4"], "workers@GB/s is needed, as 4@12; got '4'"),
        (["--level", "4@0"], "a number above 0 is needed"),
        (["--level", "4@1", "--memory", "-1"], "a number above 0 is needed"),
        (["--level", "0@1"], "levels.0.workers must be at least 1"),
        (["--level", "4@1", "--memory", "0.001"], "memory: no partition fits"),
        ([], "--level"),
    ],
)
def test_what_cannot_be_is_told(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["partition", EXAMPLE, *words])
    except SystemExit as error:  # from argparse
        code = int(error.code or 0)
    assert code == 2 and said in capsys.readouterr().err


def test_a_file_that_is_no_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "g.txt").write_bytes(b"\xff\xfe\x00")
    assert main(["partition", str(tmp_path / "g.txt"), "--level", "2@1"]) == 2
    assert main(["partition", str(tmp_path / "none.txt"), "--level", "2@1"]) == 2
    assert capsys.readouterr().err.splitlines()[0].endswith("g.txt: line 1: no text: byte 0xff is no UTF-8.")


def test_of_a_file_that_is_far_too_long_its_beginning_alone_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sparse file of zeros that would not fit into memory as text."""
    with (tmp_path / "g.txt").open("wb") as file:
        file.truncate(2**40)
    assert main(["partition", str(tmp_path / "g.txt"), "--level", "2@1"]) == 2
    assert capsys.readouterr().err.endswith("g.txt: line 1: more than 16777216 characters in the file.\n")
