"""Steps of another batch than the baseline's: the run's own time and the scaled one are never taken for each other."""

from __future__ import annotations

import csv
from typing import Any

import pytest
from django.test import Client

from dashboard.studies.models import Study
from dashboard.studies.overview import figures
from dashboard.studies.selectors import overview
from tests.dashboard import factory


def study(owner: Any, batch: int) -> Study:
    made = Study.objects.create(name="Batches", owner=owner)
    factory.finished(owner, study=made)
    factory.finished(owner, {"dp": 2}, study=made, position=1, train={"global_batch": batch})
    return made


def test_the_csv_has_the_runs_own_step_its_batch_and_the_scaled_step(reader: Client, alice: Any) -> None:
    made = study(alice, 64)
    lines = reader.get(f"/studies/{made.pk}/table.csv").content.decode().splitlines()
    table = {row["label"]: row for row in csv.DictReader(lines)}
    for run in made.runs.all():
        row, timed = table[run.label], run.summary["timed"]
        own = [float(row[name]) for name in ("step_median_s", "step_p10_s", "step_p90_s")]
        assert own == [timed["median"], timed["p10"], timed["p90"]]
        batch = int(row["global_batch"])
        assert batch == run.spec["train"]["global_batch"]
        assert float(row["step_at_baseline_batch_s"]) == pytest.approx(timed["median"] * 16 / batch)
        parts = sum(int(value) for name, value in row.items() if name.endswith("_ns"))
        assert parts / 1e9 == pytest.approx(own[0], rel=0.1), "the parts of the row add up to its own step"


def test_time_against_memory_says_what_is_scaled(alice: Any) -> None:
    view = overview(study(alice, 64).runs.all())
    chart = figures.of_overview(view)["tradeoff"]
    assert "; a step of 16 samples, scaled for 1 of 2 runs whose batch is another" in chart.subtitle
    assert chart.columns[1] == "step of 16 samples"
    assert chart.figure["layout"]["xaxis"]["title"]["text"] == "ms a step of 16 samples (left is faster)"
    (dp,) = (row.entry for row in view.rows if row.entry.label == "DP")
    dots = chart.figure["data"][-1]
    drawn = dict(zip(dots["customdata"], dots["x"], strict=True))
    assert dp.traced_median and drawn["DP"] == pytest.approx(dp.traced_median * 1e3 / 4)


def test_steps_of_one_batch_are_not_said_to_be_scaled(alice: Any) -> None:
    chart = figures.of_overview(overview(study(alice, 16).runs.all()))["tradeoff"]
    assert "scaled" not in chart.subtitle and chart.columns[1] == "step"
    assert chart.figure["layout"]["xaxis"]["title"]["text"] == "ms a step (left is faster)"


def test_a_step_of_one_sample_is_not_plural(alice: Any) -> None:
    made = Study.objects.create(name="Batches", owner=alice)
    factory.finished(alice, study=made, train={"global_batch": 1})
    factory.finished(alice, {"dp": 2}, study=made, position=1, train={"global_batch": 2})
    view = overview(made.runs.all())
    assert "; a step of 1 sample, scaled for 1 of 2 runs" in figures.of_overview(view)["tradeoff"].subtitle
    assert view.step_sentence.startswith("A step is 1 sample, the baseline's batch")
