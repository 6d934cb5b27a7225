"""Diagnosis on a study's page: the first finding of each run, the worst run first, with links to the evidence."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from dashboard.runs.findings import findings as of_run
from dashboard.runs.findings import findings_of
from dashboard.runs.models import SpanChunk
from dashboard.runs.tracing.traced import newest_traced_step, newest_traced_steps
from dashboard.studies.models import Study
from dashboard.studies.overview import findings
from dashboard.studies.overview.findings import of_overview
from dashboard.studies.selectors import overview
from tests.dashboard import factory

pytestmark = pytest.mark.django_db
NAIVE = {"pp": 4, "schedule": "naive", "micro_batches": 4}


def test_the_page_asks_for_the_findings_and_they_lead_to_their_place(client: Client, alice: Any) -> None:
    study = factory.study(alice, splits=({}, {"dp": 2}, NAIVE), recompute=False)
    client.force_login(alice)
    page = client.get(f"/studies/{study.pk}/").content.decode()
    assert f'data-live-src="/studies/{study.pk}/findings/"' in page and "Judging the runs" in page
    part = client.get(f"/studies/{study.pk}/findings/").content.decode()
    naive = study.runs.get(position=2)
    assert 'data-rule="few_micro_batches"' in part
    assert f'href="/runs/{naive.pk}/?tab=' in part and f'data-live-src="/studies/{study.pk}/findings/"' in part
    report = client.get(f"/studies/{study.pk}/report/").content.decode()
    assert "<h2>Findings</h2>" in report and f"{naive.name}: " in report


def test_the_worst_run_comes_first_and_healthy_ones_are_silent(
    client: Client, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mild = {"pp": 2, "schedule": "gpipe", "micro_batches": 2}
    study = factory.study(alice, splits=({}, {"dp": 2}, mild, NAIVE), recompute=False)
    made = of_overview(overview(study.runs.all(), study.baseline))
    costs = [one.card.finding.effect_ns / (one.row.entry.traced_median or 1) for one in made.found]
    assert len(costs) >= 2 and costs == sorted(costs, reverse=True)
    assert made.found[0].row.run.position == 3
    assert made.judged == made.total == 4 and made.rules > 10
    loud = {run.position for run in study.runs.all() if of_run(run).cards}
    assert {one.row.run.position for one in made.found} == loud
    rules = [one.card.finding.rule for one in made.shown]
    assert made.shown[0] is made.found[0] and len(rules) == len(set(rules))
    assert len(made.shown) + len(made.rest) == len(made.found)
    monkeypatch.setattr(findings, "JUDGED", 1)
    assert of_overview(overview(study.runs.all(), study.baseline)).judged == 1


def test_of_disturbed_runs_the_one_that_lost_most_comes_first(alice: Any) -> None:
    study = factory.study(alice, splits=({}, {"dp": 2}, {"tp": 2}), recompute=False)
    for run, others in zip(study.runs.order_by("position"), (0.5, 0.9, 0.7), strict=True):
        run.summary = {**run.summary, "cpu_others": others}
        run.save()
    made = of_overview(overview(study.runs.all(), study.baseline))
    assert [one.card.finding.title.partition(" of the time")[0] for one in made.found] == ["90 %", "70 %", "50 %"]


def test_nothing_measured_nothing_said(client: Client, alice: Any) -> None:
    study = factory.study(alice, splits=({},), recompute=False)
    study.runs.all().delete()
    factory.queued(alice, {}, study=study)
    client.force_login(alice)
    part = client.get(f"/studies/{study.pk}/findings/").content.decode()
    assert "data-rule" not in part and "Nothing wrong" not in part


def _asked(client: Client, study: Study) -> int:
    with CaptureQueriesContext(connection) as seen:
        assert client.get(f"/studies/{study.pk}/findings/").status_code == 200
    return len(seen)


def test_findings_that_are_kept_take_as_many_queries_for_many_runs_as_for_few(client: Client, alice: Any) -> None:
    """It was five for each run, and 23 for each that was not judged yet."""
    few = factory.study(alice, splits=({}, {"dp": 2}), recompute=False)
    many = factory.study(alice, splits=({}, {"dp": 2}, {"tp": 2}, {"pp": 2}, NAIVE), recompute=False)
    client.force_login(alice)
    first = [_asked(client, study) for study in (few, many)]
    assert first[1] - first[0] <= 3 * 14
    assert _asked(client, few) == _asked(client, many)


def test_of_many_runs_are_found_the_same_as_of_each(alice: Any) -> None:
    """One in order, and three of which not all ranks, none, or an attempt that traced nothing, has the newest step."""
    runs = [*(factory.finished(alice, {"dp": 2}) for _ in range(4)), factory.queued(alice)]
    newest = SpanChunk.objects.filter(attempt__run__in=runs[1:3])
    for chunk in newest:  # as of an earlier step
        chunk.pk, chunk.step = None, chunk.step - 5
        chunk.save()
    late = newest.filter(step=newest_traced_step(runs[0]) or 0)
    late.filter(attempt__run=runs[1], rank=1).delete()
    late.filter(attempt__run=runs[2]).update(count=0)
    factory.start(runs[3])
    assert newest_traced_steps(runs) == {run.pk: newest_traced_step(run) for run in runs}
    assert len({newest_traced_step(run) for run in runs}) == 3
    assert findings_of(runs) == {run.pk: of_run(run) for run in runs}
