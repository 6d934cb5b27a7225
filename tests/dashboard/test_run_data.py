"""What the run page fetches after loading: points, the Gantt chart and its text, the export."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import numpy as np
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from dashboard.live.changes import COST
from dashboard.runs import selectors
from dashboard.runs.models import Attempt, LogChunk, Run, SeriesChunk, State
from dashboard.runs.page import log_views
from dashboard.streaming import BLOCK
from parallel_core.observe.records import POINT
from tests.dashboard import factory
from tests.dashboard.streamed_body import received

pytestmark = pytest.mark.usefixtures("redis_url")  # announcements need a broker
PIPELINE = {"pp": 2, "schedule": "gpipe", "micro_batches": 4}


def cancelled(owner: Any) -> Run:
    run = factory.queued(owner)
    factory.end(run, State.CANCELLED)
    return run


def test_points_since_a_step_leave_no_gap(reader: Client, alice: Any) -> None:
    run = factory.queued(alice)
    factory.feed_steps(factory.start(run), 12)
    url = reverse("runs:data", args=[run.pk, "points"])
    first = reader.get(url, {"since": 4}).json()["series"]["loss"]
    assert first["step"] == list(range(5, 12))
    assert len(first["value"]) == len(first["time"]) == 7
    assert reader.get(url, {"since": 11}).json()["series"] == {}
    assert reader.get(url, {"since": "x"}).json()["series"]["loss"]["step"][0] == 0


def test_new_points_bring_the_title_source_and_numbers_of_the_whole_series(reader: Client, alice: Any) -> None:
    run = factory.queued(alice)
    factory.feed_steps(factory.start(run), 12)
    new = reader.get(reverse("runs:data", args=[run.pk, "points"]), {"since": 9}).json()["series"]
    drawn = reader.get(reverse("runs:data", args=[run.pk, "metrics"])).json()["charts"]
    assert new["loss"]["step"] == [10, 11] and set(new) == {key for key, one in drawn.items() if one["rows"][0][2]}
    for key, points in new.items():
        around = {name: drawn[key][name] for name in ("title", "source", "columns", "rows")}
        assert {name: points[name] for name in around} == around
    assert ", first " in new["loss"]["title"] and "12 of 12 points" in new["loss"]["source"]


def test_points_say_when_a_later_attempt_has_replaced_earlier_ones(reader: Client, alice: Any) -> None:
    run = factory.queued(alice)
    factory.feed_steps(factory.start(run), 12)
    url = reverse("runs:data", args=[run.pk, "points"])
    begins = reader.get(url, {"since": 11}).json()["begins"]
    drawn = reader.get(reverse("runs:data", args=[run.pk, "metrics"])).json()["charts"]
    assert begins["loss"] == "1:0" and begins["bubble_share"] == "1:10"
    assert begins == {key: chart["figure"]["layout"]["meta"]["begins"] for key, chart in drawn.items()}
    points = np.zeros(3, POINT)
    points["step"] = [5, 6, 7]
    place = {"rank": 0, "name": "loss", "first_step": 5, "last_step": 7, "count": 3}
    SeriesChunk.objects.create(attempt=Attempt.objects.create(run=run, number=2), data=points.tobytes(), **place)
    later = reader.get(url, {"since": 11}).json()
    assert later["begins"]["loss"] == "2:5" and later["begins"]["step_time"] == "1:0"
    assert "loss" not in later["series"]
    redrawn = reader.get(reverse("runs:data", args=[run.pk, "metrics"])).json()["charts"]
    line, faint = redrawn["loss"]["figure"]["data"]
    axes = redrawn["loss"]["figure"]["layout"]["meta"]["axes"]
    assert line["x"] == axes["step"][0] == list(range(8)), "the page adds new points to the first line"
    assert faint["x"] == axes["step"][1] == [*range(5, 12), None] and faint["opacity"] < 1
    assert "7 points of earlier attempts" in redrawn["loss"]["source"]
    assert len(redrawn["step_time"]["figure"]["data"]) == 1
    assert selectors.newest(run, "loss") == 0.0 and selectors.newest(run, "nothing") is None


@pytest.mark.parametrize(
    "address", ["part/head", "part/tiles", "part/tab?tab=logs", "data/points.json", "data/log.json", "data/gantt.json"]
)
def test_an_answer_for_an_open_page_says_what_it_cost(reader: Client, alice: Any, address: str) -> None:
    run = factory.finished(alice)
    assert float(reader.get(f"/runs/{run.pk}/{address}").headers[COST]) >= 0


def test_a_part_of_a_log_ends_where_it_is_asked_to_and_cuts_no_character(reader: Client, alice: Any) -> None:
    run = factory.queued(alice)
    text = b"\x80\x80" + "€😀".encode() + b"z"
    attempt = Attempt.objects.create(run=run, number=1)
    for at in (0, 4):  # a chunk may end inside a character
        data = text[at : at + 4] if at == 0 else text[at:]
        LogChunk.objects.create(attempt=attempt, rank=0, start=at, end=at + len(data), data=data)
    url = reverse("runs:data", args=[run.pk, "log"])
    for start, limit, part in (
        (0, 2, "\ufffd\ufffd"),
        (0, 4, "\ufffd\ufffd"),
        (3, 2, "€"),
        (2, 6, "€"),
        (7, 9, "😀z"),
        (9, 9, "z"),
    ):
        found = reader.get(url, {"start": start, "limit": limit}).json()
        assert found["text"] == part, (start, limit)
        assert text[found["start"] : found["end"]].decode(errors="replace") == part


def test_a_log_says_which_attempt_wrote_it(reader: Client, alice: Any) -> None:
    """A page that shows the beginning of one attempt's log must not continue with another's."""
    run = factory.queued(alice)
    url, page = reverse("runs:data", args=[run.pk, "log"]), reverse("runs:page", args=[run.pk]) + "?tab=logs"
    assert reader.get(url).json()["attempt"] == 0
    for number, text in ((1, b"first"), (2, b"the second is longer")):
        attempt = Attempt.objects.create(run=run, number=number)
        LogChunk.objects.create(attempt=attempt, rank=0, start=0, end=len(text), data=text)
        assert reader.get(url).json()["attempt"] == number
        assert f'data-attempt="{number}">{text.decode()}</pre>' in reader.get(page).content.decode()


def test_the_whole_log_of_a_rank_is_a_file_that_says_which_attempt_wrote_what(client: Client, alice: Any) -> None:
    run = factory.queued(alice)
    url = reverse("runs:log", args=[run.pk, 0])
    assert client.get(url).status_code == 302, "nobody is signed in"
    client.force_login(alice)
    assert received(client.get(url)) == b""
    lines = [b"%07d\n" % i for i in range(BLOCK // 4)]
    first = Attempt.objects.create(run=run, number=1)
    for start in range(0, len(lines), 1 << 13):
        data = b"".join(lines[start : start + (1 << 13)])
        LogChunk.objects.create(attempt=first, rank=0, start=8 * start, end=8 * start + len(data), data=data)
    answer = client.get(url)
    assert answer["Content-Disposition"] == f'attachment; filename="run-{run.pk}-rank-0.txt"'
    assert answer["Content-Type"].startswith("text/plain") and received(answer) == b"".join(lines)
    second = Attempt.objects.create(run=run, number=2)
    LogChunk.objects.create(attempt=second, rank=0, start=0, end=7, data=b"no line")
    third = Attempt.objects.create(run=run, number=3)
    LogChunk.objects.create(attempt=third, rank=0, start=0, end=5, data=b"\xffend\n")
    LogChunk.objects.create(attempt=third, rank=1, start=0, end=5, data=b"other")
    told = received(client.get(url))
    assert told == b"=== attempt 1 ===\n%b=== attempt 2 ===\nno line\n=== attempt 3 ===\n\xffend\n" % b"".join(lines)
    assert client.get(reverse("runs:log", args=[run.pk, run.devices])).status_code == 404
    assert f'href="{url}" download' in client.get(reverse("runs:page", args=[run.pk]) + "?tab=logs").content.decode()


def test_a_file_of_a_long_log_holds_a_block_of_it_at_a_time(alice: Any) -> None:
    run = factory.queued(alice)
    attempt = Attempt.objects.create(run=run, number=1)
    for i in range(3):
        LogChunk.objects.create(attempt=attempt, rank=0, start=i * BLOCK, end=i * BLOCK + BLOCK, data=b"x" * BLOCK)
    with CaptureQueriesContext(connection) as read:
        pieces = log_views.pieces(run, 0)
        next(pieces)
        assert len(read) == 2, "the list of its chunks, and the first of them"
        assert sum(map(len, pieces)) == 2 * BLOCK and len(read) == 4


def test_who_reads_a_log_in_parts_comes_to_its_end(alice: Any) -> None:
    """The last bytes begin a character that never became whole, as in the log of a killed rank."""
    run, text = factory.queued(alice), "a✓é🙂b"
    data = text.encode() + "✓".encode()[:2]
    attempt = Attempt.objects.create(run=run, number=1)
    LogChunk.objects.create(attempt=attempt, rank=0, start=0, end=len(data), data=data)
    for limit in (1, 3, 5, 1000):
        assert _read(run, limit) == (text, len(data) - 2), "more may come"
    Attempt.objects.update(over=True)
    for limit in (1, 3, 5, 1000):
        assert _read(run, limit) == (f"{text}\N{REPLACEMENT CHARACTER}", len(data))


def test_a_small_limit_of_whole_characters_is_kept(alice: Any) -> None:
    run, data = factory.queued(alice), "aé✓b".encode()
    attempt = Attempt.objects.create(run=run, number=1)
    LogChunk.objects.create(attempt=attempt, rank=0, start=0, end=len(data), data=data)
    parts = [selectors.log(run, 0, 0, limit) for limit in (1, 2, 3, 6)]
    assert [(part.text, part.end) for part in parts] == [("a", 1), ("a", 1), ("aé", 3), ("aé✓", 6)]


def _read(run: Run, limit: int) -> tuple[str, int]:
    """The text and the end that a reader gets who continues at the end of each part until nothing is added."""
    text, part = "", selectors.log(run, 0, 0, limit)
    while part.text:
        text, part = text + part.text, selectors.log(run, 0, part.end, limit)
    return text, part.end


def test_gantt_has_the_memory_curve_on_its_axis(reader: Client, alice: Any) -> None:
    run = factory.finished(alice, PIPELINE)
    chart = reader.get(reverse("runs:data", args=[run.pk, "gantt"])).json()
    areas = [trace for trace in chart["figure"]["data"] if trace.get("yaxis") == "y2"]
    bars = [trace for trace in chart["figure"]["data"] if trace["type"] == "bar"]
    assert len(areas) == 5
    last = max(base + x for trace in bars for base, x in zip(trace["base"], trace["x"], strict=True))
    assert areas[0]["x"][-1] == pytest.approx(last, rel=1e-3)
    assert chart["source"].startswith("measured")


def test_export_holds_every_point(reader: Client, alice: Any) -> None:
    run = factory.finished(alice, {"dp": 2})
    answer = reader.get(reverse("runs:fragment", args=[run.pk, "series-csv"]))
    rows = list(csv.DictReader(io.StringIO(received(answer).decode())))
    assert len([row for row in rows if row["series"] == "loss"]) == 43
    assert {row["rank"] for row in rows} == {"0", "1"}
    both = json.loads(received(reader.get(reverse("runs:data", args=[run.pk, "series"]))))
    assert (both["run"], both["name"], both["state"], both["spec"]) == (run.pk, run.name, run.state, run.spec)
    assert sum(len(series["step"]) for series in both["series"].values()) == len(rows)


@pytest.mark.parametrize(
    ("make", "said"),
    (
        (factory.queued, "once step 10 is done."),
        (lambda user: factory.start(factory.queued(user)).run, "once step 10 is done."),
        (lambda user: factory.queued(user, train={"steps": 4}), "once step 3 is done."),
        (cancelled, "ended before a traced step was complete"),
    ),
)
def test_an_empty_gantt_says_what_will_be_there_and_when(reader: Client, alice: Any, make: Any, said: str) -> None:
    """Nothing about the run's current state: the text is drawn once, while the state changes."""
    chart = reader.get(reverse("runs:data", args=[make(alice).pk, "gantt"])).json()
    assert not chart["figure"]["data"]
    assert said in chart["figure"]["layout"]["meta"]["empty"]
