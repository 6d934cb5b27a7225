"""A study whose runs differ in how they train is judged by the loss that they reach, and then by their speed."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from typing import Any

import pytest
from django.test import Client

from dashboard.charts import loss
from dashboard.runs.models import Attempt, Run, State
from dashboard.studies.models import Study
from dashboard.studies.overview import answer_cache, answers, by_loss, figures, gantts, held_out
from dashboard.studies.overview.overviews import Overview
from dashboard.studies.report import report_answers
from dashboard.studies.selectors import overview
from tests.dashboard import factory
from tests.dashboard.plain import plain
from tests.dashboard.test_study_charts import evaluated

NAN = float("nan")


def told(run: Run, seconds: float, held: tuple[float, float] | None = None, **train: Any) -> None:
    """Writes into the row of a run what a test needs of it: seconds a step, its last and lowest held-out losses, and
    training fields."""
    timed = {**run.summary["timed"], **dict.fromkeys(("median", "p10", "p90", "mean"), seconds)}
    summary = {**run.summary, "timed": timed}
    if held:
        summary["held_out"] = {"step": 39, "loss": held[0], "best": {"step": 29, "loss": held[1]}}
    Run.objects.filter(pk=run.pk).update(summary=summary, spec={**run.spec, "train": {**run.spec["train"], **train}})


def swept(owner: Any, rates: Mapping[float, float], kind: str = "sweep") -> Study:
    """A study of learning rates, each with what is added to its losses; later ones are faster."""
    made = Study.objects.create(name="Rates", owner=owner, kind=kind, base=factory.BASE)
    for i, (rate, shift) in enumerate(rates.items()):
        more = {"name": f"lr = {rate:g}", "loss_shift": shift, "train": {"lr": rate}}
        told(factory.finished(owner, {}, study=made, position=i, **more), 1.0 / (i + 1))
    made.baseline = made.runs.order_by("position").first()
    made.save(update_fields=("baseline",))
    return made


def view_of(study: Study, **more: Any) -> Overview:
    return overview(study.runs.all(), study.baseline, ranked=by_loss.ranks(study.kind), **more)


def labels(view: Overview) -> list[str]:
    return [row.entry.label for row in view.rows]


@pytest.fixture
def study(alice: Any) -> Study:
    return swept(alice, {0.001: 0.5, 0.01: 0.0, 30.0: NAN, 0.1: 0.25})


FOUND = "Lowest final loss: 2.731, lr = 0.01; next 2.981."


def test_the_page_shows_losses_first_where_they_are_what_is_compared(reader: Client, study: Study) -> None:
    page = reader.get(f"/studies/{study.pk}/").content.decode()
    assert page.count('id="loss"') == 1 and page.index('id="loss"') < page.index('aria-label="Speedup"')
    Study.objects.filter(pk=study.pk).update(kind="scaling")
    page = reader.get(f"/studies/{study.pk}/").content.decode()
    assert page.count('id="loss"') == 1 and page.index('id="loss"') > page.index('aria-label="Speedup"')


def test_the_lowest_final_loss_leads_and_rows_stand_in_its_order(study: Study) -> None:
    view = view_of(study)
    assert labels(view) == ["lr = 0.01", "lr = 0.1", "lr = 0.001", "lr = 30"]
    assert view.verdict[0] == figures.losses(view).title == FOUND
    assert view.verdict[1].startswith("lr = 0.1 is fastest") and view.on_times == view.verdict[1]
    assert "The loss of lr = 30 is not finite any more." in view.verdict
    first = answers.of_overview(view)[0]
    assert first == answers.Answer("Lowest final loss", "2.731", "lr = 0.01; next 2.981.", "loss")
    assert answer_cache.verdicts([study]) == {study.pk: FOUND}


def test_pages_say_it_first(reader: Client, study: Study) -> None:
    for address in (f"/studies/{study.pk}/", f"/studies/{study.pk}/report/", "/studies/"):
        assert FOUND in plain(reader.get(address).content.decode()), address


def test_held_out_losses_come_before_final_ones(study: Study) -> None:
    runs = list(study.runs.order_by("position"))
    for run, held in zip(runs, ((2.5, 2.1), (2.4, 2.3), (9.0, 1.0), (2.6, 2.2)), strict=True):
        told(run, 1.0, held, eval_every=10)
    view = view_of(study)
    assert labels(view) == ["lr = 0.001", "lr = 0.1", "lr = 0.01", "lr = 30"]
    assert view.verdict[0] == "Lowest held-out loss: 2.100, lr = 0.001; next 2.200."
    assert FOUND not in view.verdict and figures.losses(view).title != view.verdict[0]
    told(runs[0], 1.0, (2.5, 2.1), eval_every=10, eval_samples=8)
    assert view_of(study).verdict[0] == FOUND, "held-out losses are not of the same samples"


def test_a_loss_has_one_spelling_on_a_page(reader: Client, study: Study) -> None:
    for run in study.runs.all():
        Run.objects.filter(pk=run.pk).update(loss=2.94, summary=run.summary | {"final_loss": 2.94})
    Run.objects.filter(study=study, name="lr = 0.01").update(loss=2.9, summary={"final_loss": 2.9})
    for address in (f"/studies/{study.pk}/", f"/studies/{study.pk}/report/"):
        page = plain(reader.get(address).content.decode())
        assert "Lowest final loss: 2.900, lr = 0.01; next 2.940." in page, address
        assert '<td class="num">2.900</td>' in page and '<td class="num">2.940</td>' in page, address
        assert not re.search(r"\b2\.94?\b(?!\d)", re.sub(r"(?s)<(script|svg).*?</\1>", "", page)), address


def test_runs_of_which_some_evaluate_nothing_are_ranked_by_what_all_have(study: Study) -> None:
    told(study.runs.get(name="lr = 0.001"), 1.0, (2.5, 2.5), eval_every=10)
    view = view_of(study)
    assert labels(view) == ["lr = 0.01", "lr = 0.1", "lr = 0.001", "lr = 30"]
    assert view.verdict[0] == FOUND


def test_runs_that_left_at_their_time_limit_are_not_ranked(study: Study) -> None:
    """They trained fewer steps: which of them is the best would depend on how fast its host was."""
    study.runs.filter(name="lr = 0.01").update(cause="time_limit")
    assert view_of(study).verdict[0] == "Lowest final loss: 2.981, lr = 0.1; next 3.231."


def test_runs_that_all_left_at_one_time_limit_are_ranked_by_loss_at_equal_time(alice: Any) -> None:
    made = Study.objects.create(name="Splits", owner=alice, kind="matrix", base=factory.BASE)
    for i, shift in enumerate((0.5, 0.0)):
        more = {"name": f"run {i}", "loss_shift": shift}
        run = factory.finished(alice, {"dp": 2} if i else {}, study=made, position=i, **more)
        told(run, 1.0 + i, max_minutes=5.0)
    made.baseline = made.runs.order_by("position").first()
    assert not view_of(made).lead, "they trained all their steps, so only their speed differs"
    made.runs.update(cause="time_limit")
    view = view_of(made)
    best, other = (row.entry.label for row in view.rows)
    assert view.rows[0].run.position == 1 and best != other
    assert view.verdict[0] == f"Lowest final loss in 5 minutes: 2.731, {best}; next 3.231."
    made.runs.filter(position=0).update(cause="")
    assert not view_of(made).lead, "one that left is not compared with one that did not"


def test_at_equal_time_precisions_are_settings_and_warnings_come_first_and_no_run_may_be_resumed(alice: Any) -> None:
    made = Study.objects.create(name="Precisions", owner=alice, kind="sweep", base=factory.BASE)
    for i, (precision, shift) in enumerate((("fp32", 0.5), ("bf16", 0.0))):
        run = factory.finished(alice, study=made, position=i, name=precision, loss_shift=shift, cpu_others=0.5)
        told(run, 1.0, max_minutes=5.0, precision=precision)
    made.runs.update(cause="time_limit")
    made.baseline = made.runs.order_by("position").first()
    view = view_of(made)
    assert view.lead.endswith("; next 3.231."), "not: no other setting has one"
    assert view.verdict.index(view.lead) == view.warned_first == view.headlines - 1 > 0, "disturbances are said first"
    Attempt.objects.filter(run__study=made, run__name="bf16").update(begins={"step": 20})
    assert not view_of(made).lead, "that attempt had the whole limit again"


def test_one_setting_that_trained_to_its_end_is_not_said_to_beat_losses_that_are_not_finite(alice: Any) -> None:
    made = swept(alice, {0.001: 0.5, 0.01: 0.0, 30.0: NAN})
    made.runs.filter(name="lr = 0.01").update(cause="time_limit")
    view = view_of(made)
    told = "no other setting has one that is finite and trained all its steps"
    assert view.verdict[0] == f"Lowest final loss: 3.231, lr = 0.001; {told}."
    assert labels(view) == ["lr = 0.001", "lr = 0.01", "lr = 30"]


@pytest.mark.parametrize(("schedule", "following"), [("1f1b", "2.981"), ("1f1b-stash", "2.831")])
def test_a_pipeline_without_a_flush_is_another_setting(alice: Any, schedule: str, following: str) -> None:
    made = swept(alice, {0.01: 0.0, 0.1: 0.25})
    split = {"pp": 2, "micro_batches": 2, "schedule": schedule}
    train = {"lr": 0.01, "clip": "stage"}
    factory.finished(alice, split, study=made, position=2, name=schedule, loss_shift=0.1, train=train)
    assert view_of(made).lead == f"Lowest final loss: 2.731, lr = 0.01; next {following}."


def test_equal_losses_and_runs_that_still_train_are_said(alice: Any) -> None:
    made = swept(alice, {0.001: 0.0, 0.01: 1e-6})
    assert view_of(made).verdict[0] == "Lowest final loss: 2.731, lr = 0.001; the next is equal to 4 digits."
    factory.queued(alice, {}, study=made, position=2, name="lr = 1", train={"lr": 1.0})
    assert view_of(made).verdict[0].startswith("Lowest final loss so far: 2.731, ")


def test_a_repeat_of_the_best_setting_is_not_the_next(alice: Any) -> None:
    made = swept(alice, {0.001: 0.0, 0.01: 0.5})
    twin = factory.finished(alice, {"dp": 2}, study=made, position=2, name="again", train={"lr": 0.001})
    assert view_of(made).verdict[0] == "Lowest final loss: 2.731, lr = 0.001 and again; next 3.231.", "nor is it lower"
    assert [row.run.pk for row in view_of(made).rows][1] == twin.pk


@pytest.mark.parametrize(
    ("change", "ranked"),
    (
        ({"train": {"lr": 1e-4}}, True),
        ({"train": {"global_batch": 32}}, True),
        ({"train": {"clip_norm": 2.0}}, True),
        ({"train": {"seed": 8}}, True),
        ({"train": {"lr_final": 0.5}}, False),  # of a constant rate
        ({"train": {"clip": "stage"}}, False),
        ({"train": {"precision": "bf16"}}, False),
        ({"train": {"eval_samples": 8}}, False),
        ({"train": {"lr": 1e-4, "corpus": "blob:" + "0" * 64}}, False),
        ({"train": {"lr": 1e-4}, "model": {"vocab": 512}}, False),
        ({"train": {"lr": 1e-4}, "model": {"layers": 2}}, True),
        ({"parallel": {"dp": 2}}, False),
    ),
)
def test_only_runs_of_one_task_that_train_otherwise_are_ranked(
    alice: Any, change: dict[str, dict[str, Any]], ranked: bool
) -> None:
    made = swept(alice, {0.001: 0.0})
    other = factory.finished(alice, {}, study=made, position=1, name="other", train={"lr": 0.001})
    spec = {section: {**fields, **change.get(section, {})} for section, fields in other.spec.items() if fields}
    Run.objects.filter(pk=other.pk).update(spec=spec)
    assert bool(view_of(made).lead) == ranked


@pytest.mark.parametrize("kind", sorted(by_loss.BY_TIME))
def test_kinds_that_change_the_training_for_another_reason_stay_by_time(alice: Any, kind: str) -> None:
    view = view_of(swept(alice, {0.001: 0.5, 0.01: 0.0, 0.1: 0.25}, kind))
    assert not view.lead and labels(view) == ["lr = 0.1", "lr = 0.01", "lr = 0.001"]


def test_what_is_about_speed_still_finds_the_fastest(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gantts, "OPEN_GANTTS", 2)
    view = view_of(study)
    assert [row.entry.label for row in view.by_time] == ["lr = 0.1", "lr = 30", "lr = 0.01", "lr = 0.001"]
    shown = [row.entry.label for row in gantts.default_rows(view)]
    assert sorted(shown) == ["lr = 0.001", "lr = 0.1"]
    written = report_answers.of_overview(view, report_answers.steps_of(view))
    assert [words for words, _ in written[0].links] == ["lr = 0.1", "lr = 0.001"]


def test_a_baseline_without_a_result_keeps_the_finding_and_names_lost_losses(study: Study) -> None:
    assert study.baseline is not None
    Run.objects.filter(pk=study.baseline.pk).update(state=State.FAILED, detail="Stopped.")
    study.baseline.refresh_from_db()
    said = view_of(study).verdict
    assert said[0] == FOUND and said[2] == "The loss of lr = 30 is not finite any more."
    assert figures.speedups(view_of(study)).title == said[1]


def test_the_best_is_drawn_and_named_where_not_all_are(alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "MOST_LINES", 2)
    monkeypatch.setattr(loss, "MAX_LINES", 2)
    made = Study.objects.create(name="Many", owner=alice, kind="matrix")
    lows = (3.0, 2.5, 2.0)
    runs = [evaluated(alice, made, i, {9: low + 1, 19: low}) for i, low in enumerate(lows)]
    for i, run in enumerate(runs):
        told(run, 1.0 + i)
    chart = held_out.chart(overview(made.runs.all()))["held_out"]
    assert [trace["y"][-1] for trace in chart.figure["data"]] == [2.5, 2.0], "of the three, in the page's order"
    assert f"the lowest is 2.000 of {runs[2].label} #{runs[2].pk}, at step 19" in chart.title
    monkeypatch.setattr(loss, "MOST_LINES", 1)
    view = view_of(swept(alice, {0.001: 0.5, 0.01: 0.0, 0.1: 0.25}))
    assert [trace["name"] for trace in figures.losses(view).figure["data"]] == ["lr = 0.01"]


def test_a_title_names_no_run_that_is_not_drawn(alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "MOST_LINES", 1)
    made = Study.objects.create(name="Longer", owner=alice, kind="matrix")
    told(factory.finished(alice, {}, study=made, position=0, name="short"), 1.0)
    told(factory.finished(alice, {}, study=made, position=1, name="long", train={"steps": 60}), 2.0)
    assert "short" in figures.losses(view_of(made)).title


def test_a_run_that_diverges_does_not_press_the_curves_of_others_together(alice: Any) -> None:
    chart = figures.losses(view_of(swept(alice, {0.001: 0.5, 0.01: 0.0, 1.0: 1e6})))
    low, high = chart.figure["layout"]["yaxis"]["range"]
    assert low == 0 and 6 < high < 8
    assert chart.figure["layout"]["meta"]["above"] == 43 and "43 of them above this view" in chart.source
    together = figures.losses(view_of(swept(alice, {0.001: 0.5, 0.01: 0.0, 1.0: 1.0})))
    assert "range" not in together.figure["layout"]["yaxis"]


def test_held_out_losses_that_diverge_start_out_of_view(alice: Any) -> None:
    made = Study.objects.create(name="Held out", owner=alice, kind="sweep")
    for i, lows in enumerate(({9: 3.0, 19: 2.5}, {9: 3.5, 19: 2.0}, {9: 1e9, 19: 1e8})):
        run = evaluated(alice, made, i, lows, lr=0.001 * (i + 1))
        told(run, 1.0, (lows[19], lows[19]))
    chart = held_out.chart(view_of(made))["held_out"]
    assert chart.figure["layout"]["yaxis"]["range"][1] < 5 and chart.figure["layout"]["meta"]["above"] == 2


def test_tables_have_a_column_of_each_loss(reader: Client, study: Study) -> None:
    address = f"/studies/{study.pk}/"
    assert "Lowest held-out loss" not in reader.get(address).content.decode()
    told(study.runs.get(name="lr = 0.001"), 1.0, (2.5, 2.125), eval_every=10)
    for page in (address, f"{address}report/"):
        text = reader.get(page).content.decode()
        assert re.search(r"Loss(</a>)?</th><th [^>]*>(<a [^>]*>)?Lowest held-out loss", text)
        assert '<td class="num">2.125</td>' in text and '<td class="num">not finite</td>' in text
    rows = list(csv.DictReader(io.StringIO(reader.get(f"{address}table.csv").content.decode())))
    assert [row["lowest_held_out_loss"] for row in rows] == ["", "", "2.125", ""]
    assert [row["held_out_loss"] for row in rows] == ["", "", "2.5", ""]
