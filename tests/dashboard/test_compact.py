"""A start gives the space that deleted runs left in the embedded database back to the disk."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection, connections
from pytest_django.plugin import DjangoDbBlocker

from dashboard.runs.models import Attempt, SeriesChunk
from dashboard.yard import compact
from dashboard.yard.home import ROOT, Home, own
from parallel_core.analysis.quantities import bytes_text
from parallel_core.file_lock import FileLock
from tests.dashboard.database_faults import mend, refuse

BLOB = 4 << 20
own_file = pytest.mark.skipif("connection.vendor != 'sqlite'", reason="PostgreSQL uses free space again")


@pytest.fixture
def database(tmp_path: Path, django_db_blocker: DjangoDbBlocker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A connection to a file as `./run` makes it: three blobs, of which two were deleted."""
    monkeypatch.setattr(compact, "LEAST_FREE", BLOB)
    options = {"init_command": "PRAGMA journal_mode=WAL;", "timeout": 0.1}
    with django_db_blocker.unblock():
        made = connections.create_connection("default")
        name = str(tmp_path / "yard.sqlite3")
        made.settings_dict = {**made.settings_dict, "ENGINE": "django.db.backends.sqlite3", "NAME": name}
        made.settings_dict["OPTIONS"] = options
        with made.cursor() as cursor:
            cursor.execute("CREATE TABLE chunk (id INTEGER PRIMARY KEY, data BLOB)")
            cursor.execute(f"INSERT INTO chunk VALUES (1, zeroblob({BLOB})), (2, zeroblob({BLOB})), (3, x'07')")
            cursor.execute("DELETE FROM chunk WHERE id < 3")
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        try:
            yield made
        finally:
            made.close()


def size(database: Any) -> int:
    return Path(database.settings_dict["NAME"]).stat().st_size


def test_the_file_shrinks_and_keeps_what_is_in_it(database: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert size(database) > 2 * BLOB
    compact.compact(database)
    assert size(database) < BLOB / 8
    with database.cursor() as cursor:
        assert cursor.execute("SELECT id, data FROM chunk").fetchall() == [(3, b"\x07")]
    assert "gives 8 MiB of deleted runs back" in capsys.readouterr().out
    compact.compact(database)
    assert capsys.readouterr().out == "", "there is nothing more"


@pytest.mark.parametrize("why", ["little is free", "a small part is free", "the disk has no room"])
def test_no_start_waits_for_little(database: Any, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = size(database)
    if why == "little is free":
        monkeypatch.setattr(compact, "LEAST_FREE", 3 * BLOB)
    elif why == "a small part is free":
        monkeypatch.setattr(compact, "LEAST_SHARE", 0.9999)
    else:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    compact.compact(database)
    assert size(database) == before


def test_one_that_another_process_writes_to_is_left_as_it_is(database: Any, capsys: pytest.CaptureFixture[str]) -> None:
    before = size(database)
    with closing(sqlite3.connect(database.settings_dict["NAME"], isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        compact.compact(database)
    assert size(database) == before
    assert "It could not: database is locked." in capsys.readouterr().out


def test_a_start_does_not_wait_for_a_large_one_and_says_how_to(
    database: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compact, "MOST_KEPT", 1000)
    before = size(database)
    compact.compact(database)
    assert size(database) == before
    said = capsys.readouterr().out
    assert "8 MiB of the database are free" in said and "./run compact" in said and said.count("\n") == 1
    monkeypatch.setattr(compact, "LEAST_FREE", 3 * BLOB)
    assert compact.compact_now(database) == f"The database now takes {bytes_text(size(database))}."
    assert size(database) < BLOB / 8, "whoever asks for it gets it, however much there is"


def test_whoever_asks_for_it_is_told_why_not(database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = size(database)
    with closing(sqlite3.connect(database.settings_dict["NAME"], isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SystemExit, match="database is locked"):
            compact.compact_now(database)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(SystemExit, match="and 1000 B are left there"):
        compact.compact_now(database)
    with pytest.raises(SystemExit, match="VACUUM FULL"):
        compact.compact_now(SimpleNamespace(vendor="postgresql"))
    assert size(database) == before


@own_file
def test_what_is_left_of_deleted_runs_goes_with_it(deleted_run: Attempt) -> None:
    assert "The database now takes" in compact.compact_now(connection)
    assert not Attempt.every.exists() and not SeriesChunk.objects.exists()


@own_file
def test_what_cannot_be_deleted_does_not_prevent_it(deleted_run: Attempt, capsys: pytest.CaptureFixture[str]) -> None:
    refuse("runs_serieschunk", "true", operational=True, on="DELETE")
    try:
        assert "The database now takes" in compact.compact_now(connection)
    finally:
        mend("runs_serieschunk")
    assert "Not all of what was measured of deleted runs could be deleted: " in capsys.readouterr().out
    assert SeriesChunk.objects.exists()


def command(folder: Path) -> subprocess.CompletedProcess[str]:
    """`./run compact` of the yard in the folder."""
    asked = [sys.executable, "-m", "dashboard.yard", "compact"]
    env = {**own(os.environ), "TRAINYARD_HOME": str(folder)}
    return subprocess.run(asked, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_in_a_folder_without_a_yard_none_is_made(tmp_path: Path) -> None:
    """A mistyped folder got a database of 4 KiB, which was said to be the yard's."""
    done = command(tmp_path / "mistyped")
    assert done.returncode == 1 and "There is no yard in" in done.stdout, done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_what_is_no_database_is_told_in_a_line(tmp_path: Path) -> None:
    Home(tmp_path).database.write_text("no database at all")
    done = command(tmp_path)
    assert done.returncode == 1 and "It could not: file is not a database." in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_does_it_while_the_yard_is_stopped(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with closing(sqlite3.connect(home.database, isolation_level=None)) as made:
        made.execute("CREATE TABLE chunk AS SELECT 1 AS id, zeroblob(1 << 20) AS data")
        made.execute("DELETE FROM chunk")
    yard = FileLock(home.lock)
    assert yard.hold()
    refused = command(tmp_path)
    assert refused.returncode == 1 and "stop it first" in refused.stdout
    assert home.database.stat().st_size > 1 << 20
    yard.release()
    done = command(tmp_path)
    assert done.returncode == 0 and "The database now takes" in done.stdout, done.stderr
    assert home.database.stat().st_size < 1 << 16
