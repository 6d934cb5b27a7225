"""The Metrics tab: every recorded series is drawn, or left out for a reason; series of stages have a line for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from django.test import Client
from django.urls import reverse

from dashboard.charts.loss import MAX_LINES
from dashboard.runs.models import Attempt, Run, SeriesChunk
from dashboard.runs.page import metric_charts, tiles
from dashboard.runs.page.metric_rows import METRICS, NOT_DRAWN
from parallel_core.analysis.quantities import count_text
from parallel_core.observe.record_files import encode
from parallel_core.observe.records import POINT, RANK_SERIES, RUN_SERIES, SHARE_SERIES
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
    drawn |= {metric.held_out for metric in METRICS if metric.held_out}
    assert recorded - drawn - NOT_DRAWN.keys() == set(), (
        "add it to METRICS or NOT_DRAWN of dashboard/runs/page/metric_rows.py"
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


@pytest.mark.parametrize(
    ("split", "several"),
    [({"dp": 2}, False), (STREAM, True), (STREAM | {"schedule": "1f1b-2bw"}, False)],
)
def test_a_norm_over_several_updates_of_a_step_is_called_a_mean(
    alice: Any, split: dict[str, Any], several: bool
) -> None:
    run = factory.queued(alice, split, train={"clip": "stage"})
    factory.feed(factory.start(run), 0, points_frame(0, 3, "grad_norm", 0))
    chart = next(chart for chart in metric_charts.metrics(run) if chart.key == "grad_norm")
    assert chart.source.startswith("measured before clipping")
    assert ("root mean square over the updates of a step" in chart.source) is several


def test_seconds_do_not_go_back_where_a_later_host_has_an_earlier_clock(alice: Any) -> None:
    run = factory.queued(alice)
    for first, begins in ((0, 5000.0), (3, 1400.0)):
        rows = np.zeros(5, POINT)
        rows["step"], rows["time"] = first + np.arange(5), begins + np.arange(5)
        about = {"rank": 0, "name": "loss", "first_step": first, "last_step": first + 4, "count": 5}
        SeriesChunk.objects.create(attempt=factory.start(run), data=rows.tobytes(), **about)
    chart = next(chart for chart in metric_charts.metrics(run) if chart.key == "loss")
    assert chart.figure["layout"]["meta"]["axes"]["seconds"][0] == list(range(8))


@pytest.mark.parametrize(("firsts", "said"), [((0, 3), True), ((0, 0), False), ((3,), False)])
def test_seconds_that_leave_out_a_pause_say_so(alice: Any, firsts: tuple[int, ...], said: bool) -> None:
    run = factory.queued(alice)
    for number, first in enumerate(firsts, 1):
        attempt = Attempt.objects.create(run=run, number=number, worker=factory.worker())
        factory.feed(attempt, 0, points_frame(first, 4, "loss", 0))
    chart = next(chart for chart in metric_charts.metrics(run) if chart.key == "loss")
    assert ("; the time between attempts is left out" in chart.source) == said
    live = metric_charts.points_since(run, firsts[-1])
    assert ("; the time between attempts is left out" in live["loss"]["source"]) == said


def test_an_hour_between_attempts_is_no_time_of_training(alice: Any) -> None:
    """Nor, of what the later attempts replaced, is it between the lines: each is where its own attempt was."""
    run = factory.queued(alice)
    for first, steps, begins in ((0, 10, 5000.0), (6, 4, 9000.0), (6, 2, 20000.0)):
        rows = np.zeros(steps, POINT)
        rows["step"], rows["time"] = first + np.arange(steps), begins + 2.0 * np.arange(steps)
        about = {"rank": 0, "name": "loss", "first_step": first, "last_step": first + steps - 1, "count": steps}
        SeriesChunk.objects.create(attempt=factory.start(run), data=rows.tobytes(), **about)
    chart = next(chart for chart in metric_charts.metrics(run) if chart.key == "loss")
    own, replaced = chart.figure["layout"]["meta"]["axes"]["seconds"]
    assert own == list(range(0, 16, 2))
    assert replaced == [12, 14, 16, 18, None] * 2
    live = metric_charts.points_since(run, 6)["loss"]
    assert [at - chart.figure["layout"]["meta"]["t0"] for at in live["time"]] == [14]


@pytest.mark.parametrize(
    ("attempts", "seconds"),
    [
        (((0, 10), (0, 4)), [list(range(0, 20, 2))]),
        (((0, 10), (6, 2), (0, 4)), [list(range(0, 20, 2)), [12, 14]]),
    ],
    ids=["from the beginning", "of three the second went on"],
)
def test_what_was_trained_again_from_the_beginning_is_at_its_seconds(
    alice: Any, attempts: tuple[tuple[int, int], ...], seconds: list[list[int]]
) -> None:
    """Its line stood an hour or more before 0 s, and squeezed the new one into the right end of the chart."""
    run = factory.queued(alice)
    for number, (first, steps) in enumerate(attempts, 1):
        rows = np.zeros(steps, POINT)
        rows["step"], rows["time"] = first + np.arange(steps), 4000.0 * number + 2.0 * np.arange(steps)
        about = {"rank": 0, "name": "loss", "first_step": first, "last_step": first + steps - 1, "count": steps}
        SeriesChunk.objects.create(attempt=factory.start(run), data=rows.tobytes(), **about)
    chart = next(chart for chart in metric_charts.metrics(run) if chart.key == "loss")
    own, replaced = chart.figure["layout"]["meta"]["axes"]["seconds"]
    assert own == [0, 2, 4, 6]
    assert replaced == [at for part in seconds for at in (*part, None)]
    live = metric_charts.points_since(run, 2)["loss"]
    assert [at - chart.figure["layout"]["meta"]["t0"] for at in live["time"]] == [6]


def test_lines_of_stages_grow_by_their_own_points(alice: Any) -> None:
    run, _ = stream(alice, 5, 4)
    live = metric_charts.points_since(run, 2)
    assert live["staleness:0"]["step"] == [3, 4] and live["staleness:1"]["value"] == [3.5]
    assert metric_charts.points_since(run, 3).keys() == {"staleness:0"}


def test_a_line_is_asked_for_from_its_own_step_on(alice: Any) -> None:
    run, _ = stream(alice, 5, 4)
    live = metric_charts.points_since(run, 4, {"staleness:1": 1})
    assert live.keys() == {"staleness:1"} and live["staleness:1"]["step"] == [2, 3]
    assert [row[:2] for row in live["staleness:1"]["rows"]] == [["stage 0", "5"], ["stage 1", "4"]]


def test_the_held_out_loss_is_a_second_line_of_the_loss(alice: Any) -> None:
    run = factory.queued(alice, train={"eval_every": 4, "eval_samples": 8})
    attempt = factory.start(run)
    factory.feed(attempt, 0, points_frame(0, 5) + points_frame(3, 1, "eval_loss") + points_frame(3, 1, "eval_time"))
    chart = next(chart for chart in metric_charts.metrics(run) if chart.key == "loss")
    trained, held_out = chart.figure["data"]
    assert (trained["name"], held_out["name"]) == ("trained", "held out") and held_out["x"] == [3]
    assert (trained["line"]["dash"], held_out["line"]["dash"], held_out["mode"]) == ("solid", "dash", "lines+markers")
    assert chart.title == "Loss: 4.5 at step 4, held out 3.5 at step 3"
    assert (
        "mean over the last 8 samples of the corpus, never trained on, without dropout, in 3.5 s each time"
        in chart.source
    )
    assert [row[:2] for row in chart.rows] == [["trained", "5"], ["held out", "1"]] and chart.columns[0] == "samples"
    assert chart.figure["layout"]["meta"]["lines"] == [0, 1]
    factory.feed(attempt, 0, points_frame(5, 3) + points_frame(7, 1, "eval_loss"))
    live = metric_charts.points_since(run, 4, {"loss:0": 4, "loss:1": 3})
    assert (live["loss:0"]["step"], live["loss:1"]["step"]) == ([5, 6, 7], [7])
    assert "loss" not in live and live["loss:1"]["title"] == "Loss: 7.5 at step 7, held out 7.5 at step 7"
    loss = next(tile for tile in tiles.tiles(run) if tile.key == "loss")
    assert loss.note == "held out 7.5 at step 7"


def test_samples_that_an_earlier_run_trained_on_are_not_called_new(alice: Any) -> None:
    old = factory.finished(alice)
    run = factory.queued(alice, train={"eval_every": 4})

    def source(**changes: Any) -> str:
        Run.objects.filter(pk=run.pk).update(**changes)
        run.refresh_from_db()
        return next(chart.source for chart in metric_charts.metrics(run) if chart.key == "loss")

    assert "never trained on" in source()
    assert "which may have been trained on before step 20" in source(resume_run=old, resume_step=20)
    assert "which may have been trained on before step 20" in source(resume_run=None)
    old.spec["train"]["eval_every"] = 7
    old.save()
    assert "never trained on" in source(resume_run=old)


def test_a_run_without_evaluations_has_one_line_of_loss(alice: Any) -> None:
    run = factory.queued(alice)
    factory.feed(factory.start(run), 0, points_frame(0, 5))
    chart = next(chart for chart in metric_charts.metrics(run) if chart.key == "loss")
    assert len(chart.figure["data"]) == 1 and "held out" not in chart.source + chart.title
    assert "lines" not in chart.figure["layout"]["meta"]


CHUNKS, EACH = 8, 500


@pytest.fixture
def long(alice: Any) -> Run:
    """A run with CHUNKS chunks of EACH losses, the least in the third one."""
    run = factory.queued(alice)
    attempt = factory.start(run)
    for i in range(CHUNKS):
        points = np.zeros(EACH, POINT)
        points["step"], points["value"] = np.arange(i * EACH, (i + 1) * EACH), 5.0 - i / 8 - 3 * (i == 2)
        about: dict[str, Any] = {"rank": 0, "name": "loss", "count": EACH, "closed": True}
        steps = {"first_step": i * EACH, "last_step": (i + 1) * EACH - 1}
        SeriesChunk.objects.create(attempt=attempt, data=points.tobytes(), **about, **steps)
    return run


def test_news_of_a_long_curve_are_told_without_reading_all_of_it(long: Run) -> None:
    whole = next(chart for chart in metric_charts.metrics(long) if chart.key == "loss")
    SeriesChunk.objects.filter(name="loss", first_step__in=[EACH * i for i in range(1, CHUNKS - 1)]).update(data=b"?")
    live = metric_charts.points_since(long, CHUNKS * EACH - 4)["loss"]
    assert live["title"] == whole.title == "Loss: 4.125 at step 3\N{NO-BREAK SPACE}999, first 5"
    assert live["source"].endswith(f"of {count_text(CHUNKS * EACH)} points") and not live["thinned"]
    assert live["rows"][0][:-1] == whole.rows[0][:-1]
    assert (live["rows"][0][-1], whole.figure["layout"]["meta"]["least"]) == ("4.12500", ["1.75000"])


def test_points_after_a_gap_say_that_they_are_thinned(long: Run) -> None:
    gap = metric_charts.points_since(long, -1)["loss"]
    assert gap["thinned"] and gap["step"][0] == 0 and len(gap["step"]) < CHUNKS * EACH
    assert not metric_charts.points_since(long, (CHUNKS - 3) * EACH)["loss"]["thinned"]


def test_samples_are_counted_once_for_all_lines(alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = stream(alice, 5, 4)
    counted: list[Run] = []

    def shift(run: Run) -> int:
        counted.append(run)
        return 7

    monkeypatch.setattr(metric_charts, "samples_shift", shift)
    (chart,) = [chart for chart in metric_charts.metrics(run) if chart.key == "staleness"]
    assert metric_charts.points_since(run, 2) and len(counted) == 2
    assert chart.figure["layout"]["meta"]["axes"]["samples"][1][0] == 7


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


def test_a_series_that_never_changes_is_said_once(alice: Any) -> None:
    run, attempt = stream(alice, 1, 0)
    constant = np.zeros(3, POINT)
    constant["step"], constant["value"] = range(3), 3e-4
    header = {"kind": "points", "rank": 0, "t": 1.0, "series": [["lr", len(constant)]]}
    factory.feed(attempt, 0, encode(header, constant.tobytes()))

    def title() -> str:
        return next(chart.title for chart in metric_charts.metrics(run) if chart.key == "lr")

    assert title() == "Learning rate: 0.0003 at every step"
    factory.feed(attempt, 0, points_frame(3, 1, "lr"))
    assert title() == "Learning rate: 3.5 at step 3, first 0.0003"
