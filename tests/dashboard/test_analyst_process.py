"""The analyst as a process of its own: without a database, and with work that fails."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboard.analyst.process import Analyst, Lane, Work
from tests.dashboard.database_file import ROOT, env_of


@pytest.mark.full
def test_a_database_that_is_away_is_told_in_a_sentence(tmp_path: Path) -> None:
    env = {**env_of(tmp_path, "redis://127.0.0.1:9/0"), "DATABASE_URL": "postgres://yard:word@127.0.0.1:9/yard"}
    done = subprocess.run(
        [sys.executable, "manage.py", "analyst"], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, "the process manager restarts it, so it only has to exit"
    assert "The database does not answer: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.full
@pytest.mark.django_db
def test_work_that_fails_is_put_back_and_the_other_lanes_go_on() -> None:
    """An error in one piece of work must not stop the lanes of others."""
    tries: list[str] = []
    done: list[int] = []

    def failing() -> Work | None:
        if len(tries) == 3:
            return None
        tries.append("begun")
        return _fails()

    def other() -> Work | None:
        if len(done) == 10:
            analyst.stop()
            return None
        return _counts(done)

    back: list[str] = []
    analyst = Analyst([Lane(lambda: back.append("put back"), failing), Lane(lambda: None, other)])
    analyst.run()
    assert len(tries) == 3 and len(done) == 10
    assert len(back) == 1 + 3, "once at the start, once for each failure"


def _fails() -> Iterator[None]:
    yield
    raise OverflowError("Python int too large to convert to SQLite INTEGER")


def _counts(done: list[int]) -> Iterator[None]:
    yield
    done.append(1)
