"""The settings as gunicorn reads them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.dashboard.database_file import ROOT, env_of


def test_no_web_process_retires_while_it_has_streams_open(tmp_path: Path) -> None:
    """A retiring process would accept nothing until the arbiter kills it, a minute later; a yard has only one."""
    command = [sys.executable, "-m", "gunicorn", "-c", "python:dashboard.gunicorn", "dashboard.asgi:application"]
    env = env_of(tmp_path, f"unix://{tmp_path}/none.sock")
    done = subprocess.run([*command, "--print-config"], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    read = dict(line.split(" = ", 1) for line in done.stdout.splitlines() if " = " in line)
    settings = {name.strip(): value for name, value in read.items()}
    assert settings["max_requests"] == "0" and settings["worker_class"] == "uvicorn_worker.UvicornWorker"
