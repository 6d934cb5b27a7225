"""A fork server under test: what it is told, and what its ranks (`launch_ranks`) have come to."""

from __future__ import annotations

import json
import queue
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parallel_core.launch import (
    Event,
    ForkServer,
    StartCommand,
)
from parallel_core.observe import progress
from parallel_core.observe.record_files import last_of
from parallel_core.spec import RunSpec

LIMIT_S = 60.0
COMMAND = [sys.executable, "-m", "tests.parallel_core.launch_ranks"]


class Yard:
    """A fork server under test, and all events it reported."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.events: list[Event] = []
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.server = ForkServer(self._queue.put, [*COMMAND, *options])

    def until(self, event: str, within: float = LIMIT_S, **match: Any) -> Event:
        """The next event of that kind that matches; all events before it are kept in `events`, too."""
        deadline = time.monotonic() + within
        while True:
            got = self._queue.get(timeout=max(0.01, deadline - time.monotonic()))
            self.events.append(got)
            assert event == "lost" or got["event"] != "lost", "the fork server ended"
            if got["event"] == event and match.items() <= dict(got).items():
                return got

    def start(self, attempt: int, *behaviours: str, **more: Any) -> Path:
        """Starts one rank for each behaviour, all on this host."""
        folder = self.folder / str(attempt)
        folder.mkdir()
        (folder / "behaviour.json").write_text(json.dumps(dict(enumerate(behaviours))))
        self.server.start(order(attempt, folder, len(behaviours), **more))
        return folder

    def ranks(self, attempt: int) -> dict[int, tuple[int, int]]:
        """rank -> (pid, start ticks) of the ranks reported as started."""
        mine = [e for e in self.events if e["event"] == "started" and e["attempt"] == attempt]
        return {e["rank"]: (e["pid"], e["start_ticks"]) for e in mine}

    def exits(self, attempt: int) -> list[tuple[int, int]]:
        """(rank, exit code) in the order reported."""
        return [(e["rank"], e["code"]) for e in self.events if e["event"] == "exit" and e["attempt"] == attempt]


def order(attempt: int, folder: Path, ranks: int, **more: Any) -> StartCommand:
    spec = RunSpec.model_validate({"parallel": {"dp": ranks}, "train": {"global_batch": ranks}})
    made: StartCommand = {
        "attempt": attempt,
        "spec": spec.model_dump(mode="json"),
        "folder": str(folder),
        "first_rank": 0,
        "devices": list(range(ranks)),
        "device_kind": "cpu",
        "corpus_cache": str(folder),
    }
    return made | more  # type: ignore[return-value]


def eventually(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline, "did not come true"
        time.sleep(0.02)


def where_waiting(folder: Path, ranks: int) -> bool:
    seen = [progress.read(folder, rank) for rank in range(ranks)]
    return all(where is not None and where.step == 1 for where in seen)


def told(folder: Path, rank: int, kind: str) -> dict[str, Any]:
    found = last_of(folder, rank, kind)
    assert found is not None, kind
    return found
