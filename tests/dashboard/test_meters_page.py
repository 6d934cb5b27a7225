"""Utilisation and shares of a step on the run's page, in a study's table and in the API."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from dashboard.runs import page_charts, page_tiles, selectors
from dashboard.runs.page_verdict import rate_text, verdict
from dashboard.studies.table import METERS
from parallel_core.analysis.meters import Work
from parallel_core.analysis.quantities import seconds_text
from parallel_core.spec import RunSpec
from tests.dashboard import factory

pytestmark = pytest.mark.django_db


def test_summary_has_the_meters_of_the_median_step(alice: Any) -> None:
    run = factory.finished(alice, {"dp": 2, "recompute": "full"})
    meters, median = run.summary["meters"], run.summary["timed"]["median"]
    expected = Work.of(RunSpec.model_validate(run.spec)).speeds(median, 2 * factory.PEAK)
    assert {name: meters[name] for name in expected} == expected
    assert meters["hfu"] > meters["mfu"] > 0


def test_a_traced_step_has_its_shares(alice: Any) -> None:
    run = factory.finished(alice, {"pp": 2, "schedule": "naive"})
    found = selectors.series(run, "bubble_share")
    parts = selectors.breakdown(run, int(found.step[0]))
    assert found.value.tolist() == [pytest.approx(sum(p.share("bubble") for p in parts.values()) / 2, rel=1e-6)]
    assert found.value[0] > 0.3


def test_metrics_say_where_they_are_measured(alice: Any) -> None:
    run = factory.finished(alice, {"pp": 2})
    charts = {chart.key: chart for chart in page_charts.metrics(run)}
    assert "Chowdhery et al. 2022" in charts["mfu"].source
    assert "spans of all ranks" in charts["bubble_share"].source
    assert charts["tflops"].title.startswith("GFLOP/s a device: ")  # on CPU cores
    utilisation = selectors.series(run, "mfu").value[-1]
    assert charts["mfu"].title.startswith(f"Model FLOPs utilisation, %: {100 * utilisation:.4g} at step 42")
    assert page_charts.points_since(run, 41)["mfu"]["value"] == [pytest.approx(100 * utilisation)]
    assert all(not charts[name].empty for name in ("mfu", "hfu", "tflops", "bubble_share", "exposed_share"))


def test_tile_study_table_and_csv(alice: Any, client: Client) -> None:
    client.force_login(alice)
    study = factory.study(alice, splits=({}, {"dp": 2}), recompute=False)
    run = study.runs.first()
    throughput = next(tile for tile in page_tiles.tiles(run) if tile.key == "tokens_per_s")
    assert throughput.note.startswith("MFU ")
    run.refresh_from_db()
    assert run.tokens_per_s == pytest.approx(run.summary["meters"]["tokens_per_s"])
    assert run.tokens_per_s * run.step_time == pytest.approx(RunSpec.model_validate(run.spec).tokens_per_step)
    listed = client.get(reverse("runs:list")).content.decode()
    assert throughput.value == rate_text(run.tokens_per_s) and listed.count(throughput.value) >= 1
    median = next(tile for tile in page_tiles.tiles(run) if tile.key == "step_time")
    assert median.value == seconds_text(run.step_time) and f"{median.value} a step" in verdict(run).sentence
    page = client.get(reverse("studies:page", args=[study.pk])).content.decode()
    assert ">MFU</th>" in page
    text = client.get(reverse("studies:csv", args=[study.pk])).content.decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert all(float(row[name]) > 0 for row in rows for name in METERS)


def test_the_ranks_tab_says_that_replicas_were_equal(alice: Any, client: Client) -> None:
    client.force_login(alice)
    run = factory.finished(alice, {"dp": 2})
    page = client.get(reverse("runs:page", args=[run.pk]) + "?tab=ranks").content.decode()
    assert "3 checks, 400 µs each (under 1 % of the steps): all replicas equal bit for bit." in page
    assert "Parameters behind step 42: 0123456789abcdef." in page
