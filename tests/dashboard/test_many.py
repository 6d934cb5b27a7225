"""Pages of a yard with many runs: lists are paginated, and no page makes a query per row."""

from __future__ import annotations

from cProfile import Profile
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from dashboard.control.placing import place_queued
from dashboard.runs import services as runs
from dashboard.runs.models import Attempt, Checkpoint, Run, State
from dashboard.studies import services
from dashboard.studies.list_views import PER_PAGE
from dashboard.studies.models import Study
from dashboard.studies.new.axes import Axes
from dashboard.studies.views import QUEUED_SHOWN
from tests.dashboard import factory

MOST_CALLS = 6_200
"""Calls of functions for one more queued run of a study on its page, and again when the page asks what has changed."""


@pytest.fixture(autouse=True)
def broker(redis_url: str) -> None:
    """Announcements need a broker."""


def test_studies_stand_on_pages_newest_first(reader: Client, alice: Any) -> None:
    for i in range(PER_PAGE + 1):
        Study.objects.create(name=f"study {i}", owner=alice)
    first, second = reader.get("/studies/"), reader.get("/studies/?page=2")
    assert [study.name for study in second.context["studies"]] == ["study 0"]
    assert len(first.context["studies"]) == PER_PAGE
    assert 'href="?page=2"' in first.content.decode()
    assert "Page 2 of 2" in second.content.decode()
    assert reader.get("/studies/?page=odd").context["studies"][0].name == f"study {PER_PAGE}"


@pytest.mark.parametrize("address", ("/studies/", "/runs/", "/fleet/", "/api/v1/runs", "/api/v1/studies"))
def test_the_number_of_queries_does_not_grow_with_the_rows(reader: Client, alice: Any, address: str) -> None:
    def add() -> None:
        services.create_matrix(owner=alice, name="study", base=factory.BASE, axes=Axes(["single", "dp"]))
        factory.finished(alice)

    def count() -> int:
        cache.clear()  # cached texts of ended runs would hide a query per row
        with CaptureQueriesContext(connection) as queries:
            assert reader.get(address).status_code == 200
        return len(queries)

    add()
    count()
    before = count()
    for _ in range(3):
        add()
    assert count() == before


@pytest.mark.parametrize("what", ["too large", "resumed"])
def test_nor_with_the_queue_on_fleet_and_where_runs_are_placed(reader: Client, alice: Any, what: str) -> None:
    """Runs that need more than the fleet has, and such that each begin from a checkpoint of their own."""
    factory.worker(devices=3)
    source = factory.finished(alice)
    attempt = Attempt.objects.get(run=source)

    def add(step: int) -> None:
        written = {"run": source, "attempt": attempt, "worker": "yard-a", "bytes": 1, "seconds": 1.0}
        Checkpoint.objects.create(step=step, **written)
        run = factory.queued(alice, {"dp": 2})
        resumed: dict[str, Any] = {"resume_run": source, "resume_step": step}
        Run.objects.filter(pk=run.pk).update(**(resumed if what == "resumed" else {"devices": 64}))

    def count() -> tuple[int, int]:
        with CaptureQueriesContext(connection) as shown:
            assert reader.get("/fleet/").status_code == 200
        with CaptureQueriesContext(connection) as claimed:
            list(place_queued({"yard-a"}, {"yard-a"}))
        Run.objects.filter(state=State.STARTING).update(state=State.QUEUED)
        Attempt.objects.filter(over=False).delete()
        return len(shown), len(claimed)

    for step in range(2):
        add(step)
    count()
    before = count()
    for step in range(2, 6):
        add(step)
    assert count() == before


@pytest.mark.full
def test_a_queued_run_costs_its_studys_page_little(member: Client, alice: Any) -> None:
    """However many there are: with a look at each column, or at all runs for each of them, a thousand took seconds."""
    study = Study.objects.create(name="long", owner=alice)
    factory.finished(alice, study=study)

    def add(count: int) -> None:
        asked: runs.RunRequest = {"study": study, "spec": factory.spec_of({}), "exclusive": True}
        runs.write(runs.prepare(owner=alice, requests=[asked for _ in range(count)]))

    def calls() -> int:
        """Calls of functions to make the page, and to see what of it has changed."""
        counter = Profile()
        for address in (f"/studies/{study.pk}/?rows=all", f"/studies/{study.pk}/changes.json?rows=all"):
            counter.runcall(member.get, address)
        return sum(entry.callcount for entry in counter.getstats())

    add(10)
    calls()
    before = calls()
    add(40)
    assert (calls() - before) / 40 < MOST_CALLS
    with CaptureQueriesContext(connection) as queries:
        page = member.get(f"/studies/{study.pk}/?rows=all").content.decode()
    reading = f'FROM "runs_run" WHERE "runs_run"."study_id" IN ({study.pk})'
    assert sum(reading in query["sql"] for query in queries) == 1
    assert page.count('data-state="queued"') == 50 + QUEUED_SHOWN
