"""One clock for the spans of several hosts: that of rank 0, to which every rank on another host ties its own.

A tie asks rank 0 for its time eight times and keeps the answer that took the least (Cristian, Probabilistic clock
synchronization, Distributed Computing 3, 1989): it is off by at most half of that round trip. Between two ties a clock
is taken to run evenly, so whatever lies between them is moved by what lies between their differences.
"""

from __future__ import annotations

import logging
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch.distributed as dist

from parallel_core.engine.distributed import Rendezvous
from parallel_core.observe.host import listen_at

log = logging.getLogger(__name__)

ROUNDS = 8
KEY = "clock"
_TIME = struct.Struct("<q")
_ASK = b"?"
_PATIENCE_S = 30.0
"""Of a connection that does not come about; an answer of a rank that is there takes no longer than its messages do."""


class Tie(NamedTuple):
    """At `at` ns of our clock that of rank 0 was `ahead` ns ahead of it, give or take `within`."""

    at: int
    ahead: int
    within: int


class Clock:
    """A rank's own clock, where that is the one of rank 0, too: nothing is moved."""

    within: int | None = None
    """By how many ns moved times may be off; None where none were moved."""

    def tie(self) -> None:
        """Compares the clocks; at the edge of a step, since it takes eight messages to rank 0 and back."""

    def moved(self, rows: np.ndarray, *fields: str) -> np.ndarray:
        """The rows with these fields (ns) on the clock of rank 0."""
        return rows


class Keeper(Clock):
    """Rank 0, which says what time it is to whoever asks."""

    def __init__(self, host: str, store: dist.Store) -> None:
        self._listener = listen_at(host)
        threading.Thread(target=self._accept, name="clock", daemon=True).start()
        store.set(KEY, f"{host} {self._listener.getsockname()[1]}")

    def _accept(self) -> None:
        with suppress(OSError):  # the rank is leaving
            while True:
                asker, _ = self._listener.accept()
                threading.Thread(target=_answer, args=(asker,), name="clock", daemon=True).start()


def _answer(asker: socket.socket) -> None:
    asker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with suppress(OSError), asker:
        while asker.recv(1):
            asker.sendall(_TIME.pack(time.monotonic_ns()))


class Tied(Clock):
    """A rank on another host than rank 0."""

    def __init__(self, store: dist.Store) -> None:
        """Raises OSError where rank 0 cannot be reached."""
        host, _, port = store.get(KEY).decode().rpartition(" ")
        self._keeper = socket.create_connection((host, int(port)), timeout=_PATIENCE_S)
        self._keeper.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._before = self._last = self._ask()
        self.within = self._last.within

    def tie(self) -> None:
        try:
            self._before, self._last = self._last, self._ask()
        except OSError:  # rank 0 is gone, and the run with it; what was traced goes by the clock as it was known
            self._keeper.close()  # an answer that comes late would be taken for that of the next question
            log.warning("the clock of rank 0 cannot be asked any more")
        self.within = max(self._before.within, self._last.within)

    def moved(self, rows: np.ndarray, *fields: str) -> np.ndarray:
        moved = rows.copy()
        for field in fields:
            moved[field] += ahead(rows[field], self._before, self._last)
        return moved

    def _ask(self) -> Tie:
        return min((self._round() for _ in range(ROUNDS)), key=lambda tie: tie.within)

    def _round(self) -> Tie:
        sent = time.monotonic_ns()
        self._keeper.sendall(_ASK)
        told = b""
        while len(told) < _TIME.size:
            part = self._keeper.recv(_TIME.size - len(told))
            if not part:
                raise ConnectionResetError("connection closed by peer: rank 0 keeps the clock no more")
            told += part
        came = time.monotonic_ns()
        return tie_of(sent, _TIME.unpack(told)[0], came)


def tie_of(sent: int, told: int, came: int) -> Tie:
    """From one question: when it was sent and its answer came by our clock, and the answer (all in ns)."""
    middle = (sent + came) // 2
    return Tie(middle, told - middle, -(-(came - sent) // 2))


def ahead(at: np.ndarray, before: Tie, last: Tie) -> np.ndarray:
    """ns by which rank 0's clock is ahead at moments of ours, from two ties: linear through them, int64."""
    passed = last.at - before.at
    if not passed:
        return np.full(np.shape(at), last.ahead, np.int64)
    # Relative to a tie: ns since the boot of a host are more than a float64 can tell apart.
    since = (np.asarray(at, np.int64) - last.at).astype(np.float64)
    return last.ahead + np.rint(since * ((last.ahead - before.ahead) / passed)).astype(np.int64)


def open_clock(rendezvous: Rendezvous, rank: int, store: dist.Store | None) -> Clock:
    """The clock of `rank` behind the meeting of all ranks. Raises OSError where rank 0 cannot be reached."""
    if rendezvous.node is None or store is None:
        return Clock()
    if rank == 0:
        return Keeper(rendezvous.host, store)
    return Clock() if rendezvous.node == 0 else Tied(store)
