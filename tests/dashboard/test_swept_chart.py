"""What a sweep shows of its fields: which value was best, how much depends on it, and all that was tried."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from dashboard.charts import swept as charts
from dashboard.charts.swept_title import Field, Quantity, Tried
from dashboard.runs.models import Run, State
from dashboard.studies import services
from dashboard.studies.models import Study
from dashboard.studies.new.axes import Swept
from dashboard.studies.overview import swept
from dashboard.studies.selectors import overview
from tests.dashboard import factory

RATE, BATCH = Field("Rate", ["0.1", "0.2", "0.3"]), Field("Batch", ["4", "8"])
LOSS = Quantity("final loss", "{:.2f}".format)


@pytest.fixture(autouse=True)
def broker(redis_url: str) -> None:
    """Announcements need a broker."""


def tried(*values: tuple[tuple[int, ...], float | None]) -> list[Tried]:
    return [Tried(f"run {i}", places, value, "" if value else "failed") for i, (places, value) in enumerate(values)]


CROSSED = tried(((0, 0), 4.0), ((1, 0), 1.0), ((2, 0), None), ((0, 1), 3.0), ((1, 1), 1.5), ((2, 1), 2.0))


def test_two_fields_are_a_heat_map_with_what_each_pair_reached_and_the_best_framed() -> None:
    made = charts.chart([RATE, BATCH], CROSSED, LOSS, "measured")
    cells, frame = made.figure["data"]
    assert cells["z"] == [[4.0, 3.0], [1.0, 1.5], [None, 2.0]], "the field with more values goes down"
    assert cells["text"] == [["4.00", "3.00"], ["1.00", "1.50"], ["failed", "2.00"]]
    assert cells["customdata"][2] == ["Rate 0.3, Batch 4: failed", "Rate 0.3, Batch 8: 2.00"]
    assert min(frame["x"]) < 0 < max(frame["x"]) and min(frame["y"]) < 1 < max(frame["y"])
    assert made.title == (
        "Lowest final loss: 1.00, with Rate 0.2 and Batch 4. "
        "Rate matters most: its worst value gives 3.0 times as much, that of Batch 50 % more."
    )
    assert made.source == "measured, 5 of 6 runs"
    assert made.rows[0] == ["0.2", "4", "run 1", "1.00"] and made.rows[-1] == ["0.3", "4", "run 2", "failed"]


def test_a_report_has_the_pictures_of_all_of_them() -> None:
    crossed = str(charts.chart([RATE, BATCH], CROSSED, LOSS, "s").picture)
    cells = re.findall(r'<rect [^>]*fill="[^"]*" fill-opacity="([\d.]+)"/>', crossed)
    assert cells == ["0.00", "0.00", "1.00", "0.75", "0.50"], "the least has all of the colour, one that failed none"
    words = re.findall(r"<text[^>]*>(.*?)</text>", crossed)
    assert {"failed", "1.00", "Rate", "Batch", "4", "0.3"} <= set(words)
    one = str(charts.chart([RATE], tried(((0,), 3.0), ((1,), 1.0), ((2,), 2.0)), LOSS, "s").picture)
    assert all(f">{word}</text>" in one for word in ("0.1", "0.2", "0.3", "Rate")), "values, not their places"
    three = charts.chart([RATE, BATCH, Field("So & so", ["a", "<b>"])], _of_three(), LOSS, "s").picture
    words = re.findall(r"<text[^>]*>(.*?)</text>", str(three))
    assert {"Rate", "Batch", "&amp;", "&lt;b&gt;"} <= set(words), words


def _of_three() -> list[Tried]:
    return [*[Tried(run.label, (*run.places, 0), run.value) for run in CROSSED], Tried("x", (0, 0, 1), 3.5)]


def test_runs_of_the_same_values_share_a_cell() -> None:
    """It has the best of them: in another, with a better mean, the most colour would be outside the frame."""
    made = charts.chart([RATE, BATCH], tried(((0, 0), 1.0), ((0, 0), 3.0), ((1, 0), 1.5)), LOSS, "s")
    cells, frame = made.figure["data"]
    assert cells["z"][0][0] == cells["zmin"] == 1.0 and cells["text"][0][0] == "1.00", "as the title says"
    assert min(frame["y"]) < 0 < max(frame["y"])
    assert cells["customdata"][0][0].endswith(": 1.00, best of 2 runs")
    assert cells["customdata"][1][1] == "Rate 0.2, Batch 8: not tried"
    none = tried(((0, 0), None), ((0, 0), None), ((1, 1), 1.0), ((1, 0), 2.0))
    words = charts.chart([RATE, BATCH], none, LOSS, "s").figure["data"][0]["customdata"][0][0]
    assert words.endswith(": failed"), "none of them is the best"


def test_one_field_is_a_line_and_three_are_side_by_side_each_through_its_best() -> None:
    one = charts.chart([RATE], tried(((0,), 3.0), ((1,), 1.0), ((2,), 2.0)), LOSS, "s")
    assert one.figure["data"][1]["y"] == [3.0, 1.0, 2.0, None]
    assert one.title == "Lowest final loss: 1.00, with Rate 0.2. The worst value gives 3.0 times as much."
    three = _of_three()
    made = charts.chart([RATE, BATCH, Field("Decay", ["0", "1"])], three, LOSS, "s")
    dots, line = made.figure["data"]
    assert line["x"] == [0, 1, 2, None, 4, 5, None, 7, 8, None], "the best of each value, field by field"
    assert line["y"] == [3.0, 1.0, 2.0, None, 1.0, 1.5, None, 1.0, 3.5, None]
    assert len(dots["x"]) == 3 * 6 and next(name["text"] for name in made.figure["layout"]["annotations"]) == "Rate"


def test_a_worst_value_is_only_of_the_losses_that_are_finite() -> None:
    some = [*tried(((0,), 3.0), ((1,), 1.0)), Tried("run 2", (2,), None, "not finite")]
    title = charts.chart([RATE], some, LOSS, "s").title
    assert title == "Lowest final loss: 1.00, with Rate 0.2. Of finite losses, the worst value gives 3.0 times as much."
    failed = charts.chart([RATE], tried(((0,), 3.0), ((1,), 1.0), ((2,), None)), LOSS, "s").title
    assert failed.endswith(" The worst value gives 3.0 times as much."), "why it failed is not known to be its loss"
    both = [Tried(one.label, one.places, one.value, one.why and "not finite") for one in CROSSED]
    assert ". Of finite losses, Rate matters most: " in charts.chart([RATE, BATCH], both, LOSS, "s").title


def test_only_a_field_that_was_changed_by_itself_is_said_to_matter() -> None:
    """The second batch was tried with the second rate alone, where it is the better one."""
    some = tried(((0, 0), 1.0), ((1, 0), 2.0), ((1, 1), 1.9))
    title = charts.chart([RATE, BATCH], some, LOSS, "s").title
    assert title == (
        "Lowest final loss: 1.00, with Rate 0.1 and Batch 4. "
        "Rate matters most: its worst value gives 2.0 times as much, that of Batch 5 % more."
    )
    part = tried(((0, 0), 1.0), ((1, 0), 2.0), ((2, 1), 9.0))
    title = charts.chart([RATE, BATCH], part, LOSS, "s").title
    assert title.endswith(" The worst value of Rate gives 2.0 times as much. Batch was not changed by itself.")
    none = tried(((0, 0), 1.0), ((1, 1), 2.0))
    title = charts.chart([RATE, BATCH], none, LOSS, "s").title
    assert title.endswith(" Rate and Batch were not changed by themselves.") and "matters" not in title


def test_only_runs_of_the_baselines_kind_of_model_have_fields(alice: Any) -> None:
    study = sweep(alice, Swept("train.seed", ["1", "2", "3"]), [2.0, 1.0, 3.0])
    mlp = {**factory.BASE, "model": {"kind": "mlp", "layers": 2, "hidden": 8}}
    factory.finished(alice, study=study, position=9)
    Run.objects.filter(study=study, position=9).update(spec=mlp | {"parallel": {}})
    chart = swept.of_overview(study.kind, overview(study.runs.all(), study.baseline, ranked=True))["swept"]
    assert list(chart.columns)[:2] == ["Seed", "run"], "another kind of model has no sequence that could differ"


def test_times_within_noise_are_not_said_to_depend_on_a_field(alice: Any) -> None:
    study = sweep(alice, Swept("parallel.micro_batches", ["1", "2", "4"]), [1.0, 1.02, 1.04])
    for run in study.runs.all():
        timed = run.summary["timed"]
        run.summary = {"timed": {**timed, "p10": timed["p10"] - 0.05, "p90": timed["p90"] + 0.05}}
        run.save(update_fields=["summary"])
    chart = swept.of_overview(study.kind, overview(study.runs.all(), ranked=True))["swept"]
    assert (
        chart.title == "Lowest step time: 1.00 s, with Micro-batches 1. The worst value gives 4 % more, within noise."
    )
    assert chart.figure["layout"]["yaxis"]["title"]["text"] == "ms a step"
    assert chart.figure["data"][1]["y"] == pytest.approx([1000, 1020, 1040, None]), "in the unit of the axis"
    crossed = Swept("parallel.micro_batches", ["1", "2"], "train.deterministic", ["false", "true"])
    study = sweep(alice, crossed, [1.0, 1.02, 1.04, 1.06])
    for run in study.runs.all():
        run.summary = {"timed": {**run.summary["timed"], "p10": 0.9, "p90": 1.1}}
        run.save(update_fields=["summary"])
    chart = swept.of_overview(study.kind, overview(study.runs.all(), ranked=True))["swept"]
    assert chart.title.endswith(" What each field changes is within noise.")


def test_a_best_value_at_an_end_asks_to_try_beyond() -> None:
    runs = tried(((0,), 1.0), ((1,), 2.0), ((2,), 3.0))
    assert "the best Rate is at an end of what was tried: try values beyond" in (
        charts.chart([RATE], runs, LOSS, "s").subtitle
    )
    assert "beyond" not in charts.chart([RATE, BATCH], CROSSED, LOSS, "s").subtitle


def test_runs_far_above_the_others_do_not_press_these_together_and_are_counted() -> None:
    rates = Field("Rate", [str(i) for i in range(6)])
    made = charts.chart([rates], tried(*(((i,), value) for i, value in enumerate((3, 2, 1, 2, 3, 1e6)))), LOSS, "s")
    assert made.figure["layout"]["yaxis"]["range"][1] < 20 and made.figure["layout"]["meta"]["above"] == 1
    assert made.source.endswith("1 of them above this view: “All values” shows them")
    assert made.printed_source.endswith("1 of them above this view"), "paper has no button"


def sweep(alice: Any, swept_fields: Swept, losses: list[float | None]) -> Study:
    """A sweep whose runs ended with these losses; None = it failed."""
    factory.worker()
    study = services.create_sweep(owner=alice, name="s", base=factory.BASE, swept=swept_fields, timed_steps=40)
    for run, loss in zip(study.runs.order_by("position"), losses, strict=True):
        Run.objects.filter(pk=run.pk).update(
            state=State.FAILED if loss is None else State.SUCCEEDED,
            summary={"timed": dict.fromkeys(("median", "p10", "p90", "mean"), loss or 1.0) | {"n": 40}}
            | ({} if loss is None else {"final_loss": loss}),
        )
    return study


RATES = Swept("train.lr", ["3e-3", "1e-3"], "train.global_batch", ["16", "8"])


def test_the_page_of_a_sweep_begins_with_its_chart_of_losses(member: Client, alice: Any) -> None:
    page = member.get(f"/studies/{sweep(alice, RATES, [2.0, 1.0, None, 4.0]).pk}/")
    chart = page.context["charts"]["swept"]
    assert list(chart.columns) == ["Global batch", "Learning rate", "run", "final loss"]
    assert [[row[0], row[1], row[3]] for row in chart.rows] == [
        ["8", "0.003", "1.000"],
        ["16", "0.003", "2.000"],
        ["8", "0.001", "4.000"],
        ["16", "0.001", "failed"],
    ], "values by size, whatever their order in the sweep"
    text = page.content.decode()
    assert text.index('id="chart-swept"') < text.index('id="chart-loss"')


def test_a_run_without_a_loss_says_why(alice: Any) -> None:
    study = sweep(alice, Swept("train.lr", ["1", "2", "3", "4", "5", "6"]), [2.0, 1.0, 3.0, None, None, None])
    ended = {3: (State.FAILED, "user_code"), 4: (State.SUCCEEDED, ""), 5: (State.FAILED, "not_finite")}
    for run in study.runs.filter(position__in=ended):
        state, cause = ended[run.position]
        Run.objects.filter(pk=run.pk).update(state=state, cause=cause, step=9, loss=None)
    chart = swept.of_overview(study.kind, overview(study.runs.all(), ranked=True))["swept"]
    assert sorted((row[0], row[2]) for row in chart.rows[3:]) == [
        ("4", "failed"),
        ("5", "not finite"),
        ("6", "not finite"),
    ]
    assert "Of finite losses, the worst value gives 3.0 times as much." in chart.title


def test_where_all_train_the_same_the_time_of_a_step_is_held_against_the_field(alice: Any) -> None:
    study = sweep(alice, Swept("parallel.micro_batches", ["1", "2", "4"]), [0.3, 0.1, 0.2])
    chart = swept.of_overview(study.kind, overview(study.runs.all(), ranked=True))["swept"]
    assert chart.title.startswith("Lowest step time: 100 ms, with Micro-batches 2.")


@pytest.mark.parametrize(
    ("path", "values", "beyond"),
    [
        ("parallel.micro_batches", ["1", "2", "4"], False),
        ("parallel.micro_batches", ["2", "4", "8"], True),
        ("train.seed", ["3", "4", "5"], False),
    ],
)
def test_beyond_a_bound_there_is_nothing_to_try(alice: Any, path: str, values: list[str], beyond: bool) -> None:
    """The first is the best: no step has fewer than one micro-batch, and no seed is less than another."""
    study = sweep(alice, Swept(path, values), [0.1, 0.2, 0.3])
    chart = swept.of_overview(study.kind, overview(study.runs.all(), ranked=True))["swept"]
    assert ("try values beyond" in chart.subtitle) is beyond


def test_beyond_words_there_is_nothing_to_try(alice: Any) -> None:
    study = sweep(alice, Swept("train.lr_schedule", ["constant", "linear", "cosine"]), [0.3, 0.2, 0.1])
    chart = swept.of_overview(study.kind, overview(study.runs.all(), ranked=True))["swept"]
    assert "with Learning-rate schedule “Falls as a cosine”." in chart.title and "beyond" not in chart.subtitle


def test_report_and_compare_have_the_chart_too(member: Client, alice: Any) -> None:
    study = sweep(alice, RATES, [2.0, 1.0, None, 4.0])
    title = "Lowest final loss: 1.000, with Global batch 8 and Learning rate 0.003."
    report = member.get(f"/studies/{study.pk}/report/").content.decode()
    assert report.index(title) < report.index("<svg viewBox") < report.index("Speedup over the baseline")
    runs = list(study.runs.order_by("position"))
    named = ",".join(str(run.pk) for run in runs)
    page = member.get(f"/compare/?runs={named}")
    assert page.context["charts"]["swept"].title.startswith(title) and 'id="chart-swept"' in page.content.decode()
    assert "swept" in member.get(f"/compare/changes.json?runs={named}").json()["charts"]
    two = member.get(f"/compare/?runs={runs[0].pk},{runs[1].pk}")
    assert "swept" not in two.context["charts"], "of two the verdict says all"


@pytest.mark.parametrize("kind", ["matrix", "scaling"])
def test_other_kinds_of_studies_have_no_such_chart(alice: Any, kind: str) -> None:
    study = sweep(alice, RATES, [2.0, 1.0, 3.0, 4.0])
    assert swept.of_overview("sweep", view := overview(study.runs.all(), ranked=True))
    assert not swept.of_overview(kind, view)


def test_strategies_are_not_taken_for_a_field_each(alice: Any) -> None:
    study = Study.objects.create(name="listed", owner=alice, kind="listed")
    for i, split in enumerate(({}, {"dp": 2}, {"tp": 2})):
        factory.finished(alice, split, study=study, position=i)
    assert not swept.of_overview("listed", overview(study.runs.all(), ranked=True))
