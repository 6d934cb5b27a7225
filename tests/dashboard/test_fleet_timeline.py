"""The fleet's timeline: who held which device when, as bars and as a table."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.db.models.signals import post_init
from django.test import Client
from django.utils import timezone

from dashboard.fleet import worker_views
from dashboard.fleet.timeline import timeline
from dashboard.runs import states
from dashboard.runs.models import Attempt
from dashboard.studies.models import Study
from parallel_core.analysis.quantities import percent_text
from tests.dashboard import factory
from tests.dashboard.test_fleet_page import page

pytestmark = pytest.mark.usefixtures("redis_url")


def test_timeline_bars_lie_where_the_attempts_were(alice: Any) -> None:
    now = timezone.now()
    run = factory.queued(alice, {"dp": 2})
    attempt = factory.start(run)
    at = {"sent_at": now - timedelta(minutes=30), "started_at": now - timedelta(minutes=27)}
    Attempt.objects.filter(pk=attempt.pk).update(**at, ended_at=now - timedelta(minutes=15), over=True)
    found = timeline(worker_views.workers(), 1, now)
    assert [len(row.bars) for row in found.rows] == [1, 1]
    bar = found.rows[0].bars[0]
    assert (bar.left, bar.width, bar.idle) == pytest.approx((50, 25, 20))
    assert (found.shown, found.total) == (1, 1)


def test_what_bars_look_like_is_said_where_there_are_bars(reader: Client, alice: Any) -> None:
    factory.worker()
    assert "thick red edge" not in page(reader)
    factory.start(factory.queued(alice))
    assert "thick red edge" in page(reader)


def test_a_device_that_is_not_listed_any_more_was_held_nevertheless(alice: Any) -> None:
    attempt = factory.start(factory.queued(alice, {"dp": 2}))
    host = factory.worker()
    host.devices = host.devices[:1]
    host.save()
    other = {"worker": "gone", "devices": [0], "first_rank": 1, "address": "127.0.0.1"}
    Attempt.objects.filter(pk=attempt.pk).update(devices=[*attempt.devices, other])
    found = timeline(worker_views.workers(), 1)
    assert [(row.worker, row.index, len(row.bars)) for row in found.rows] == [
        ("gone", 0, 1),
        ("yard-a", 0, 1),
        ("yard-a", 1, 1),
    ]


def test_times_of_another_day_say_which(alice: Any) -> None:
    now = datetime(2026, 3, 1, 6, 30, tzinfo=UTC)
    over, held = (factory.start(factory.queued(alice)) for _ in range(2))
    sent = {"sent_at": datetime(2026, 2, 28, 23, 50, 7, tzinfo=UTC)}
    Attempt.objects.filter(pk=over.pk).update(**sent, ended_at=datetime(2026, 3, 1, 0, 10, tzinfo=UTC), over=True)
    Attempt.objects.filter(pk=held.pk).update(sent_at=datetime(2026, 3, 1, 5, 0, tzinfo=UTC))
    found = timeline(worker_views.workers(), 24, now)
    held_bar, over_bar = (one.bar for one in found.table)
    assert (over_bar.begin, over_bar.end) == ("28 Feb 23:50:07", "00:10:00")
    assert "28 Feb 23:50:07 to 00:10:00" in over_bar.words
    assert (held_bar.begin, held_bar.end) == ("05:00:00", "now") and "05:00:00 to now" in held_bar.words
    ticks = ["28 Feb 06:30", "12:30", "18:30", "1 Mar 00:30", "1 Mar 06:30"]
    assert [said.replace("\N{NO-BREAK SPACE}", " ") for _, said in found.ticks] == ticks
    assert all(said.count(" ") <= 1 for _, said in found.ticks), "a phone breaks it into at most two lines"
    assert [at for at, _ in found.ticks] == [0, 25, 50, 75, 100]
    assert timeline(worker_views.workers(), 1, now).ticks[0][1] == "05:30"


def test_the_table_under_the_timeline_lists_the_newest_attempts(
    client: Client, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.fleet.timeline.MAX_LISTED", 2)
    for name in ("oldest", "middle", "newest"):
        factory.start(factory.queued(alice, {"dp": 2}, name=name))
    found = timeline(worker_views.workers(), 1)
    assert [(held.bar.attempt.name, held.devices) for held in found.table] == [
        ("newest", "yard-a cpu 0, 1"),
        ("middle", "yard-a cpu 0, 1"),
    ]
    client.force_login(alice)
    assert "Numbers: the newest 2 of 3" in page(client)


def test_each_attempt_says_in_words_how_it_ended_itself(client: Client, alice: Any) -> None:
    run = factory.queued(alice, retries_left=1, name="retried")
    states.lose(factory.start(run), "Its worker was lost.")
    states.finish(factory.start(run), "interrupted")
    factory.start(run)
    found = timeline(worker_views.workers(), 1)
    assert [(held.bar.look, held.bar.state) for held in found.table] == [
        ("running", "Running"),
        ("interrupted", "Interrupted"),
        ("lost", "Lost"),
    ]
    bars = [bar for row in found.rows for bar in row.bars]
    assert [bar.look for bar in bars] == ["lost", "interrupted", "running"]
    assert [bar.words.rpartition(", ")[2] for bar in bars] == ["lost", "interrupted", "running"]
    client.force_login(alice)
    assert '<span class="badge" data-state="lost">Lost</span>' in page(client).partition('id="held-numbers"')[2]


def test_a_trial_that_ran_out_of_memory_did_not_fit(alice: Any) -> None:
    run = factory.queued(alice, study=Study.objects.create(name="fit", owner=alice, kind="fit", base={}))
    states.finish(factory.start(run), "failed", "out_of_memory")
    (held,) = timeline(worker_views.workers(), 1).table
    assert (held.bar.look, held.bar.state) == ("answered", "Did not fit")


def test_old_and_clipped_attempts(alice: Any) -> None:
    now = timezone.now()
    old, long = (factory.start(factory.queued(alice)) for _ in range(2))
    Attempt.objects.filter(pk=old.pk).update(
        sent_at=now - timedelta(hours=9), ended_at=now - timedelta(hours=8), over=True
    )
    Attempt.objects.filter(pk=long.pk).update(sent_at=now - timedelta(hours=9), started_at=now - timedelta(hours=9))
    bars = [bar for row in timeline(worker_views.workers(), 1, now).rows for bar in row.bars]
    assert [(bar.left, bar.width) for bar in bars] == [pytest.approx((0, 100))]


@pytest.mark.parametrize("query", ("?hours=24", "?hours=x", "?hours=-1"))
def test_any_window_in_the_address(client: Client, bob: Any, query: str) -> None:
    client.force_login(bob)
    assert page(client, query)


def test_the_share_of_the_time_that_devices_were_held_is_said(client: Client, alice: Any) -> None:
    """By hand: of 2 devices x 60 min, 2 x 15 min by an attempt that failed, 3 of each before its processes started, and
    1 x 6 min of one that goes on; of one that began before the window only what is within it."""
    now = timezone.now()

    def minutes(ago: float) -> datetime:
        return now - timedelta(minutes=ago)

    assert timeline(worker_views.workers(), 1, now).use.title == "No device was held in the last hour."
    wide, early, going = (factory.start(factory.queued(alice, {"dp": dp})) for dp in (2, 1, 1))
    rows = Attempt.objects.filter(pk=wide.pk)
    rows.update(sent_at=minutes(30), started_at=minutes(27), ended_at=minutes(15), over=True, outcome="failed")
    rows = Attempt.objects.filter(pk=early.pk)
    rows.update(sent_at=minutes(90), started_at=minutes(89), ended_at=minutes(50), over=True, outcome="succeeded")
    Attempt.objects.filter(pk=going.pk).update(sent_at=minutes(6), started_at=minutes(6))
    use = timeline(worker_views.workers(), 1, now).use
    assert (use.have, use.held, use.lost, use.waited) == pytest.approx([60 * m for m in (120, 46, 30, 6)])
    said = "Devices were held 38 % of the last hour: 0.767 of 2 device-hours."
    assert use.title == said.replace("38 %", percent_text(46 / 120))
    lost, waited = percent_text(30 / 46), percent_text(6 / 46)
    rest = f"{lost} went to attempts that failed or were lost and {waited} passed before processes had started"
    assert use.of_it == f"Of the time held, {rest}."
    client.force_login(alice)
    shown = unescape(re.sub(r"<[^>]+>", "", page(client).replace("\N{NO-BREAK SPACE}", " ")))
    assert "of the last hour: 0.7" in shown and "went to attempts that failed" in shown


def test_a_trial_that_did_not_fit_is_an_answer_and_not_lost(alice: Any) -> None:
    now = timezone.now()
    run = factory.queued(alice)
    run.study = Study.objects.create(name="fit", owner=alice, kind="fit")
    run.save()
    ended = {"over": True, "outcome": "failed", "cause": "out_of_memory", "ended_at": now}
    Attempt.objects.filter(pk=factory.start(run).pk).update(sent_at=now - timedelta(minutes=6), **ended)
    use = timeline(worker_views.workers(), 1, now).use
    assert use.held == pytest.approx(360) and use.lost == 0
    Attempt.objects.update(cause="user_code")
    assert timeline(worker_views.workers(), 1, now).use.lost == pytest.approx(360)


def test_a_bar_costs_no_instance_of_a_model(client: Client, alice: Any) -> None:
    """Three for each of two hundred bars, with the dates of all attempts of the window, took most of the page's
    time."""

    def instances() -> int:
        made: list[object] = []

        def count(instance: object, **_: object) -> None:
            made.append(instance)

        post_init.connect(count)
        try:
            page(client)
        finally:
            post_init.disconnect(count)
        return len(made)

    client.force_login(alice)
    for _ in range(3):
        states.finish(factory.start(factory.queued(alice)), "succeeded")
    few = instances()
    for _ in range(9):
        states.finish(factory.start(factory.queued(alice)), "succeeded")
    assert instances() == few and page(client).count('class="bar"') == 12
