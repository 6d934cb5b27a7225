"""Spans that a worker dropped for want of disk: counted once at the yard, whoever is killed, and said on every page."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dashboard.control.controller import Controller
from dashboard.runs import selectors
from dashboard.runs.models import Attempt, Cursor, SpanChunk
from parallel_core.observe.record_files import FileSink, events_path, segments
from parallel_core.observe.records import POINT, SPAN, STEP_SUM
from parallel_core.observe.spool import Spool, drop_spans
from tests.dashboard import factory
from tests.dashboard.fake_worker import Peer
from tests.dashboard.test_control import until
from tests.yard_process import ROOT, wait_for
from workers import relay as relay_module
from workers.contract import AttemptBody
from workers.folder import Folder
from workers.relay import Relay
from workers.settings import Settings
from workers.wire import Publisher

pytestmark = pytest.mark.django_db
STEPS = 120
SPANS = 40
KILLED_BEHIND_A_DROP = """
import os, signal, sys
from pathlib import Path
from parallel_core.observe.spool import Recorded, Spool
Spool(int(sys.argv[2])).bound([Recorded(Path(sys.argv[1]), {0: 0})])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def attempt(alice: Any) -> Attempt:
    """A running attempt of two ranks; rank 0 is the one whose files the tests write."""
    return factory.start(factory.queued(alice, {"dp": 2}))


@pytest.fixture
def folder(tmp_path: Path, attempt: Attempt) -> Folder:
    claimed = Folder.claim(tmp_path, attempt.pk)
    assert claimed
    return claimed


def record(folder: Folder) -> None:
    sink = FileSink(folder.path, 0, segment=16 << 10)
    for step in range(STEPS):
        sink.emit("spans", np.zeros(SPANS, SPAN).tobytes(), step=step, count=SPANS, total=SPANS)
        sink.emit("points", np.array([(step, 1.0, 2.0)], POINT).tobytes(), series=[["lr", 1]])
    sink.close()


