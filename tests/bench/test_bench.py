"""The benchmarks measure what they say: both contestants of a duel train the same thing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from parallel_core import bench
from parallel_core.bench import BENCHES, duel

RELATIVE = 1e-6
"""Largest difference of the losses after the same steps in fp32."""


@pytest.mark.parametrize("name", ["ddp", *(pytest.param(n, marks=pytest.mark.full) for n in duel.SPLITS if n != "ddp")])
def test_both_contestants_train_the_same(name: str) -> None:
    result = duel.run(name, rounds=1)
    assert result["loss_difference"] < RELATIVE
    assert result["ours"] > 0 and result["theirs"] > 0 and f"{result['ratio']:.2f}x" in result["text"]


def test_recording_and_start_are_printed_and_written(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    line = [sys.executable, "-m", "parallel_core", "bench", "spans", "start", "--rounds", "1", "--json", str(out)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())
    assert list(results) == ["spans", "start"] and results["spans"]["spans_per_step"] > 10
    assert all(result["text"] in done.stdout for result in results.values())


def test_an_unknown_benchmark_is_refused() -> None:
    line = [sys.executable, "-m", "parallel_core", "bench", "warp"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2 and all(name in done.stderr for name in BENCHES)


def test_the_names_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run(["list"], 1) == 0
    assert capsys.readouterr().out.split() == list(BENCHES)
