"""The script of examples/ against a yard that answers from a list."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TIMED: dict[str, Any] = {"timed": {"median": 0.5}}


@pytest.mark.parametrize(
    ("summary", "last"),
    [(TIMED, "500.0 and 500.0 ms a step: 1.00x"), ({"timed": None}, "run 8 succeeded: run 8")],
    ids=["timed", "too few steps"],
)
def test_the_summary_of_a_run_that_has_just_ended_is_waited_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    summary: dict[str, Any],
    last: str,
) -> None:
    """The second run of a study that runs side by side ends beside the first, and its summary was still empty."""
    monkeypatch.setenv("TOKEN", "ty_x")
    (tmp_path / "spec.json").write_text(json.dumps({"parallel": {"pp": 2}}))
    script = run_path(str(ROOT / "examples/api_client.py"))
    states: dict[str, Iterator[str]] = {"7": iter(["running", "succeeded"]), "8": iter(["succeeded"])}

    def ask(_: Any, method: str, path: str, body: Any = None) -> Any:
        if method == "POST":
            return {"id": 3, "members": [{"id": 7}, {"id": 8}]}
        number, _, waits = path.removeprefix("/runs/").partition("?")
        state = next(states[number])
        return {"id": number, "name": f"run {number}", "state": state, "summary": summary if waits else {}}

    monkeypatch.setattr(script["Yard"], "ask", ask)
    monkeypatch.setattr(script["Yard"], "save", lambda *_: None)
    script["main"]("http://yard", str(tmp_path / "spec.json"))
    assert capsys.readouterr().out.splitlines()[-1] == last
