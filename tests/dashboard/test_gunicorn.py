"""gunicorn's settings, as it reads them itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.dashboard.database_file import ROOT, env_of


def test_no_web_process_retires_while_it_has_streams_open(tmp_path: Path) -> None:
    """It would accept nothing until the arbiter kills it: a minute for which the only one of a yard is away."""
    command = [sys.executable, "-m", "gunicorn", "-c", "python:dashboard.gunicorn", "dashboard.asgi:application"]
    env = env_of(tmp_path, f"unix://{tmp_path}/none.sock")
    told = subprocess.run([*command, "--print-config"], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    read = dict(line.split(" = ", 1) for line in told.stdout.splitlines() if " = " in line)
    settings = {name.strip(): value for name, value in read.items()}
    assert settings["max_requests"] == "0" and settings["worker_class"] == "uvicorn_worker.UvicornWorker"
