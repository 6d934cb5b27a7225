"""The Metrics tab: every recorded series is drawn, or left out for a reason; series of stages have a line for each."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from dashboard.charts.loss import MAX_LINES
from dashboard.runs import metric_charts
from dashboard.runs.metric_rows import METRICS, NOT_DRAWN
from dashboard.runs.models import Attempt, Run
from parallel_core.observe.records import RANK_SERIES, RUN_SERIES, SHARE_SERIES
from tests.dashboard import factory
from tests.dashboard.fake_worker import points_frame

pytestmark = pytest.mark.django_db
STREAM = {"pp": 2, "dp": 2, "schedule": "1f1b-stash", "micro_batches": 4}
BY_STAGE = {"staleness", "stage_loss_scale", "stage_skipped"}
LAST_RANK = 2
"""The first rank of the second stage."""


def test_every_recorded_series_is_drawn_or_left_out_for_a_reason() -> None:
    drawn, recorded = {metric.name for metric in METRICS}, {*RUN_SERIES, *SHARE_SERIES, *RANK_SERIES}
    assert len(METRICS) == len(drawn)
    assert recorded - drawn - NOT_DRAWN.keys() == set(), (
        "add it to METRICS or NOT_DRAWN of dashboard/runs/metric_rows.py"
    )
    assert drawn | NOT_DRAWN.keys() == recorded and not drawn & NOT_DRAWN.keys()


def stream(owner: Any, first: int, second: int, **train: Any) -> tuple[Run, Attempt]:
    """A run without a flush and its attempt, in which the stages have told the staleness of so many steps."""
    run = factory.queued(owner, STREAM, train={"clip": "stage", **train})
    attempt = factory.start(run)
    for rank, count in ((0, first), (LAST_RANK, second)):
        if count:
            factory.feed(attempt, rank, points_frame(0, count, "staleness", rank))
    return run, attempt


def test_a_series_of_stages_is_one_chart_with_a_line_for_each(alice: Any) -> None:
    run, _ = stream(alice, 5, 4)
    chart = next(chart for chart in metric_charts.metrics(run) if chart.key == "staleness")
    first, second = chart.figure["data"]
    assert (first["name"], second["name"]) == ("stage 0", "stage 1") and first["line"]["dash"] != second["line"]["dash"]
    assert first["y"] == [0.5, 1.5, 2.5, 3.5, 4.5] and second["x"] == [0, 1, 2, 3]
    assert chart.title == "Staleness by stage: 3.5 to 4.5 at step 4"
    assert [row[:2] for row in chart.rows] == [["stage 0", "5"], ["stage 1", "4"]] and chart.columns[0] == "stage"
    meta = chart.figure["layout"]["meta"]
    assert (meta["lines"], meta["begins"]) == ([0, 1], "1:0,1:0")


def test_lines_of_stages_grow_by_their_own_points(alice: Any) -> None:
    run, _ = stream(alice, 5, 4)
    live = metric_charts.points_since(run, 2)
    assert live["staleness:0"]["step"] == [3, 4] and live["staleness:1"]["value"] == [3.5]
    assert metric_charts.points_since(run, 3).keys() == {"staleness:0"}


def test_a_stage_that_begins_to_tell_and_an_attempt_that_replaces_one_have_the_chart_fetched(alice: Any) -> None:
    run, attempt = stream(alice, 5, 0)
    alone = metric_charts.beginnings(run)["staleness"]
    figure = next(chart.figure for chart in metric_charts.metrics(run) if chart.key == "staleness")
    assert figure["layout"]["meta"]["lines"] == [0] and len(figure["data"]) == 1
    factory.feed(attempt, LAST_RANK, points_frame(0, 4, "staleness", LAST_RANK))
    both = metric_charts.beginnings(run)["staleness"]
    attempt.over = True
    attempt.save()
    later = Attempt.objects.create(run=run, number=2, worker=attempt.worker)
    factory.feed(later, LAST_RANK, points_frame(2, 4, "staleness", LAST_RANK))
    assert (alone, both, metric_charts.beginnings(run)["staleness"]) == ("1:0,", "1:0,1:0", "1:0,2:2")
    figure = next(chart.figure for chart in metric_charts.metrics(run) if chart.key == "staleness")
    assert [trace["x"] for trace in figure["data"][1:]] == [[0, 1, 2, 3, 4, 5], [2, 3, None]]


@pytest.mark.parametrize(
    ("split", "precision", "drawn"),
    [
        (STREAM, "fp32", {"staleness"}),
        (STREAM, "fp16", BY_STAGE),
        ({"pp": 2, "micro_batches": 4}, "fp16", set()),
    ],
)
def test_charts_by_stage_are_those_that_the_run_has(
    split: dict[str, Any], precision: str, drawn: set[str], alice: Any
) -> None:
    run = factory.queued(alice, split, train={"precision": precision, "clip": "stage" if split == STREAM else "global"})
    keys = {chart.key for chart in metric_charts.metrics(run)}
    assert keys & BY_STAGE == drawn and "lr" in keys


def test_the_chart_says_how_many_stages_it_draws(alice: Any) -> None:
    run, _ = stream(alice, 1, 0)
    run.spec["model"]["layers"] = 16
    run.spec["parallel"] = {"pp": 16, "schedule": "1f1b-stash", "micro_batches": 16}
    chart = next(chart for chart in metric_charts.metrics(run) if chart.key == "staleness")
    assert f"; {MAX_LINES} of 16 stages drawn" in chart.source and len(chart.rows) == MAX_LINES


def test_the_report_names_the_stage_of_each_row(alice: Any, client: Client) -> None:
    client.force_login(alice)
    run, attempt = stream(alice, 5, 4)
    factory.feed(attempt, 0, points_frame(0, 5, "lr"))
    page = client.get(reverse("runs:report", args=[run.pk])).content.decode()
    assert "Staleness by stage, updates, stage 1</th>" in page and ">Learning rate</th>" in page
