"""The examples of docs/engine.md that call the engine from Python, run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs/engine.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_a_spec_is_drawn_and_judged(capsys: pytest.CaptureFixture[str]) -> None:
    exec(EXAMPLES[0], {})
    said = capsys.readouterr().out
    assert "rank 1" in said or "F0" in said
    assert "Needs " in said and " on rank 0" in said


@pytest.mark.full
def test_it_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    exec("".join(EXAMPLES), {})
    said = capsys.readouterr().out.splitlines()
    losses = re.findall(r"\d\.\d+", said[-2])
    assert 0 < float(said[-1].split()[0]) < 60 and said[-1].endswith("[0 1 2 3 4 5]")
    assert len(losses) == 6 and float(losses[-1]) < float(losses[0])
    assert (tmp_path / "records" / "events-0.bin").exists()
