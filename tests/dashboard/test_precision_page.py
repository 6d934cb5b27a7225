"""What pages say about 16-bit runs: loss scale and skipped steps, and losses that are not finite."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dashboard.runs.models import SeriesChunk, State
from dashboard.runs.page.metric_charts import metrics
from dashboard.runs.page.verdict import verdict
from dashboard.runs.selectors import attempt_of
from dashboard.studies.overview import excluded
from dashboard.studies.selectors import overview
from parallel_core.observe.records import POINT
from tests.dashboard import factory

pytestmark = pytest.mark.django_db


def add_series(run: Any, name: str, values: list[float]) -> None:
    """Replaces the run's series `name` by one point per step."""
    attempt = attempt_of(run)
    assert attempt
    rows = np.zeros(len(values), POINT)
    rows["step"], rows["time"], rows["value"] = np.arange(len(values)), 1.75e9 + np.arange(len(values)), values
    SeriesChunk.objects.filter(attempt=attempt, name=name, rank=0).delete()
    SeriesChunk.objects.create(
        attempt=attempt,
        name=name,
        rank=0,
        first_step=0,
        last_step=len(values) - 1,
        count=len(values),
        data=rows.tobytes(),
    )


def test_skipped_steps_are_said_and_drawn(alice: Any) -> None:
    run = factory.finished(alice, {}, train={"precision": "fp16"})
    add_series(run, "skipped_steps", [1.0, 2.0] + [2.0] * 41)
    add_series(run, "loss_scale", [65536.0, 32768.0] + [16384.0] * 41)
    assert verdict(run).more == "2 of 43 steps were skipped: their fp16 gradients overflowed."
    titles = [chart.title for chart in metrics(run)]
    assert "Loss scale: 16\N{NO-BREAK SPACE}384 at step 42, first 65\N{NO-BREAK SPACE}536" in titles
    assert "Steps skipped so far: 2 at step 42, first 1" in titles


def test_a_pipeline_that_stays_full_skips_updates(alice: Any) -> None:
    split = {"pp": 2, "micro_batches": 4, "schedule": "1f1b-stash"}
    run = factory.finished(alice, split, train={"precision": "fp16", "clip": "stage"})
    add_series(run, "skipped_steps", [4.0] + [7.0] * 42)
    assert verdict(run).more == "7 of 172 updates of the first stage were skipped: their fp16 gradients overflowed."
    assert "Updates of the first stage skipped so far: 7 at step 42, first 4" in [one.title for one in metrics(run)]


@pytest.mark.parametrize(("skipped", "said"), [(40.0, True), (2.0, False)])
def test_a_study_says_that_its_fastest_run_skipped_most_updates(alice: Any, skipped: float, said: bool) -> None:
    """A few are usual: the scale begins high."""
    study = factory.study(alice, splits=({},), recompute=False)
    run = factory.finished(alice, {}, train={"precision": "fp16"}, study=study, position=1, name="fp16")
    add_series(run, "skipped_steps", [*np.linspace(1.0, skipped, 43)])
    factory.end(run, State.SUCCEEDED)
    found = "fp16 skipped 40 of 43 updates: fp16 gradients overflowed."
    assert (found in overview(study.runs.all(), study.baseline).verdict) is said


def test_each_run_that_skipped_is_said_though_two_have_one_name(alice: Any) -> None:
    runs = [factory.queued(alice, {}, name="fp16") for _ in range(2)]
    for number, run in zip((40, 41), runs, strict=True):
        run.summary = {"skipped": [number, 43]}
    assert excluded.skipping([(run.name, run) for run in runs]) == (
        "fp16 skipped 40 of 43 updates and fp16 skipped 41 of 43 updates: fp16 gradients overflowed."
    )


def test_other_runs_have_neither_chart_nor_sentence(alice: Any) -> None:
    run = factory.finished(alice)
    assert verdict(run).more == ""
    assert not {"loss_scale", "skipped_steps"} & {chart.key for chart in metrics(run)}


@pytest.mark.parametrize(
    ("losses", "step"),
    [([5.0, 4.0, math.nan, math.inf], 2), ([5.0, math.nan, 4.0], None), ([math.nan], 0)],
)
def test_a_loss_that_stays_no_number_is_said(alice: Any, losses: list[float], step: int | None) -> None:
    run = factory.finished(alice)
    add_series(run, "loss", losses)
    said = f"The loss is not a finite number from step {step} on: Findings name the likely cause."
    told = verdict(run)
    assert told.sentence.startswith(said) is (step is not None), "it is the first thing to see"
    assert said not in told.more
