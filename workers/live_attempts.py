"""The attempts that heartbeats list: from their acceptance until their end is published."""

from __future__ import annotations

import threading

from parallel_core.observe import progress
from workers.contract import RankProgress
from workers.folder import Folder


class LiveAttempts:
    """Written by the supervisor and the relay, read by the heartbeat; protected by a lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._named: dict[int, tuple[Folder, list[int]]] = {}
        self._still: set[int] = set()

    def add(self, folder: Folder, ranks: list[int]) -> None:
        with self._lock:
            self._named[folder.attempt] = (folder, ranks)

    def remove(self, attempt: int) -> None:
        with self._lock:
            self._named.pop(attempt, None)
            self._still.discard(attempt)

    def stands(self, attempt: int, still: bool) -> None:
        """Notes whether no rank of the attempt moves here; for one over several hosts."""
        with self._lock:
            (self._still.add if still else self._still.discard)(attempt)

    def still(self) -> list[int]:
        """Attempts over several hosts of which no rank moves here, ascending."""
        with self._lock:
            return sorted(self._still)

    def progress(self) -> dict[str, dict[str, RankProgress]]:
        """attempt -> rank -> where it is; ranks that have not begun are left out."""
        with self._lock:
            named = dict(self._named)
        return {str(number): _where(*entry) for number, entry in named.items()}


def _where(folder: Folder, ranks: list[int]) -> dict[str, RankProgress]:
    found = ((rank, progress.read(folder.path, rank)) for rank in ranks)
    return {
        str(rank): RankProgress(step=where.step, op=where.op, age=round(where.age, 3))
        for rank, where in found
        if where is not None
    }
