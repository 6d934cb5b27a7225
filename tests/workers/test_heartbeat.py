"""The heartbeat keeps its interval, whatever else triggers extra beats."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_core.data import image_file, token_file
from parallel_core.data.content import fingerprint
from workers import heartbeat
from workers.contract import HEARTBEAT_S, LEASE_S
from workers.heartbeat import Heartbeat
from workers.settings import Settings
from workers.token_files import TokenFiles
from workers.worker import Worker


class Counting(Heartbeat):
    """Counts its beats instead of publishing them."""

    def __init__(self) -> None:
        nothing: Any = None
        super().__init__(*(nothing,) * 4)
        self.beats = threading.Semaphore(0)

    def _beat(self) -> None:
        self.beats.release()


TALE = {"name": "tale", "tokens": 4, "vocab": 10, "values": fingerprint(np.zeros(4, "<u2"))}


def test_pokes_do_not_put_off_the_next_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT_S", 1.0)
    pulse = Counting()
    pulse.start()
    for _ in range(200):  # if each poke delayed the next beat by a second, that beat would be minutes away
        assert pulse.beats.acquire(timeout=20)
        pulse.poke()
    assert pulse.beats.acquire(timeout=20)
    assert pulse.beats.acquire(timeout=20), "the regular beat did not come"
    pulse.leave()
    pulse.join(20)
    assert not pulse.is_alive()


def test_a_beat_asks_no_name_server_and_gives_up_before_the_lease_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that trains well is not lost because an answer, or a name, did not come for a moment."""

    def asked(*_: Any, **__: Any) -> Any:
        raise AssertionError("a heartbeat looked a name up")

    worker = Worker(Settings("a", "redis://yard.invalid:6379", tmp_path, tmp_path))
    monkeypatch.setattr(socket, "getaddrinfo", asked)
    assert worker.heartbeat.body()["host"] == socket.gethostname()
    limits = worker.heartbeat._publisher._redis.connection_pool.connection_kwargs
    assert limits["socket_timeout"] == limits["socket_connect_timeout"] == HEARTBEAT_S < LEASE_S / 2


def test_a_beat_reads_no_token_file_because_their_disk_may_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "raw"
    source.write_bytes(bytes(8))
    worker = Worker(Settings("a", "redis://yard.invalid:6379", tmp_path, tmp_path))
    token_file.pack(source, 2, 10, "tale", worker.settings.corpora)
    worker.host.token_files.look()

    def stalled(*_: Any) -> Any:
        raise AssertionError("a heartbeat read token files")

    monkeypatch.setattr(token_file, "listing", stalled)
    assert worker.heartbeat.body()["token_files"] == [TALE]


def test_a_beat_before_token_files_were_listed_says_nothing_of_them(tmp_path: Path) -> None:
    """An empty list would tell the yard that they are gone."""
    worker = Worker(Settings("a", "redis://yard.invalid:6379", tmp_path, tmp_path))
    assert "token_files" not in worker.heartbeat.body()
    worker.host.token_files.look()
    assert worker.heartbeat.body()["token_files"] == []
    worker.host.token_files.known = token_file.Listing([], 3)
    assert worker.heartbeat.body()["more_token_files"] == 3


def test_a_beat_names_the_image_files(tmp_path: Path) -> None:
    worker = Worker(Settings("a", "redis://yard.invalid:6379", tmp_path, tmp_path))
    assert "image_files" not in worker.heartbeat.body()
    image_file.pack([np.zeros((2, 3, 8, 8), np.uint8)], np.array([0, 4]), worker.settings.corpora / "pets.images")
    worker.host.token_files.look()
    body = worker.heartbeat.body()
    sizes: dict[str, Any] = {"images": 2, "height": 8, "width": 8, "channels": 3, "classes": 5}
    sizes |= {"values": fingerprint(np.array([0, 4], "<u4"), np.zeros((2, 3, 8, 8), np.uint8))}
    assert (body["image_files"], body["more_image_files"]) == ([{"name": "pets", **sizes}], 0)
    assert body["token_files"] == []


def test_token_files_stay_known_while_their_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = TokenFiles(tmp_path)
    files.known = listed = token_file.Listing([TALE], 0)

    def failing(*_: Any) -> Any:
        raise OSError("stale file handle")

    monkeypatch.setattr(token_file, "listing", failing)
    files.look()
    assert files.known == listed
    monkeypatch.undo()
    files.look()
    assert files.known == ([], 0)
