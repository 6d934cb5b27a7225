"""What SQLite has committed is synced to the disk soon, and before a worker deletes its own copy."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest
import redis
from django.db import connection

from dashboard.control import controller as loop
from dashboard.control import durability
from dashboard.control.controller import Controller
from dashboard.control.durability import sync_commits
from tests.dashboard.fake_worker import Peer
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
    monkeypatch.setattr(durability, "sync_commits", lambda: before.append(peer.orders()))
    peer.ended(attempt.pk)
    controller.turn()
    assert before and not any(before)
    assert {"kind": "settled", "attempt": attempt.pk} in peer.orders()


def test_commits_are_synced_although_a_backlog_is_read(
    peer: Peer, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(durability, "sync_commits", lambda: synced.append(1))
    monkeypatch.setattr("dashboard.control.wire.READ_COUNT", 1)
    peer.beat()
    peer.beat()
    controller.turn()
    assert synced


def broken_disk() -> NoReturn:
    raise OSError(errno.EIO, "Input/output error")


def test_a_disk_that_fails_to_sync_costs_no_heartbeat_and_holds_back_what_is_settled(
    peer: Peer,
    controller: Controller,
    alice: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    attempt = started(peer, controller, submit(alice))
    peer.orders()
    settled = {"kind": "settled", "attempt": attempt.pk}
    monkeypatch.setattr(loop, "SYNC_EVERY_S", 0.0)
    with monkeypatch.context() as failing, caplog.at_level(logging.WARNING, durability.__name__):
        failing.setattr(durability, "sync_commits", broken_disk)
        heard: list[str] = []
        failing.setattr(controller._clocks, "heard", lambda worker, *rest: heard.append(worker))
        peer.beat(attempt.pk)
        controller.turn()
        peer.ended(attempt.pk)
        controller.turn()
        assert heard == [peer.name]
        assert settled not in peer.orders()
    assert [line.message for line in caplog.records if "cannot be synced" in line.message] == [
        "commits cannot be synced to the disk: [Errno 5] Input/output error"
    ]
    controller.turn()
    assert settled in peer.orders()
    controller.turn()
    assert settled not in peer.orders()


def test_commits_are_synced_while_the_broker_is_away(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(durability, "sync_commits", lambda: synced.append(1))
    monkeypatch.setattr(loop, "RETRY_S", 0.0)
    controller._recover(redis.ConnectionError("gone"))
    assert synced
