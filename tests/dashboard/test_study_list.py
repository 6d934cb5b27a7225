"""The list of studies: a page of it costs the same, however many studies there are."""

from __future__ import annotations

from typing import Any

from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

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
