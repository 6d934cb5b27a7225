"""One look at the database for all parts of a run's page."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from dashboard.charts import timeline
from dashboard.control.summary import store_summary
from dashboard.one_look import one_look, read_once
from dashboard.runs import selectors
from dashboard.runs.findings import findings
from dashboard.runs.models import Cursor, SpanChunk, State
from dashboard.runs.page import charts
from dashboard.runs.page.shares import shares
from tests.dashboard import factory


def test_what_is_read_again_within_one_look_is_what_was_read_before() -> None:
    reads: list[tuple[int, str]] = []

    @read_once
    def read(one: int, *, word: str = "") -> int:
        reads.append((one, word))
        return len(reads)

    assert [read(1), read(1)] == [1, 2], "outside of a look each call reads"
    with one_look():
        assert [read(1), read(1), read(1, word="x"), read(2), read(1)] == [3, 3, 4, 5, 3]
        with one_look():
            assert read(1) == 6
        assert read(1) == 3
    assert read(1) == 7
    with pytest.raises(ValueError, match="view"), one_look():
        read(1)
        raise ValueError("view")
    assert [read(1), read(1)] == [9, 10], "a look ends with an error, too"


@pytest.mark.django_db
def test_a_step_that_arrives_while_a_page_is_made_is_on_none_of_its_parts(alice: Any) -> None:
    run = factory.study(alice, "Starter").runs.order_by("position").last()
    assert run is not None
    newest = selectors.newest_traced_step(run)
    assert newest is not None
    with one_look():
        assert selectors.newest_traced_step(run) == newest
        for chunk in SpanChunk.objects.filter(attempt__run=run, step=newest):
            chunk.pk, chunk.step = None, newest + 7
            chunk.save()
        assert selectors.newest_traced_step(run) == newest
    assert selectors.newest_traced_step(run) == newest + 7


@pytest.mark.django_db
def test_a_runs_page_reads_nothing_twice(client: Client, alice: Any) -> None:
    client.force_login(alice)
    run = factory.study(alice, "Starter").runs.order_by("position").last()
    assert run is not None
    client.get(f"/runs/{run.pk}/")  # what is cached for longer is not what this is about
    with CaptureQueriesContext(connection) as seen:
        assert client.get(f"/runs/{run.pk}/").status_code == 200
    again = {sql: count for sql, count in Counter(one["sql"] for one in seen.captured_queries).items() if count > 1}
    assert again == {} and 20 < len(seen.captured_queries) <= 29, "each takes longer to write than to answer"


@pytest.mark.django_db
def test_a_summary_reads_nothing_twice(alice: Any) -> None:
    """The controller makes one at each end of a run."""
    run = factory.finished(alice, {"dp": 2})
    with CaptureQueriesContext(connection) as seen:
        store_summary(run.pk)
    counts = Counter(one["sql"] for one in seen.captured_queries)
    assert [sql for sql, count in counts.items() if count > 1] == [] and len(counts) > 10


@pytest.mark.django_db
@pytest.mark.parametrize("address", ["/fleet/", "/runs/new/"])
def test_pages_about_the_fleet_look_at_it_once(
    member: Client, alice: Any, worker: Any, redis_url: str, address: str
) -> None:
    """They read all hosts up to five times, and up to seven times when the controller listened last."""
    factory.start(factory.queued(alice))
    factory.queued(alice)
    with CaptureQueriesContext(connection) as seen:
        assert member.get(address).status_code == 200
    hosts = [one["sql"] for one in seen.captured_queries if 'FROM "fleet_worker"' in one["sql"]]
    stamps = [
        one["sql"] for one in seen.captured_queries if 'SELECT "fleet_controllerstate"."listened_at"' in one["sql"]
    ]
    assert max(Counter(hosts).values()) == len(stamps) == 1


@pytest.mark.django_db
def test_findings_that_are_kept_are_no_older_than_what_they_are_kept_under(alice: Any) -> None:
    """The last losses of a run that has ended arrive between the verdict of its page and the findings below it."""
    run = factory.queued(alice)
    attempt = factory.start(run)
    factory.feed_losses(attempt, [3.0] * 9)
    factory.end(run, State.FAILED, "killed", "killed_by_signal")
    with one_look():
        assert len(selectors.series(run, "loss").value) == 9
        factory.feed_losses(attempt, [float("nan")] * 9, first=9)
        Cursor.objects.create(attempt=attempt, rank=0, channel="events", offset=10)
        findings(run)
    assert "divergence" in [card.finding.rule for card in findings(run).cards]


@pytest.mark.django_db
def test_a_step_that_is_kept_is_no_older_than_what_it_is_kept_under(
    alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second half of its spans arrives between two parts of a page."""
    monkeypatch.setattr(timeline, "MAX_BARS", 0)  # the step counts as a long one
    run = factory.finished(alice, {"dp": 2})
    late = SpanChunk.objects.get(attempt__run=run, rank=1)
    late.delete()
    with one_look():
        assert list(selectors.spans(run, 10)) == [0]
        late.save()
        charts.timeline(run, 10)
        shares(run)
    assert list(charts._step(run, 10).spans) == [0, 1]
    assert shares(run) != {}
