"""The charts of a study agree with the runs' records."""

from __future__ import annotations

from typing import Any

from dashboard.charts import capacity
from dashboard.charts.chart import Entry
from dashboard.runs.models import Run, State
from dashboard.studies import figures
from dashboard.studies.models import Study
from dashboard.studies.selectors import overview
from parallel_core.plan.capacity import largest_layers
from tests.dashboard import factory


def test_largest_model_is_what_the_plan_predicts_for_the_device(alice: Any) -> None:
    made = factory.study(alice, "Starter", factory.SPLITS[:4], recompute=False)
    view = overview(made.runs.all(), made.baseline)
    assert view.limit == 4 << 30  # memory of the workers' devices
    for row in view.rows:
        assert row.entry.largest == largest_layers(row.spec, 4 << 30)
    chart = figures.of_overview(view)["capacity"]
    predicted, ran = chart.figure["data"]
    assert predicted["marker"]["color"] == "rgba(0,0,0,0)"  # an outline
    assert predicted["x"] == [row.entry.largest for row in view.rows]
    assert set(ran["x"]) == {4}
    most = max(row.entry.largest or 0 for row in view.rows)
    assert chart.title.startswith(f"{most:,}".replace(",", "\N{NO-BREAK SPACE}"))


def test_running_bars_have_the_whiskers_of_their_steps_so_far(alice: Any) -> None:
    made = Study.objects.create(name="Half", owner=alice)
    factory.finished(alice, {}, study=made)
    running = factory.queued(alice, {"dp": 2}, study=made, position=1)
    factory.feed_steps(factory.start(running), 20)
    Run.objects.filter(pk=running.pk).update(step_time=0.07)
    entry = next(row.entry for row in overview(made.runs.all()).rows if row.run.pk == running.pk)
    assert entry.result is not None and entry.result.step.n == 17  # 20 steps minus 3 of warm-up
    assert entry.result.step.p10 < entry.result.step.median < entry.result.step.p90


def test_points_of_an_earlier_attempt_are_drawn_faint_and_not_compared(alice: Any) -> None:
    run = factory.queued(alice)
    factory.feed_steps(factory.start(run), 20, loss_shift=1.0)
    factory.end(run, State.QUEUED)
    factory.feed_steps(factory.start(run), 43)
    factory.end(run, State.SUCCEEDED)
    chart = figures.losses(overview([run]))
    faint, line = chart.figure["data"]
    assert faint["opacity"] < 1 and len(faint["x"]) == 21 and faint["x"][-1] is None
    assert len(line["x"]) == 43
    assert all(len(axis) == 2 for axis in chart.figure["layout"]["meta"]["axes"].values())
    assert "20 points of earlier attempts" in chart.source


def test_the_dotted_line_ends_at_the_last_measured_row(alice: Any) -> None:
    made = Study.objects.create(name="Half", owner=alice)
    factory.finished(alice, {}, study=made)
    for i in range(3):
        factory.queued(alice, {"dp": 2}, study=made, position=1 + i)
    data = figures.speedups(overview(made.runs.all())).figure["data"]
    line = next(trace for trace in data if trace.get("mode") == "lines")
    assert max(line["y"]) == 0.5


def test_of_equals_one_is_named_and_the_others_are_said() -> None:
    def title(*found: tuple[str, int]) -> str:
        entries = [Entry(label, largest=most, baseline=not i) for i, (label, most) in enumerate(found)]
        return capacity.title(entries, 1 << 30)

    alone, equal = ("PP-1F1B", 90), ("PP-1F1B async, no stash", 90)
    assert title(alone, ("DP", 40)) == "90 layers would fit with PP-1F1B, predicted, more than with any other run here."
    assert title(alone, equal, ("DP", 40)).endswith("predicted, as many as with PP-1F1B async, no stash.")
    assert title(alone, equal, equal).endswith("predicted, as many as with 2 others.")
    assert title(("DP", 40), alone, equal) == "90 layers would fit with PP-1F1B, predicted: 2.25x the 40 of DP."
