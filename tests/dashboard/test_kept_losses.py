"""Losses of runs that ended a while ago are not read again by each page and each live refresh."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard.runs.models import ARRIVES_WITHIN, Attempt, Cursor, DeadLetter, Run, SeriesChunk, State
from dashboard.studies.overview import losses
from parallel_core.observe.records import POINT
from tests.dashboard import factory
from tests.dashboard.fake_worker import points_frame

pytestmark = pytest.mark.django_db


def at_rest(run: Run) -> Run:
    Run.objects.filter(pk=run.pk).update(state=State.SUCCEEDED, ended_at=timezone.now() - 2 * ARRIVES_WITHIN)
    return Run.objects.get(pk=run.pk)


@pytest.fixture
def run(alice: Any) -> Run:
    """Ended a while ago, after a retry that began an hour later and replaced some points."""
    run = factory.queued(alice)
    first = factory.start(run)
    factory.feed(first, 0, points_frame(0, 30) + points_frame(9, 1, "eval_loss"))
    Attempt.objects.filter(pk=first.pk).update(over=True)
    second = factory.start(run)
    factory.feed(second, 0, points_frame(20, 700))
    for chunk in SeriesChunk.objects.filter(attempt=second):
        rows = np.frombuffer(bytes(chunk.data), POINT).copy()
        rows["time"] += 3600
        chunk.data = rows.tobytes()
        chunk.save()
    Cursor.objects.create(attempt=second, rank=0, channel="events", offset=100)
    Run.objects.filter(pk=run.pk).update(step=719)
    return at_rest(run)


def points(runs: list[Run]) -> tuple[list[Any], int]:
    """All that is told of the losses of these runs, and how many queries read points for it."""
    with CaptureQueriesContext(connection) as asked:
        found = losses.losses_of(runs)
        evaluated = losses.held_out_of(runs, found)
    tables = (found.held, found.replaced, evaluated.held, evaluated.replaced)
    told = [{pk: table[pk].tolist() for pk in sorted(table)} for table in tables]
    return [*told, dict(sorted(found.attempts.items()))], sum('."data"' in query["sql"] for query in asked)


def test_those_of_a_run_at_rest_are_read_once(run: Run) -> None:
    first, read = points([run])
    assert first[4][run.pk, 2] == (20, 3600.0)
    assert read == 2 and len(first[0][run.pk]) == 720 and len(first[1][run.pk]) == 10 and len(first[2][run.pk]) == 1
    assert points([run]) == (first, 0)
    assert points([run]) == (first, 0), "what is cached is not what a page moves in time"


def test_beside_those_of_a_run_that_goes_on_which_are_read_each_time(run: Run, alice: Any) -> None:
    points([run])
    live = factory.start(factory.queued(alice))
    factory.feed(live, 0, points_frame(0, 5))
    runs = [live.run, run]
    first, read = points(runs)
    assert read == 2 and {pk: len(found) for pk, found in first[0].items()} == {run.pk: 720, live.run_id: 5}
    factory.feed(live, 0, points_frame(5, 5))
    again, read = points(runs)
    assert read == 2 and {pk: len(found) for pk, found in again[0].items()} == {run.pk: 720, live.run_id: 10}


@pytest.mark.parametrize("what", ["more has arrived", "a record was stored", "it was queued again"])
def test_what_came_since_is_read(what: str, run: Run) -> None:
    attempt = run.attempts.get(number=2)
    letter = DeadLetter.objects.create(attempt=attempt, rank=0, channel="events", start=1, end=2, data=b"x")
    points([run])
    factory.feed(attempt, 0, points_frame(720, 3))
    assert len(points([run])[0][0][run.pk]) == 720, "the factory moves no cursor"
    if what == "more has arrived":
        Cursor.objects.update(offset=200)
    elif what == "a record was stored":
        letter.delete()
    else:
        run.queued_at += timedelta(seconds=1)
    found, read = points([run])
    assert read == 2 and len(found[0][run.pk]) == 723


def test_a_part_of_them_is_not_taken_for_all(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    points([run])
    monkeypatch.setattr(losses, "MOST_POINTS", 200)
    found, read = points([run])
    assert read == 1 and len(found[0][run.pk]) == 181, "every fourth, and the last"
    assert points([run]) == (found, 0)


def test_very_many_are_read_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "MOST_KEPT", 719 * 20)
    first, _ = points([run])
    assert points([run]) == (first, 1), "the few held-out ones are kept"
