"""What SQLite has committed is synced to the disk soon, and before a worker deletes its own copy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from dashboard.control import controller as loop
from dashboard.control.controller import Controller
from dashboard.control.durability import sync_commits
from tests.dashboard.peer import Peer
from tests.dashboard.test_control import started, submit

pytestmark = pytest.mark.django_db


@pytest.mark.skipif("connection.vendor != 'sqlite'", reason="PostgreSQL syncs every commit itself")
def test_commits_are_synced_where_sqlite_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setitem(connection.settings_dict, "NAME", str(tmp_path / "yard.sqlite3"))
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
    sync_commits()
    log = tmp_path / "yard.sqlite3-wal"
    log.touch()
    sync_commits()
    assert synced == [log.stat().st_ino]


def test_a_worker_deletes_nothing_before_it_is_on_the_yards_disk(
    peer: Peer, controller: Controller, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power takes what SQLite has committed but not synced."""
    attempt = started(peer, controller, submit(alice))
    peer.orders()
    before: list[Any] = []
    monkeypatch.setattr(loop, "sync_commits", lambda: before.append(peer.orders()))
    peer.ended(attempt.pk)
    controller.turn()
    assert before and not any(before)
    assert {"kind": "settled", "attempt": attempt.pk} in peer.orders()


def test_commits_are_synced_although_a_backlog_is_read(
    peer: Peer, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(loop, "sync_commits", lambda: synced.append(1))
    monkeypatch.setattr("dashboard.control.wire.READ_COUNT", 1)
    peer.beat()
    peer.beat()
    controller.turn()
    assert synced