@pytest.fixture
def publish(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Starts a relay, as a worker's next life does."""
    monkeypatch.setattr(relay_module, "GATHER_S", 0.0)
    begun: list[Relay] = []

    def start(folder: Folder, spool: Spool | None = None) -> Relay:
        relay = Relay(Publisher(Settings("yard-a", redis_url, tmp_path, tmp_path, boot="b1")), spool=spool)
        begun.append(relay)
        relay.start()
        relay.follow(folder, [0])
        return relay

    yield start
    for relay in begun:
        relay.leave(10)


def arrive(controller: Controller, attempt: Attempt, steps: int) -> None:
    def there() -> bool:
        controller.turn()
        return len(selectors.series(attempt.run, "lr").step) >= steps

    wait_for(f"{steps} points", there)


def stored(attempt: Attempt) -> dict[int, tuple[int, int]]:
    rows = SpanChunk.objects.filter(attempt=attempt, rank=0)
    return {step: (count, total) for step, count, total in rows.values_list("step", "count", "total")}


def check_whole(attempt: Attempt, dropped: range) -> None:
    """Every point is there once, and every traced step, of which those in `dropped` have no spans."""
    assert selectors.series(attempt.run, "lr").step.tolist() == list(range(STEPS))
    expected = {step: (0 if step in dropped else SPANS, SPANS) for step in range(STEPS)}
    assert stored(attempt) == expected


def test_a_worker_killed_between_dropping_and_publishing(
    controller: Controller, attempt: Attempt, folder: Folder, publish: Any
) -> None:
    """Nothing had been published; the spans of the oldest segments are counted, those of the others are there."""
    record(folder)
    command = [sys.executable, "-c", KILLED_BEHIND_A_DROP, str(folder.path), str(size_of(folder) // 2)]
    done = subprocess.run(command, cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    publish(folder)
    arrive(controller, attempt, STEPS)
    kept = [step for step, (count, _) in stored(attempt).items() if count]
    check_whole(attempt, range(min(kept)))
    assert min(kept) > 0 and selectors.span_counts(attempt.run, 0) == (0, SPANS)
    (event,) = attempt.run.events.filter(kind="omitted")
    assert "Worker yard-a dropped the oldest records of steps" in event.text


def test_spans_that_had_arrived_before_they_were_dropped_stay(
    controller: Controller, attempt: Attempt, folder: Folder, publish: Any
) -> None:
    """The worker was killed before it had saved how far it had published, so it publishes all from the beginning."""
    record(folder)
    first = publish(folder)
    arrive(controller, attempt, STEPS)
    assert first.leave(10)
    drop_all(folder)
    folder.save_published({})
    second = publish(folder)
    second.finish(attempt.pk, AttemptBody(attempt=attempt.pk, state="ended", outcome="succeeded"))
    until(controller, lambda: Attempt.objects.get(pk=attempt.pk).over)
    check_whole(attempt, range(0))
    base, last = segments(folder.path, 0)[-1]
    assert Cursor.objects.get(attempt=attempt, channel="events").offset == base + last.stat().st_size
    assert not attempt.run.events.filter(kind="omitted")
    assert Attempt.objects.get(pk=attempt.pk).settled


def test_a_relay_bounds_what_waits_for_a_controller_that_is_behind(
    controller: Controller, attempt: Attempt, folder: Folder, publish: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(folder)
    monkeypatch.setattr(relay_module, "MAX_BACKLOG", 0)
    whole = size_of(folder)
    publish(folder, Spool(whole // 2))
    wait_for("room on the disk", lambda: size_of(folder) <= whole // 2)
    monkeypatch.setattr(relay_module, "MAX_BACKLOG", 256)
    arrive(controller, attempt, STEPS)
    dropped = [step for step, (count, _) in stored(attempt).items() if not count]
    check_whole(attempt, range(len(dropped)))
    assert 0 < len(dropped) < STEPS


def size_of(folder: Folder) -> int:
    return sum(path.stat().st_size for _, path in segments(folder.path, 0))


def drop_all(folder: Folder) -> None:
    for base, path in segments(folder.path, 0)[:-1]:
        assert drop_spans(path, base) > 0


@pytest.mark.parametrize("again", ["from the beginning", "from the cursor"])
def test_a_record_that_begins_below_the_cursor_counts_what_is_above(
    controller: Controller, attempt: Attempt, folder: Folder, publish: Any, peer: Peer, again: str
) -> None:
    """The yard had stored two of the steps that one record of the worker's now stands for, when the rest was lost."""
    sink, path, ends = FileSink(folder.path, 0, segment=8_000), events_path(folder.path, 0), []
    for step in range(8):
        sink.emit("spans", np.zeros(SPANS, SPAN).tobytes(), step=step, count=SPANS, total=SPANS)
        ends.append(path.stat().st_size)
    sink.emit("points", np.array([(0, 1.0, 2.0)], POINT).tobytes(), series=[["lr", 1]])
    peer.send(attempt.pk, path.read_bytes()[: ends[1]])
    controller.turn()
    assert stored(attempt) == {0: (SPANS, SPANS), 1: (SPANS, SPANS)}
    drop_all(folder)
    base, last = segments(folder.path, 0)[-1]
    folder.save_published({} if again == "from the beginning" else {"events:0": base + last.stat().st_size})
    relay = publish(folder)
    relay.rewind(attempt.pk, "events", 0, ends[1])
    arrive(controller, attempt, 1)
    assert [count for _, (count, _) in sorted(stored(attempt).items())] == [SPANS, SPANS, 0, 0, 0, SPANS, SPANS, SPANS]


def test_what_steps_consisted_of_is_dropped_with_an_event_too(
    controller: Controller, attempt: Attempt, folder: Folder, publish: Any
) -> None:
    """Of a run that traces no step, records of `waits` are all that the disk limit can drop, and leave no row."""
    sink = FileSink(folder.path, 0, segment=1_000)
    for step in range(40):
        sink.emit("waits", bytes(STEP_SUM.itemsize), steps=1)
        sink.emit("points", np.array([(step, 1.0, 2.0)], POINT).tobytes(), series=[["lr", 1]])
    sink.close()
    drop_all(folder)
    publish(folder)
    arrive(controller, attempt, 40)
    assert not SpanChunk.objects.exists()
    (event,) = attempt.run.events.filter(kind="omitted")
    assert event.text == (
        "Worker yard-a dropped the oldest records of steps (spans, what steps consisted of) before the yard had stored "
        "them: "
        "TRAINYARD_SPOOL_BYTES was reached."
    )
