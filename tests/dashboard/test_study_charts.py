"""The charts of a study agree with the runs' records."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from django.test import Client

from dashboard.charts import capacity
from dashboard.charts.chart import Entry
from dashboard.runs.models import Run, SeriesChunk, State
from dashboard.studies.models import Study
from dashboard.studies.overview import answers, entries, figures, held_out, losses
from dashboard.studies.overview.entries import Setting
from dashboard.studies.selectors import overview
from parallel_core.observe.record_files import encode
from parallel_core.observe.records import POINT
from parallel_core.plan.capacity import largest_layers
from parallel_core.plan.room import FRAMEWORK, Room
from parallel_core.schedule.traits import TRAITS
from parallel_core.spec import RunSpec
from tests.dashboard import factory


def test_largest_model_is_what_the_plan_predicts_for_the_device(alice: Any) -> None:
    made = factory.study(alice, "Starter", factory.SPLITS[:4], recompute=False)
    view = overview(made.runs.all(), made.baseline)
    assert view.room == Room(4 << 30, FRAMEWORK["cpu"]) and view.limit == 4 << 30  # memory of the workers' devices
    for row in view.rows:
        assert row.entry.largest == largest_layers(row.spec, (4 << 30) - FRAMEWORK["cpu"])
    chart = figures.of_overview(view)["capacity"]
    predicted, ran = chart.figure["data"]
    assert "within 4 GiB a device less 300 MiB for the framework" in chart.subtitle
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
    line, faint = chart.figure["data"]
    assert faint["opacity"] < 1 and len(faint["x"]) == 21 and faint["x"][-1] is None
    assert len(line["x"]) == 43
    assert all(len(axis) == 2 for axis in chart.figure["layout"]["meta"]["axes"].values())
    assert "20 points of earlier attempts" in chart.source


def test_losses_of_long_runs_are_compared_to_their_end(alice: Any) -> None:
    runs = [factory.finished(alice, split, train={"steps": 5_200}, loss_shift=1.0) for split in ({}, {"dp": 2})]
    view = overview(runs)
    assert [row.parity.steps for row in view.rows if row.parity] == [5_200]
    chart = figures.losses(view)
    assert " after 5\N{NO-BREAK SPACE}200 steps: " in chart.title and chart.source.endswith(
        " of 10\N{NO-BREAK SPACE}400 points"
    )
    assert view.parity_sentence.endswith(" in every loss.")


def test_losses_of_runs_that_went_on_from_a_late_checkpoint_are_drawn(alice: Any) -> None:
    run = factory.finished(alice)
    for chunk in SeriesChunk.objects.filter(attempt__run=run, name="loss"):
        points = np.frombuffer(bytes(chunk.data), POINT).copy()
        points["step"] += 6_000
        chunk.data, chunk.first_step, chunk.last_step = points.tobytes(), 6_000, 6_042
        chunk.save()
    assert " after 6\N{NO-BREAK SPACE}043 steps: " in figures.losses(overview([run])).title


@pytest.mark.parametrize(
    ("most", "every", "steps"),
    ((1_000, 4, [*range(0, 1_600, 4), 1_599]), (3, 2_048, [0, 1_599]), (4, 1_024, [0, 1_024, 1_599])),
)
def test_of_very_long_runs_the_same_steps_are_read_and_that_is_said(
    alice: Any, monkeypatch: pytest.MonkeyPatch, most: int, every: int, steps: list[int]
) -> None:
    runs = [factory.finished(alice, split, train={"steps": 1_600}, loss_shift=1.0) for split in ({}, {"dp": 2})]
    monkeypatch.setattr(losses, "MOST_POINTS", most)
    view = overview(runs)
    assert [view.losses.of(run)["step"].tolist() for run in runs] == [steps, steps]
    chart, part = figures.losses(view), f"one of every {every} losses"
    assert f"measured, {part} is read; " in chart.source and chart.source.endswith(" of 3\N{NO-BREAK SPACE}200 points")
    assert " after 1\N{NO-BREAK SPACE}600 steps: " in chart.title and view.parity_sentence.endswith(f" in {part}.")


def test_where_few_losses_are_read_a_later_attempt_still_replaces_earlier_ones(
    alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = factory.queued(alice)
    factory.feed_steps(factory.start(run), 20, loss_shift=1.0)
    factory.end(run, State.QUEUED)
    factory.feed_steps(factory.start(run), 43)
    factory.end(run, State.SUCCEEDED)
    monkeypatch.setattr(losses, "MOST_POINTS", 10)
    read = overview([run]).losses
    assert read.of(run)["step"].tolist() == [0, 8, 16, 24, 32, 40, 42]
    assert read.replaced[run.pk]["step"].tolist() == [0, 8, 16]


def test_the_dotted_line_ends_at_the_last_measured_row(alice: Any) -> None:
    made = Study.objects.create(name="Half", owner=alice)
    factory.finished(alice, {}, study=made)
    for i in range(3):
        factory.queued(alice, {"dp": 2}, study=made, position=1 + i)
    data = figures.speedups(overview(made.runs.all())).figure["data"]
    line = next(trace for trace in data if trace.get("mode") == "lines")
    assert max(line["y"]) == 0.5


def test_of_equals_the_answer_names_the_runs_that_the_chart_does(alice: Any) -> None:
    study = factory.study(alice, "Twins", ({}, {"micro_batches": 4}, {"dp": 2}), recompute=False)
    view = overview(study.runs.all(), study.baseline)
    (memory,) = [one for one in answers.of_overview(view) if one.question == "Least memory"]
    both = "Single and Single x4 micro-batches"
    assert figures.memories(view).title.startswith(f"89 MiB at most: {both}, ")
    assert memory.detail.endswith(f"; {both} take most, 89 MiB.")


def test_the_answer_on_memory_says_how_many_runs_were_metered(alice: Any) -> None:
    """It said `on the worst rank of every run` where one had not been metered."""
    study = factory.study(alice, "Unmetered", ({}, {"micro_batches": 4}, {"dp": 2}), recompute=False)
    last = study.runs.latest("pk")
    last.summary = {name: value for name, value in last.summary.items() if name != "memory"}
    last.save()
    view = overview(study.runs.all(), study.baseline)
    (memory,) = [one for one in answers.of_overview(view) if one.question == "Least memory"]
    assert memory.detail == "on the worst rank of every metered run."


def test_a_label_that_ends_with_a_number_is_no_part_of_the_number_of_layers(alice: Any) -> None:
    """It said `Micro-batches = 1 615`."""
    study = factory.study(alice, "Sweep", ({}, {"micro_batches": 4}), recompute=False)
    (most,) = [
        one for one in answers.of_overview(overview(study.runs.all(), study.baseline)) if one.target == "capacity"
    ]
    assert re.search(r"; 1\s365 with Single; on ", most.detail)


def test_the_name_of_a_study_is_not_broken_at_a_hyphen(alice: Any, reader: Client) -> None:
    study = factory.study(alice, "Sweep of Micro-batches: GPT", ({},), recompute=False)
    page = reader.get(f"/studies/{study.pk}/").content.decode()
    assert '<h1>Sweep of <span class="whole">Micro-batches:</span> GPT</h1>' in page


@pytest.mark.parametrize("cuts", [None, [3]])
def test_layers_that_are_cut_otherwise_than_those_that_ran_say_so(alice: Any, cuts: list[int] | None) -> None:
    splits: tuple[dict[str, Any], ...] = ({}, {"pp": 2, "micro_batches": 4, "cuts": cuts})
    study = factory.study(alice, "Cut", splits, recompute=False)
    view = overview(study.runs.all(), study.baseline)
    (most,) = [one for one in answers.of_overview(view) if one.question == "Largest model"]
    assert most.detail.endswith(", balanced cuts and all else equal.") is bool(cuts)
    assert figures.layers(view).source.endswith("; own cuts are replaced by balanced ones") is bool(cuts)


def test_the_steps_of_a_source_are_counted_as_one_says_them(alice: Any) -> None:
    short = factory.finished(alice, {}, train={"steps": 4})
    assert overview([short], short).source == "measured, 1 step, 3 skipped, 1 of 1 run"
    long = factory.finished(alice, {})
    assert overview([short, long], short).source == "measured, 1 to 40 steps, 3 skipped, 2 of 2 runs"


@pytest.mark.parametrize(
    ("cores", "said"),
    [
        (0, ""),
        (1, "2 of 3 runs have more devices than the one core that these share: their ranks take turns."),
        (2, "1 of 3 runs has more devices than the 2 cores that these share: its ranks take turns."),
    ],
)
def test_ranks_that_share_cores_are_a_caution(alice: Any, cores: int, said: str) -> None:
    study = factory.study(alice, "Crowded", ({}, {"dp": 2}, {"dp": 4}), recompute=False)
    Study.objects.filter(pk=study.pk).update(settings={"cores": cores})
    view = overview(Study.objects.get(pk=study.pk).runs.all(), study.baseline)
    assert [text for text in view.verdict if "take turns" in text] == [said] * bool(said)


def test_of_equals_one_is_named_and_the_others_are_said() -> None:
    def title(*found: tuple[str, int]) -> str:
        entries = [Entry(label, largest=most, baseline=not i) for i, (label, most) in enumerate(found)]
        return capacity.title(entries, Room(1 << 30))

    alone, equal = ("PP-1F1B", 90), ("PP-1F1B async, no stash", 90)
    assert title(alone, ("DP", 40)) == "90 layers would fit with PP-1F1B, predicted, more than with any other run here."
    assert title(alone, equal, ("DP", 40)).endswith("predicted, as many as with PP-1F1B async, no stash.")
    assert title(alone, equal, equal).endswith("predicted, as many as with 2 others.")
    assert title(("DP", 1)) == "1 layer would fit with DP, predicted."
    both, times = "PP-1F1B and PP-1F1B async, no stash", "predicted: 2.25x the 40 of DP."
    assert title(("DP", 40), alone, equal) == f"90 layers would fit with {both}, {times}"
    assert title(("DP", 40), alone, equal, equal) == f"90 layers would fit with PP-1F1B and 2 others, {times}"


def test_without_a_largest_model_the_chart_says_why() -> None:
    """Memory is missing only where no device has reported any."""
    vgg = RunSpec.model_validate({"model": {"kind": "vgg16"}})
    run, entry = Run(), Entry("VGG", no_largest=entries._no_largest(vgg))
    fixed = "0 of 2 runs have a largest model: a vgg16 model has no layer count, its depth is fixed."
    assert capacity.title([entry, entry], Room(1 << 30)) == fixed
    assert capacity.title([entry], None).startswith("0 devices have reported their memory so far")
    made = entries.entry_of(run, vgg, "VGG", Setting(run, vgg, None, {}, room=Room(1 << 30)))
    assert (made.largest, made.no_largest) == (None, entry.no_largest)
    long = entries._no_largest(RunSpec.model_validate(factory.UNCOUNTED))
    assert capacity.title([Entry("PP", no_largest=long)], Room(1 << 30)).endswith("it would take too long to predict.")


def test_a_runs_summary_says_how_much_of_its_compute_is_forward(alice: Any) -> None:
    run = factory.finished(alice, {"dp": 2})
    stored = run.summary["breakdown"]
    assert 0 < stored["forward"] < stored["compute"]
    names = [trace["name"] for trace in figures.breakdowns(overview([run])).figure["data"]]
    assert names[:3] == ["forward", "backward", "recomputation"]


def evaluated(owner: Any, made: Study, position: int, values: dict[int, float], **train: Any) -> Run:
    run = factory.finished(owner, {}, study=made, position=position, train={"eval_every": 10, **train})
    attempt = run.attempts.get()
    for step, value in values.items():
        points = np.zeros(1, POINT)
        points["step"], points["value"] = step, value
        about: dict[str, Any] = {"rank": 0, "name": "eval_loss", "count": 1, "closed": True}
        SeriesChunk.objects.create(attempt=attempt, data=points.tobytes(), first_step=step, last_step=step, **about)
    return run


def test_held_out_losses_of_runs_are_compared(alice: Any, client: Client) -> None:
    made = Study.objects.create(name="Held out", owner=alice)
    first = evaluated(alice, made, 0, {9: 3.0, 19: 2.5, 29: 2.75})
    second = evaluated(alice, made, 1, {9: 3.5, 19: 2.625}, eval_samples=32)
    factory.finished(alice, {}, study=made, position=2)
    chart = held_out.chart(overview(made.runs.all()))["held_out"]
    assert chart.title == f"Held-out loss: the lowest is 2.500 of {first.label} #{first.pk}, at step 19."
    assert [trace["y"] for trace in chart.figure["data"]] == [[3.0, 2.5, 2.75], [3.5, 2.625]]
    assert {trace["mode"] for trace in chart.figure["data"]} == {"lines+markers"}
    symbols = [trace["marker"]["symbol"] for trace in chart.figure["data"]]
    assert len(set(symbols)) == 2 and not any("maxdisplayed" in trace["marker"] for trace in chart.figure["data"])
    assert "mean over the last 32 and 64 samples" in chart.source and "5 of 5 points" in chart.source
    client.force_login(alice)
    for address in (f"/studies/{made.pk}/", f"/compare/?runs={first.pk},{second.pk}", f"/studies/{made.pk}/report/"):
        assert "Held-out loss: the lowest is 2.500 of" in client.get(address).content.decode(), address


def test_held_out_losses_of_a_retried_run_are_where_its_losses_are(alice: Any) -> None:
    """The retry replaces evaluations from its first step on, before it has one, and hours between attempts pass by."""

    def points(name: str, first: int, count: int, began: float, every: int = 1) -> bytes:
        rows = np.zeros(count, POINT)
        rows["step"] = first + every * np.arange(count)
        rows["time"], rows["value"] = began + rows["step"] - first, 3.0 - rows["step"] / 100
        return encode({"kind": "points", "rank": 0, "t": 1.0, "series": [[name, count]]}, rows.tobytes())

    run = factory.queued(alice, train={"eval_every": 20, "steps": 100})
    factory.feed(factory.start(run), 0, points("loss", 0, 61, 1e9) + points("eval_loss", 19, 3, 1e9 + 19, 20))
    factory.end(run, State.QUEUED)
    retry = factory.start(run)
    factory.feed(retry, 0, points("loss", 30, 5, 1e9 + 36_000))

    def drawn() -> tuple[list[int], list[float]]:
        figure = held_out.chart(overview([run]))["held_out"].figure
        return figure["data"][0]["x"], figure["layout"]["meta"]["axes"]["seconds"][0]

    assert drawn() == ([19], [19.0])
    factory.feed(retry, 0, points("loss", 35, 15, 1e9 + 36_005) + points("eval_loss", 39, 1, 1e9 + 36_009))
    assert drawn() == ([19, 39], [19.0, 39.0])
    assert "time between attempts" in held_out.chart(overview([run]))["held_out"].source


def test_without_evaluations_there_is_no_chart_of_them(alice: Any) -> None:
    made = factory.study(alice, "Plain", factory.SPLITS[:2])
    assert held_out.chart(overview(made.runs.all())) == {}


def test_pipelines_without_a_flush_are_told_apart_by_their_lines() -> None:
    """They have one colour; a new one is drawn, and another way than those there are."""
    assert list(figures.DASHES) == [name for name, traits in TRAITS.items() if traits.sync != "flush"]
    assert len({*figures.DASHES.values()}) == len(figures.DASHES)
