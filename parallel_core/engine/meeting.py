"""Ranks of several hosts wait for each other here before they join. On one host the launcher ends all ranks when one
has ended; between hosts only connections show it, and a rank that is waited for has none yet.

A rank that waits says in the store that it lives, again and again. Rank 0, which holds the store, tells all others when
one of them no longer does; that rank 0 itself has ended they see by their connection to the store.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist

BEAT_S, LOST_S, OPEN_S = 0.25, 10.0, 5.0
"""Seconds between two signs of life; without one after which a rank is lost; of an attempt to reach the store."""
_MET, _LOST = "met", "lost"


def opened(open_store: Callable[[timedelta], dist.Store], host: str, port: int, limit_s: float) -> dist.Store:
    """Returns the store of another host, once rank 0 has opened it; its socket listens from the beginning.

    Raises ConnectionRefusedError where nothing listens any more, and the last error of `open_store` after `limit_s`
    seconds.
    """
    deadline = time.monotonic() + limit_s
    while _listens(host, port):
        try:
            return open_store(timedelta(seconds=OPEN_S))
        except dist.DistError:
            if time.monotonic() > deadline:
                raise
    why = "rank 0, which holds the store, has ended, or this host does not reach its host by that address"
    raise ConnectionRefusedError(f"connection refused: nothing listens at {host}:{port}: {why}")


def _listens(host: str, port: int) -> bool:
    """Whether a connection is taken there, or at least not refused."""
    try:
        socket.create_connection((host, port), OPEN_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True
    return True


def meet(store: dist.Store, rank: int, world: int, limit_s: float) -> None:
    """Returns once all ranks of the world have called it.

    Raises ConnectionAbortedError where one of them has ended meanwhile, or has failed (`tell_failed`). On rank 0 raises
    TimeoutError where some have not come in `limit_s` seconds.
    """
    if rank == 0:
        _await(store, world, limit_s)
        return
    while True:
        store.add(_key(rank), 1)
        if store.check([_MET]):
            return
        if store.check([_LOST]):
            raise ConnectionAbortedError(_aborted(store.get(_LOST).decode()))
        time.sleep(BEAT_S)


def tell_failed(store: dist.Store, rank: int, how: str) -> None:
    """Tells the ranks that wait in `meet` that this one will not come."""
    store.set(_LOST, f"rank {rank} failed before it joined: {how}")


def _await(store: dist.Store, world: int, limit_s: float) -> None:
    """As `meet`, on rank 0."""
    others = range(1, world)
    beats, silent, waited = dict.fromkeys(others, 0), dict.fromkeys(others, 0.0), 0.0
    came: dict[int, int] = {}
    while True:
        seen = {rank: store.add(_key(rank), 0) for rank in others}
        if came and all(seen[rank] > came[rank] for rank in others):
            store.set(_MET, "")
            return
        if not came and all(seen.values()):
            came = seen  # the first ones may have ended since
        for rank in others:
            silent[rank] = 0.0 if seen[rank] != beats[rank] or not seen[rank] else silent[rank] + BEAT_S
        beats = seen
        if not store.check([_LOST]) and max(silent.values()) > LOST_S:
            lost = [rank for rank in others if silent[rank] > LOST_S]
            store.set(_LOST, f"{_named(lost)} of another host ended while it waited for others")
        if store.check([_LOST]):
            time.sleep(2 * BEAT_S)  # the others read it before the store is gone
            raise ConnectionAbortedError(_aborted(store.get(_LOST).decode()))
        if waited > limit_s:
            missing = [rank for rank in others if not seen[rank]]
            raise TimeoutError(f"{_named(missing)} did not join in {limit_s / 60:.0f} minutes")
        time.sleep(BEAT_S)
        waited += BEAT_S  # no clock: of what passes while this rank itself stands still, nothing counts


def _key(rank: int) -> str:
    return f"waits/{rank}"


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _aborted(why: str) -> str:
    return f"connection closed by peer: {why}"
