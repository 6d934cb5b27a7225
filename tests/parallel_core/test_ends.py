"""A rank that is killed or runs out of memory at any moment (in a collective, a message, a wait) ends all other
ranks.
"""

from __future__ import annotations

import os
import queue
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parallel_core import processes
from parallel_core.launch import EXIT_MEMORY, Event, ForkServer
from parallel_core.observe import progress
from parallel_core.observe.record_files import last_of
from parallel_core.spec import RunSpec

pytestmark = pytest.mark.skipif(not processes.LINUX, reason="reads /proc")
LIMIT_S, MOMENTS = 60.0, 10
GONE_S = 15.0
"""The longest wait from the failure of one rank to the end of all: three times what the product promises."""
MODEL = {"layers": 4, "hidden": 32, "heads": 2, "seq": 16, "vocab": 64}
KINDS: dict[str, dict[str, Any]] = {
    "data": {"dp": 2},
    "ZeRO-3": {"dp": 2, "zero": 3},
    "tensor": {"tp": 2},
    "pipeline": {"pp": 2, "micro_batches": 4},
    "no flush": {"pp": 2, "micro_batches": 4, "schedule": "1f1b-stash"},
    "widths": {"pp": 2, "micro_batches": 4, "widths": [1, 2]},
    "both": {"dp": 2, "pp": 2, "micro_batches": 2},
}


class Bench:
    """A fork server, and consecutive runs of the real engine."""

    def __init__(self, folder: Path) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.server, self._folder, self._attempt = ForkServer(self._events.put), folder, 0

    def start(self, spec: RunSpec) -> tuple[Path, dict[int, int]]:
        """Starts a run; returns its folder, and the pid of each rank."""
        self._attempt += 1
        folder, world = self._folder / str(self._attempt), spec.parallel.world
        folder.mkdir()
        saves = {"folder": str(folder / "saved"), "resume": "", "run": 0, "attempt": 0}
        self.server.start(
            {
                "attempt": self._attempt,
                "spec": spec.model_dump(mode="json"),
                "folder": str(folder),
                "first_rank": 0,
                "devices": list(range(world)),
                "device_kind": "cpu",
                "corpus_cache": str(folder),
                "saves": saves,  # type: ignore[typeddict-item]
            }
        )
        return folder, {e["rank"]: e["pid"] for e in self._until("started", world)}

    def end(self) -> list[tuple[int, int]]:
        """(rank, exit code) in the order in which ranks ended, once nothing of the run is left."""
        return _exits(self._until("gone", 1))

    def end_of_one(self, within: float = LIMIT_S) -> list[tuple[int, int]]:
        """The same, once one rank has ended within this time and, GONE_S later at most, nothing of the run is left."""
        return _exits([*self._until("exit", 1, within), *self._until("gone", 1, GONE_S)])

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.server.pid}/fd").iterdir()))

    def _until(self, kind: str, count: int, within: float = LIMIT_S) -> list[Event]:
        """All events of this run until `count` of the given kind have arrived, all of them within this time."""
        seen: list[Event] = []
        deadline = time.monotonic() + within
        while sum(e["event"] == kind for e in seen) < count:
            event = self._events.get(timeout=max(0.01, deadline - time.monotonic()))
            assert event["event"] not in ("lost", "refused"), event
            if event.get("attempt") == self._attempt and event["event"] != "store":
                seen.append(event)
        return seen


def _exits(events: list[Event]) -> list[tuple[int, int]]:
    return [(e["rank"], e["code"]) for e in events if e["event"] == "exit"]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("ends"))
    yield made
    made.server.close()


def spec_of(split: dict[str, Any], **more: Any) -> RunSpec:
    clip = "stage" if split.get("schedule", "").startswith("1f1b-") else "global"
    train = {"global_batch": 8, "steps": 100_000, "warmup_steps": 3, "clip": clip}  # a metered step is among them
    return RunSpec.model_validate({"model": MODEL, "parallel": split, "train": train, **more})


def stepping(folder: Path, ranks: int, step: int) -> None:
    until = time.monotonic() + LIMIT_S
    while any((at := progress.read(folder, rank)) is None or at.step < step for rank in range(ranks)):
        assert time.monotonic() < until, "no steps"
        time.sleep(0.005)


def test_memory_that_runs_out_on_one_rank_ends_the_other_where_it_waits(bench: Bench) -> None:
    hog = {"kind": "memory_hog", "rank": 1, "mib": 64}
    folder, pids = bench.start(spec_of(KINDS["pipeline"], inject=[hog], trace={"memory_cap": 32 << 20}))
    assert bench.end_of_one()[0] == (1, EXIT_MEMORY)
    fault = last_of(folder, 1, "fault")
    assert (
        fault and fault["cause"] == "out_of_memory" and "cap" in fault["message"] and "Traceback" in fault["traceback"]
    )
    assert not any(map(processes.alive, pids.values()))


@pytest.mark.faults
@pytest.mark.parametrize(
    ("kind", "moments"),
    [("ZeRO-3", range(1, 2)), *(pytest.param(kind, range(MOMENTS), marks=pytest.mark.full) for kind in KINDS)],
)
def test_a_rank_killed_at_any_moment_ends_all(bench: Bench, kind: str, moments: range) -> None:
    """While ranks are starting, and in step 2 or later; the next run must not be affected."""
    spec, chance = spec_of(KINDS[kind]), random.Random(kind)
    whole = spec.model_copy(update={"train": spec.train.model_copy(update={"steps": 5})})
    world = spec.parallel.world
    bench.start(whole)
    assert [code for _, code in bench.end()] == [0] * world
    files = bench.open_files()
    for moment in moments:
        folder, pids = bench.start(spec)
        if moment % 4:
            stepping(folder, world, 2)
        time.sleep(chance.random() / 5)
        victim = chance.randrange(world)
        os.kill(pids[victim], signal.SIGKILL)
        assert bench.end_of_one(GONE_S)[0] == (victim, -signal.SIGKILL)
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values()), "not even a zombie is left"
    assert bench.open_files() == files
    bench.start(whole)
    assert [code for _, code in bench.end()] == [0] * world
