"""How long workers and attempts have been silent, counted only while the controller could listen.

Time advances only through `advance`, which the loop calls after a successful read that left nothing waiting. So an
unreachable broker, a backlog, or a stopped or restarted controller never look like a silent worker.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

MOST_COUNTED_S = 1.0
"""The longest time between two reads that counts: in a longer one the controller was suspended and heard nothing."""


class Clocks:
    """Seconds of silence of each worker, and of each worker about each attempt; both begin at 0 when first watched."""

    def __init__(self) -> None:
        self._workers: dict[str, float] = {}
        self._attempts: dict[tuple[int, str], float] = {}
        self._beat_at: dict[str, float] = {}  # CLOCK_MONOTONIC
        self._listed: dict[tuple[int, str], float] = {}
        self._still: dict[str, frozenset[int]] = {}
        self._placed: set[int] = set()

    def heard(self, worker: str, attempts: set[int], age: float = 0.0, still: frozenset[int] = frozenset()) -> None:
        """Notes a heartbeat that reached the broker `age` seconds ago: these attempts are alive there; of those in
        `still`, over several hosts, no rank moves there."""
        self._still[worker] = still
        self._workers[worker] = 0.0
        self._beat_at[worker] = time.monotonic() - max(0.0, age)
        for attempt in attempts:
            self._attempts[attempt, worker] = 0.0
            self._listed.setdefault((attempt, worker), 0.0)

    def expect(self, workers: Iterable[str]) -> None:
        """Notes that an earlier controller heard these within the lease: they are alive, though not fresh, until they
        were silent here for a lease."""
        for worker in workers:
            self._workers.setdefault(worker, 0.0)
            self._still.setdefault(worker, frozenset())
            self._beat_at.setdefault(worker, float("-inf"))

    def advance(self, seconds: float) -> None:
        counted = min(max(seconds, 0.0), MOST_COUNTED_S)
        for worker in self._workers:
            self._workers[worker] += counted
        for key in self._attempts:
            self._attempts[key] += counted
        for key in self._listed:
            self._listed[key] += counted

    def watch(self, worker: str, attempt: int) -> tuple[float, float]:
        """(silence of the worker, silence about the attempt); starts both clocks where they do not run yet."""
        return self._workers.setdefault(worker, 0.0), self._attempts.setdefault((attempt, worker), 0.0)

    def placed(self, attempt: int) -> None:
        """Notes that this controller itself placed the attempt: no heartbeat can have listed it before."""
        self._placed.add(attempt)

    def from_placement(self, attempt: int) -> bool:
        """Whether every heartbeat that ever listed the attempt was heard here."""
        return attempt in self._placed

    def was_listed(self, worker: str, attempt: int) -> bool:
        """Whether a heartbeat of the worker has listed the attempt since this controller began."""
        return (attempt, worker) in self._listed

    def still(self, lease: float) -> dict[int, set[str]]:
        """Returns attempt -> the workers heard within the lease whose last heartbeat said that none of its ranks moves
        there."""
        found: dict[int, set[str]] = {}
        for worker in self.alive(lease):
            for attempt in self._still[worker]:
                found.setdefault(attempt, set()).add(worker)
        return found

    def listed_for(self, attempt: int) -> float:
        """Seconds since a heartbeat first listed the attempt, which is when a worker had taken it."""
        return max((since for (pk, _), since in self._listed.items() if pk == attempt), default=0.0)

    def restart(self, attempt: int) -> None:
        """Gives the attempt its full time again; called after its start message was sent again."""
        self._attempts |= {key: 0.0 for key in self._attempts if key[0] == attempt}

    def alive(self, lease: float) -> set[str]:
        """Workers whose heartbeat was heard within the lease, and those that are expected."""
        return {worker for worker in self._beat_at if self._workers[worker] <= lease}

    def fresh(self, limit_s: float) -> set[str]:
        """Workers whose last heartbeat reached the broker within `limit_s` seconds, whether or not the controller could
        listen meanwhile: what comes from a backlog may be of a host that has died since."""
        since = time.monotonic() - limit_s
        return {worker for worker, at in self._beat_at.items() if at >= since}

    def keep(self, attempts: set[int]) -> None:
        """Forgets all attempts but these."""
        self._attempts = {key: silence for key, silence in self._attempts.items() if key[0] in attempts}
        self._listed = {key: since for key, since in self._listed.items() if key[0] in attempts}
        self._placed &= attempts
