"""The list of studies: a page of it costs the same, however many studies there are."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from dashboard.runs.models import Run, State
from dashboard.studies.models import Study
from dashboard.studies.views import PER_PAGE
from tests.dashboard import factory


def test_the_runs_of_one_page_of_studies_are_counted(reader: Client, alice: Any) -> None:
    studies = [Study.objects.create(name=f"study {i}", owner=alice) for i in range(PER_PAGE + 2)]
    factory.queued(alice, study=studies[0])
    with CaptureQueriesContext(connection) as asked:
        last = reader.get("/studies/?page=2").context
    assert [study.pk for study in last["studies"]] == [studies[1].pk, studies[0].pk]
    assert [study.total for study in last["studies"]] == [0, 1]
    (counting,) = (query["sql"] for query in asked if "GROUP BY" in query["sql"])
    assert f'"studies_study"."id" IN ({studies[1].pk}, {studies[0].pk})' in counting


@pytest.mark.parametrize(
    ("ended", "failed", "cancelled"),
    [
        ((State.LOST, State.LOST), 1, 0),
        ((State.LOST, State.LOST, State.SUCCEEDED), 0, 0),
        ((State.SUCCEEDED, State.FAILED, State.CANCELLED), 0, 0),
        ((State.LOST, State.CANCELLED), 0, 1),
        ((State.CANCELLED, State.CANCELLED, State.QUEUED), 0, 0),
    ],
)
def test_a_setting_that_was_run_again_counts_as_the_run_that_stands_for_it(
    reader: Client, alice: Any, ended: tuple[State, ...], failed: int, cancelled: int
) -> None:
    study = Study.objects.create(name="again", owner=alice)
    first, *more = [factory.queued(alice, study=study) for _ in ended]
    for run, state in zip((first, *more), ended, strict=True):
        Run.objects.filter(pk=run.pk).update(state=state, repeats=None if run is first else first)
    (listed,) = reader.get("/studies/").context["studies"]
    assert (listed.total, listed.failed, listed.cancelled) == (1, failed, cancelled)
