"""The analyst as a process of its own, where the database does not answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.dashboard.database_file import ROOT, env_of


def test_a_database_that_is_away_is_told_in_a_sentence(tmp_path: Path) -> None:
    env = {**env_of(tmp_path, "redis://127.0.0.1:9/0"), "DATABASE_URL": "postgres://yard:word@127.0.0.1:9/yard"}
    done = subprocess.run(
        [sys.executable, "manage.py", "analyst"], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, "what keeps it running is to start it again"
    assert "The database does not answer: " in done.stderr
    assert "Traceback" not in done.stderr
