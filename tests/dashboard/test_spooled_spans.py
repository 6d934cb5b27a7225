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
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from dashboard.control.controller import Controller
from dashboard.runs import findings, page_charts, selectors
from dashboard.runs.models import Attempt, Cursor, Run, SpanChunk
from dashboard.studies import figures
from dashboard.studies.selectors import overview
from parallel_core.analysis.diagnosis import unjudged
from parallel_core.observe.records import OMITTED, POINT, SPAN, STEP_SUM, FileSink, encode, events_path, segments
from parallel_core.observe.spool import Spool, drop_spans
from tests.dashboard import factory
from tests.dashboard.fake_worker import Peer, spans_frame
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


def omitted(rank: int, *steps: int, total: int = SPANS) -> bytes:
    rows = np.array([(step, total) for step in steps], OMITTED)
    return encode({"kind": "omitted", "rank": rank, "t": 1.0, "end": 10_000}, rows.tobytes())


@pytest.fixture
def partly(alice: Any) -> Run:
    """A run whose ranks have spans of step 10; of step 20 none has, of step 30 rank 0 alone."""
    run = factory.finished(alice, {"dp": 2})
    attempt = Attempt.objects.get(run=run)
    factory.feed(attempt, 0, spans_frame(30, 3) + omitted(0, 20))
    factory.feed(attempt, 1, omitted(1, 20, 30))
    return Run.objects.get(pk=run.pk)


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


NONE = "0 of 80 spans of step 20 were kept: its worker"


@pytest.mark.parametrize("tab", ["timeline", "accounts", "operators", "whatif"])
def test_a_step_without_spans_says_how_many_there_were(reader: Client, partly: Run, tab: str) -> None:
    text = reader.get(f"/runs/{partly.pk}/", {"tab": tab, "step": "20"}).content.decode()
    assert NONE in text.partition('id="tab"')[2]
    assert "The spans of this step were not kept" in text
    gantt = reader.get(reverse("runs:data", args=(partly.pk, "gantt")), {"step": 20}).json()
    assert gantt["figure"]["layout"]["meta"]["empty"].startswith(NONE)


MISSING = "he spans of 1 of 2 ranks of step 30 were not kept: its worker&#x27;s disk limit was reached"


@pytest.mark.parametrize(
    ("tab", "said"),
    [
        ("timeline", MISSING),
        ("timeline", "3 of 43 spans of step 30:"),
        ("accounts", "3 of 43 spans were kept: sums cover those alone."),
        ("operators", f"1 of 2 ranks are here: 0. T{MISSING}"),
        ("whatif", MISSING),
    ],
)
def test_a_step_without_the_spans_of_one_rank_says_how_many_are_there(
    reader: Client, partly: Run, tab: str, said: str
) -> None:
    text = reader.get(f"/runs/{partly.pk}/", {"tab": tab, "step": "30"}).content.decode()
    above, _, below = text.partition('id="tab"')
    assert "measured, step 30, 3 of 43 spans" in above
    assert said in below and NONE not in below and "a rank is missing" not in below


def test_the_newest_whole_step_is_not_called_the_newest(reader: Client, partly: Run) -> None:
    text = reader.get(f"/runs/{partly.pk}/").content.decode()
    assert '<h2 id="timeline-title">Newest whole traced step</h2>' in text
    assert "measured, the newest whole traced step" in text
    assert [selectors.newest_words(partly, step) for step in (20, 30)] == [
        "newest traced step with spans",
        "newest traced step",
    ]
    factory.feed(Attempt.objects.get(run=partly), 0, spans_frame(40, 3))
    assert selectors.newest_traced_step(partly) == 10, "step 40 is not whole"
    factory.feed(Attempt.objects.get(run=partly), 1, spans_frame(40, 3))
    assert '<h2 id="timeline-title">Newest traced step</h2>' in reader.get(f"/runs/{partly.pk}/").content.decode()


def test_the_choice_of_a_step_says_which_have_lost_spans(reader: Client, partly: Run) -> None:
    text = reader.get(f"/runs/{partly.pk}/").content.decode()
    options = [">10<", ">20: spans not kept<", ">30: spans of 1 of 2 ranks not kept<"]
    assert [option in text for option in options] == [True, True, True]


