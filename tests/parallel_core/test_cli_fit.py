"""`fit` with runs that only say whether they would have fitted."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parallel_core import local
from parallel_core.cli import main
from parallel_core.spec import RunSpec

MOST = 7
"""Layers that fit."""


class Runner:
    """In place of LocalRunner."""

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, spec: RunSpec, folder: Path, **_: Any) -> SimpleNamespace:
        ok = spec.model.layers <= MOST
        return SimpleNamespace(
            ok=ok,
            failure=lambda: "out of memory",
            exits=[SimpleNamespace(rank=0, code=1 - ok)],
            last=lambda rank, kind: {"cause": "out_of_memory"},
        )


def test_a_script_learns_from_the_exit_status_that_nothing_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was 0, as if there were a size."""
    monkeypatch.setattr(local, "LocalRunner", Runner)
    monkeypatch.setitem(globals(), "MOST", 0)
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({"model": {"hidden": 32}, "train": {"global_batch": 2}}))
    assert main(["fit", str(path), "--cap", "8"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("nothing fits in 8 MiB a rank")
    assert main(["fit", str(path), "--cap", "8", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["layers"] is None


def test_a_script_reads_the_result_from_stdout_and_a_person_the_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local, "LocalRunner", Runner)
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({"model": {"hidden": 32}, "train": {"global_batch": 2}}))
    assert main(["fit", str(path), "--cap", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith(f"{MOST} layers fit in 8 MiB a rank; predicted ")
    assert main(["fit", str(path), "--cap", "8", "--json"]) == 0
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert (said["layers"], said["cap_bytes"]) == (MOST, 8 << 20)
    assert said["predicted"] == int(lines[-1].rpartition(" ")[2])
    assert said["tried"][str(MOST)] is True and said["tried"][str(MOST + 1)] is False
    assert err.splitlines() == lines[:-1]
