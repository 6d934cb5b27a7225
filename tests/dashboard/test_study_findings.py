"""Diagnosis on a study's page: the first finding of each run, the worst run first, with links to the evidence."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from dashboard.runs.findings import findings as of_run
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


def test_nothing_measured_nothing_said(client: Client, alice: Any) -> None:
    study = factory.study(alice, splits=({},), recompute=False)
    study.runs.all().delete()
    factory.queued(alice, {}, study=study)
    client.force_login(alice)
    part = client.get(f"/studies/{study.pk}/findings/").content.decode()
    assert "data-rule" not in part and "Nothing wrong" not in part
