"""Ranks of several hosts that wait for each other end by themselves when one of them has ended."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
import torch.distributed as dist

from parallel_core.engine import meeting
from parallel_core.engine.distributed import Rendezvous, awaited
from parallel_core.engine.meeting import meet
from parallel_core.engine.near_groups import TIMEOUT
from parallel_core.launch.rank import _peer_lost


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "BEAT_S", 0.01)
    monkeypatch.setattr(meeting, "LOST_S", 0.1)
    monkeypatch.setattr(meeting, "OPEN_S", 0.2)


@dataclass(frozen=True)
class _Place(Rendezvous):
    """A place that has the store at hand."""

    store: dist.Store = field(default_factory=dist.HashStore)

    def open_store(self, limit: timedelta = TIMEOUT) -> dist.Store:
        return self.store


def _raised(does: Callable[[], object]) -> BaseException | None:
    try:
        does()
    except Exception as error:
        return error
    return None


def _waiting(store: dist.Store, *ranks: int, world: int = 3, limit_s: float = 60) -> list[BaseException | None]:
    """How the wait of each rank ends."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda rank: _raised(lambda: meet(store, rank, world, limit_s)), ranks))


def test_all_go_on_once_all_are_there() -> None:
    assert _waiting(dist.HashStore(), 0, 1, 2) == [None] * 3


@pytest.mark.parametrize("world", [3, 4], ids=["that all had come", "that one had to come"])
def test_one_that_no_longer_waits_is_lost(world: int) -> None:
    """Rank 2 was there once."""
    store = dist.HashStore()
    store.add("waits/2", 1)
    for error in _waiting(store, 0, 1, world=world):
        assert isinstance(error, ConnectionAbortedError) and _peer_lost(error)
        assert "rank 2 of another host ended while it waited for others" in str(error)


def test_one_that_fails_before_it_joins_says_so() -> None:
    place = _Place("127.0.0.1", 0, 3, False, node=2)
    with pytest.raises(RuntimeError, match=r"^no GPU$"), awaited(place, 2):
        raise RuntimeError("no GPU")
    for error in _waiting(place.store, 0, 1):
        assert "closed by peer: rank 2 failed before it joined: RuntimeError: no GPU" in str(error)


def test_one_that_never_comes_is_named() -> None:
    (error,) = _waiting(dist.HashStore(), 0, limit_s=0.05)
    assert isinstance(error, TimeoutError) and str(error).startswith("ranks 1, 2 did not join in ")


def test_a_store_whose_rank_has_ended_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    error = _raised(lambda: Rendezvous("127.0.0.1", port, 2, False, node=1).open_store())
    assert isinstance(error, ConnectionRefusedError) and _peer_lost(error)
    assert f"nothing listens at 127.0.0.1:{port}: rank 0, which holds the store, has ended, or" in str(error)


def test_a_store_that_is_not_open_yet_is_waited_for() -> None:
    """Its socket listens from the beginning, and answers later."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        port, found = server.getsockname()[1], []

        def open_store(limit: timedelta) -> dist.Store:
            found.append(limit)
            if len(found) < 3:
                raise dist.DistNetworkError("not yet")
            return dist.HashStore()

        assert pool.submit(meeting.opened, open_store, "127.0.0.1", port, 60).result()
    assert len(found) == 3
