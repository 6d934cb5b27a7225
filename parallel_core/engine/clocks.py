"""Puts the spans of several hosts on one clock: that of rank 0, against which every rank on another host measures its
own.

A measurement (`ClockOffset`) asks rank 0 for its time eight times and keeps the answer with the shortest round trip
(Cristian, Probabilistic clock synchronization, Distributed Computing 3, 1989): its error is at most half of that round
trip.
Between two measurements the clocks are assumed to drift linearly, so the offset of a time between them is interpolated.
Before and after them it is that between two which are STEADY_NS apart: closer ones tell of their errors, not of drift.
"""

from __future__ import annotations

import logging
import socket
import struct
import threading
import time
from collections.abc import Sequence
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
OLD_NS = 5_000_000_000
"""Age from which a measurement is repeated, as the times of every step are converted."""
STEADY_NS = 1_000_000_000
"""Least time between two measurements that tell the drift."""
_PATIENCE_S = 30.0
"""Timeout in seconds of the connection to rank 0, and of each answer."""


class ClockOffset(NamedTuple):
    """One measurement: at `at` (ns, own clock) the clock of rank 0 was `ahead` ns ahead, with an error of at most
    `within` ns."""

    at: int
    ahead: int
    within: int


class Clock:
    """The clock of a rank on the host of rank 0: times are left as they are."""

    within: int | None = None
    """Maximum error of converted times in ns; None where times are not converted."""

    @property
    def old(self) -> bool:
        """Whether the offset was last asked for longer than OLD_NS ago."""
        return False

    def told(self) -> dict[str, int]:
        """The entry `clock_within` of a record's header; {} where times are not converted."""
        return {} if self.within is None else {"clock_within": self.within}

    def tie(self) -> None:
        """Measures the offset to the clock of rank 0. Called between steps, since it takes eight round trips."""

    def moved(self, rows: np.ndarray, *fields: str) -> np.ndarray:
        """Returns the rows with these fields (ns) converted to the clock of rank 0."""
        return rows


class ReferenceClock(Clock):
    """The clock of rank 0, which also answers the other hosts' requests for its time."""

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


class RemoteClock(Clock):
    """The clock of a rank on another host than rank 0."""

    def __init__(self, store: dist.Store) -> None:
        """Connects to rank 0 and measures the offset. Raises OSError where rank 0 cannot be reached."""
        host, _, port = store.get(KEY).decode().rpartition(" ")
        self._reference = socket.create_connection((host, int(port)), timeout=_PATIENCE_S)
        self._reference.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ties = [self._ask()]
        """From the newest that is STEADY_NS older than the last one, or the first of all, to the last one."""
        self._asked = self._ties[-1].at
        self.within = self._ties[-1].within

    @property
    def old(self) -> bool:
        return time.monotonic_ns() - self._asked > OLD_NS

    def tie(self) -> None:
        self._asked = time.monotonic_ns()  # also where there is no answer
        try:
            self._ties.append(self._ask())
        except OSError:  # rank 0 is gone, and so is the run; the trace is converted with the last known offset
            self._reference.close()  # a late answer would be taken for the answer to the next request
            log.warning("the clock of rank 0 cannot be asked any more")
        self.within = max(tie.within for tie in self._ties[-2:])
        while len(self._ties) > 2 and self._ties[-1].at - self._ties[1].at >= STEADY_NS:
            del self._ties[0]

    def moved(self, rows: np.ndarray, *fields: str) -> np.ndarray:
        moved = rows.copy()
        for field in fields:
            moved[field] += ahead(rows[field], self._ties)
        return moved

    def _ask(self) -> ClockOffset:
        return min((self._round() for _ in range(ROUNDS)), key=lambda tie: tie.within)

    def _round(self) -> ClockOffset:
        sent = time.monotonic_ns()
        self._reference.sendall(_ASK)
        told = b""
        while len(told) < _TIME.size:
            part = self._reference.recv(_TIME.size - len(told))
            if not part:
                raise ConnectionResetError("connection closed by peer: rank 0 keeps the clock no more")
            told += part
        came = time.monotonic_ns()
        return tie_of(sent, _TIME.unpack(told)[0], came)


def tie_of(sent: int, told: int, came: int) -> ClockOffset:
    """Returns the measurement from one request: `sent` and `came` are the own clock's times of request and answer,
    `told` is the answer (all in ns)."""
    middle = (sent + came) // 2
    return ClockOffset(middle, told - middle, -(-(came - sent) // 2))


def ahead(at: np.ndarray, ties: Sequence[ClockOffset]) -> np.ndarray:
    """Returns by how many ns rank 0's clock is ahead at the times `at` of the own clock, int64: linear between each two
    measurements; before the first and after the last of them as by these two, or without drift if they are less than
    STEADY_NS apart."""
    first, last = ties[0], ties[-1]
    passed = last.at - first.at
    drift = (last.ahead - first.ahead) / passed if passed >= STEADY_NS else 0.0
    # Relative to a measurement: ns since boot exceed the precision of float64.
    since = (np.asarray(at, np.int64) - last.at).astype(np.float64)
    outside = np.maximum(since, 0) + np.minimum(since + passed, 0)
    inside = np.interp(since, [tie.at - last.at for tie in ties], [tie.ahead - last.ahead for tie in ties])
    return last.ahead + np.rint(inside + drift * outside).astype(np.int64)


def open_clock(rendezvous: Rendezvous, rank: int, store: dist.Store | None) -> Clock:
    """Returns the clock of `rank`, after all ranks have joined. Raises OSError where rank 0 cannot be reached."""
    if rendezvous.node is None or store is None:
        return Clock()
    if rank == 0:
        return ReferenceClock(rendezvous.host, store)
    return Clock() if rendezvous.node == 0 else RemoteClock(store)
