"""`./run bench` measures a whole yard: it runs to its end, and writes every number that it prints."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.pages import PAGES

ROOT = Path(__file__).parents[2]


@pytest.mark.full  # starts a yard several times, and opens a browser
@pytest.mark.timeout(600)
def test_a_round_of_all_benchmarks_of_a_yard_ends_with_all_numbers(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    command = [sys.executable, "-m", "tests.bench", "yard", "timeline", "--rounds", "1", "--json", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    numbers = found["numbers"] + found["timeline"]
    assert {f"page with 1000 runs: {name}" for name in PAGES} < {one["name"] for one in found["numbers"]}
    assert all(one["text"] in done.stdout for one in numbers)
    assert all(one["seconds"] and all(math.isfinite(value) for value in one["seconds"]) for one in numbers)
    assert found["timeline"]


@pytest.mark.parametrize("line", ["--json nowhere/x", "--rounds 0"])
def test_what_would_fail_after_minutes_is_refused_at_once(line: str) -> None:
    command = [sys.executable, "-m", "tests.bench", "nothing", *line.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    option = line.partition(" ")[0]
    assert done.returncode == 2 and f"argument {option}: " in done.stderr
