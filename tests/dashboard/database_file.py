"""A database file for separate processes: migrated once per test session, then copied for each yard."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import cache
from pathlib import Path

from tests.scratch import fresh_folder

ROOT = Path(__file__).resolve().parent.parent.parent
NAME = "trainyard.sqlite3"


def env_of(folder: Path, redis_url: str) -> dict[str, str]:
    """The environment of a process whose data folder is `folder`."""
    env = {**os.environ, "TRAINYARD_HOME": str(folder), "REDIS_URL": redis_url, "TRAINYARD_TESTING": "1"}
    env["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
    env.pop("DATABASE_URL", None)
    return env


def make_database(folder: Path, env: dict[str, str], seed: str) -> str:
    """Creates a migrated database in `folder`, runs the Python code `seed` to fill it, and returns what that prints."""
    with closing(sqlite3.connect(_migrated())) as whole, closing(sqlite3.connect(folder / NAME)) as copy:
        whole.backup(copy)
    command = [sys.executable, "-c", seed]
    return subprocess.run(command, cwd=ROOT, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout


@cache
def _migrated() -> Path:
    folder = fresh_folder("migrated")
    env = env_of(folder, f"unix://{folder}/none.sock")
    subprocess.run([sys.executable, "manage.py", "migrate", "-v", "0"], cwd=ROOT, env=env, check=True)
    return folder / NAME