@pytest.mark.parametrize("form", ["chrome", "csv"])
def test_a_download_says_why_there_is_none(reader: Client, partly: Run, form: str) -> None:
    answer = reader.get(f"/runs/{partly.pk}/trace/20/{form}")
    assert answer.status_code == 404 and NONE in answer.content.decode()
    assert reader.get(f"/runs/{partly.pk}/trace/30/{form}").status_code == 200
    assert "were kept" not in reader.get(f"/runs/{partly.pk}/trace/25/{form}").content.decode()


@pytest.fixture
def lost(alice: Any) -> Run:
    """A run with one traced step, whose spans were dropped."""
    attempt = factory.start(factory.queued(alice, {"dp": 2}))
    for rank in (0, 1):
        factory.feed(attempt, rank, omitted(rank, 10))
    return Run.objects.get(pk=attempt.run_id)


def test_a_run_whose_traced_steps_were_dropped_was_traced(reader: Client, lost: Run) -> None:
    assert unjudged(findings.case_of(lost)) == "the spans of its traced steps were not kept"
    text = reader.get(f"/runs/{lost.pk}/").content.decode()
    assert '<h2 id="timeline-title">Newest traced step</h2>' in text
    rows = overview([lost]).rows
    assert figures.gantts(rows).title == "1 of these runs was traced, but the spans were not kept."


def test_compare_calls_no_older_step_the_newest(partly: Run) -> None:
    del partly.summary["breakdown_step"]  # as of a run that goes on
    rows = overview([partly]).rows
    assert "the newest whole traced step" in figures.gantts(rows).source


def test_the_newest_step_is_found_without_the_rows_of_others(partly: Run) -> None:
    """Each has a rank's spans: with some thousand steps, looking at each row takes seconds."""
    with CaptureQueriesContext(connection) as asked:
        assert selectors.newest_traced_step(partly) == 10
    assert len(asked) == 2
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            plans = [cursor.execute(f"EXPLAIN QUERY PLAN {query['sql']}").fetchone()[-1] for query in asked]
        assert "COVERING INDEX" in plans[0] and "INDEX dropped_spans" in plans[1], plans


def test_the_newest_step_of_which_some_rank_has_spans_is_shown_if_none_is_whole(alice: Any, lost: Run) -> None:
    assert selectors.newest_traced_step(lost) == 10
    attempt = Attempt.objects.get(run=lost)
    factory.feed(attempt, 0, spans_frame(20, 3) + omitted(0, 30))
    factory.feed(attempt, 1, omitted(1, 20, 30))
    assert selectors.newest_traced_step(lost) == 20


def test_steps_without_spans_stand_for_nothing(partly: Run) -> None:
    assert selectors.newest_traced_step(partly) == 10
    assert selectors.find_typical_step(partly) == 10
    assert selectors.traced_steps(partly) == [10]
    assert selectors.step_choice(partly, None).steps == [10, 20, 30]
    assert {rank: len(rows) for rank, rows in selectors.spans(partly, 30).items()} == {0: 3}
    assert [sorted(step) for step in findings.case_of(partly).traced] == [[0, 1]]
    chart = page_charts.timeline(partly)
    assert chart is not None and " of " not in chart.subtitle.split(";")[0], "of step 10 all were kept"


def test_the_api_says_how_many_were_recorded(partly: Run, alice: Any, client: Client) -> None:
    client.force_login(alice)
    refused = client.get(f"/api/v1/runs/{partly.pk}/chrome", {"step": 20})
    assert refused.status_code == 404 and refused.json()["error"]["message"].startswith(NONE)
    assert client.get(f"/api/v1/runs/{partly.pk}/chrome", {"step": 25}).json()["error"]["code"] == "not_found"
    for step, shown, total in ((20, 0, 80), (30, 3, 43)):
        data = client.get(f"/api/v1/runs/{partly.pk}/spans", {"step": step}).json()["data"]
        assert (data["shown"], data["total"]) == (shown, total)


def test_a_step_of_which_a_rank_has_no_spans_has_no_shares(alice: Any) -> None:
    attempt = factory.start(factory.queued(alice, {"dp": 2}))
    factory.feed(attempt, 1, omitted(1, 5))
    factory.feed(attempt, 0, spans_frame(5, 3))
    assert selectors.series(attempt.run, "bubble_share").step.tolist() == []


def test_steps_without_spans_are_found_by_their_own_index(partly: Run) -> None:
    """Rows of steps with spans are large: with a million of them, reading each would take minutes."""
    if connection.vendor == "sqlite":
        assert "dropped_spans" in selectors.spans_of_newest(partly).filter(count=0).order_by().explain()
    assert sorted(selectors.dropped_steps(partly)) == [20, 20, 30]
