"""A run that failed or was cancelled halfway is listed with its reason, and not compared with any other."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from dashboard.runs.models import Run, State
from dashboard.studies import compare
from dashboard.studies.models import Study
from dashboard.studies.overview import answers, figures, gantts
from dashboard.studies.selectors import overview
from tests.dashboard import factory
from tests.dashboard.plain import plain

REASON = "Rank 1 was killed by signal 9 at step 30."


def cut(owner: Any, split: dict[str, Any], state: State, detail: str, cause: str = "killed", **kwargs: Any) -> Run:
    """A run that ended without a result, with all its measurements up to step 30."""
    run = factory.queued(owner, split, **kwargs)
    factory.feed_steps(factory.start(run), 30)
    factory.end(run, state, detail, cause)
    return run


@pytest.fixture
def study(alice: Any) -> Study:
    made = factory.study(alice, "Three and one", factory.SPLITS[2:5], recompute=False)
    cut(alice, {"pp": 2, "schedule": "gpipe", "micro_batches": 4}, State.FAILED, REASON, study=made, position=3)
    return made


def test_a_failed_run_is_named_with_its_reason_and_no_bar_counts_it(study: Study) -> None:
    view = overview(study.runs.all(), study.baseline)
    failed = next(row for row in view.rows if row.run.state == State.FAILED)
    assert failed.entry.result is not None and failed.entry.result.breakdown, "it has measurements up to its failure"
    label = failed.entry.label
    assert f"{label} failed and is left out: {REASON}" in view.verdict
    charts = figures.of_overview(view)
    place = view.rows.index(failed)
    for key in ("speedup", "breakdown", "memory"):
        bars = [
            trace for trace in charts[key].figure["data"] if trace["type"] == "bar" and trace["name"] != "predicted"
        ]
        assert bars and all(place not in bar["y"] for bar in bars), key
        assert "3 of 4 runs" in charts[key].source
        assert label not in charts[key].title
    assert any("failed" in cell for cell in charts["breakdown"].rows[place])
    assert label not in view.parities and view.parity_sentence.startswith("Both runs equal")


def test_what_is_still_drawn_of_it_is_marked(study: Study) -> None:
    view = overview(study.runs.all(), study.baseline)
    for chart in (figures.losses(view), figures.steps(view)):
        assert [trace["name"] for trace in chart.figure["data"] if "failed" in trace["name"]] == ["PP-GPipe, failed"]
    assert {row[0] for row in gantts.of_rows(view.rows).rows} >= {"PP-GPipe, failed", "DP"}


def test_the_pages_and_the_report_say_it(reader: Client, study: Study) -> None:
    runs = ",".join(str(run.pk) for run in study.runs.all())
    for address in (
        f"/studies/{study.pk}/",
        f"/studies/{study.pk}/report/",
        f"/compare/?runs={runs}&baseline={study.baseline_id}",
    ):
        text = plain(reader.get(address).content.decode())
        assert f"PP-GPipe failed and is left out: {REASON}" in text, address
    assert "PP-GPipe · failed" in text
    report = reader.get(f"/studies/{study.pk}/report/").content.decode()
    assert f"Failed: {REASON}" in report.partition("All strategies")[2]


def test_two_runs_of_which_one_was_cancelled_get_no_waterfall(reader: Client, alice: Any) -> None:
    done = factory.finished(alice, {})
    stopped = cut(alice, {"dp": 2}, State.CANCELLED, "Cancelled by alice.")
    page = reader.get(f"/compare/?runs={done.pk},{stopped.pk}")
    assert page.context["charts"]["waterfall"] is None
    assert "DP was cancelled and is left out: Cancelled by alice." in page.context["verdict"]
    assert not page.context["reached"].lines


def test_a_loss_that_is_lost_is_said_in_the_words_of_the_form(reader: Client, alice: Any) -> None:
    done, lost = factory.finished(alice, {}), factory.finished(alice, {"dp": 2})
    detail = (
        "The loss is not finite since step 6: ended after 11 of 20 steps (train.stop_on_nan), and saved nothing since."
    )
    factory.end(lost, State.FAILED, detail, "not_finite")
    page = reader.get(f"/compare/?runs={done.pk},{lost.pk}")
    text = plain(page.content.decode())
    assert "(“End it when the loss stays NaN”), and saved nothing since." in " ".join(page.context["verdict"])
    assert "stop_on_nan" not in text.partition("All numbers")[0]


def test_nothing_is_held_against_a_baseline_that_failed(reader: Client, alice: Any) -> None:
    others = [factory.finished(alice, split) for split in ({}, {"dp": 2})]
    lost = cut(alice, {"tp": 2}, State.LOST, "")
    page = reader.get(f"/compare/?runs={','.join(str(run.pk) for run in [lost, *others])}")
    view = page.context["view"]
    assert page.context["verdict"][:2] == [
        "2 of 3 runs have finished; the baseline, TP, has no result.",
        "TP was lost and is left out.",
    ]
    assert all(row.entry.speed is None for row in view.rows)
    assert view.parities == {} and view.parity_sentence == ""
    alone = reader.get(f"/compare/?runs={lost.pk}").context["verdict"]
    assert alone == ["The only run, TP, has no result.", "TP was lost and is left out."]


def test_the_only_run_with_a_result_is_compared_with_nothing(alice: Any) -> None:
    done = factory.finished(alice, {}, cpu_others=0.3)
    view = overview([done, cut(alice, {"tp": 2}, State.FAILED, REASON)], done)
    assert view.parity_sentence == "", "0 runs share a step with it, as nobody expects"
    said = {one.question: one.detail for one in answers.of_overview(view)}
    assert said["Least memory"] == f"on the worst rank of {done.label}."
    assert said["CPU of others"].startswith("1 of 1 measured run was disturbed")


def test_a_reason_is_told_in_the_words_of_the_form(reader: Client, alice: Any) -> None:
    done = factory.finished(alice, {})
    nan = cut(alice, {"dp": 2}, State.FAILED, "The loss is not finite since step 9 (train.stop_on_nan).", "not_finite")
    view = overview([done, nan], done)
    assert view.left_out == [
        "DP failed and is left out: The loss is not finite since step 9 (“End it when the loss stays NaN”)."
    ]
    assert "stop_on_nan" not in reader.get(f"/compare/?runs={done.pk},{nan.pk}").content.decode()


def test_two_runs_that_take_as_much_memory_say_so(reader: Client, alice: Any) -> None:
    one, other = (factory.finished(alice, {}, train={"seed": seed}) for seed in (7, 8))
    page = reader.get(f"/compare/?runs={one.pk},{other.pk}")
    assert any("Memory is the same on the worst rank." in said for said in page.context["verdict"])


def test_of_many_some_are_named_and_the_table_has_the_reasons(reader: Client, alice: Any) -> None:
    runs = [factory.finished(alice, {}), *(cut(alice, {"dp": 2}, State.FAILED, REASON) for _ in range(5))]
    view = overview(runs)
    (said,) = view.left_out
    assert said.startswith("5 runs are left out: ") and said.endswith("and 1 more; the table has their reasons.")
    assert said.count(" failed") == 4
    page = reader.get(f"/compare/?runs={','.join(str(run.pk) for run in runs)}").content.decode()
    assert page.split("All numbers")[1].count(REASON) == 5


def test_the_loss_that_all_reach_is_not_that_of_a_run_cut_off(alice: Any) -> None:
    done = [factory.finished(alice, split) for split in ({}, {"dp": 2})]
    goal = compare.time_to_loss(overview(done))
    assert compare.time_to_loss(overview([*done, cut(alice, {"tp": 2}, State.FAILED, REASON)])) == goal
    assert goal.lines


def test_it_takes_no_row_of_a_chart_and_keeps_its_row_of_numbers(study: Study) -> None:
    view = overview(study.runs.all(), study.baseline)
    charts = figures.of_overview(view)
    for key in ("speedup", "breakdown", "memory"):
        axis, height = charts[key].figure["layout"]["yaxis"], charts[key].height
        assert len(axis["ticktext"]) == 3 and not any("PP-GPipe" in tick for tick in axis["ticktext"]), key
        assert height == charts["speedup"].height, "charts side by side share their rows"
        drawn = [trace["y"] for trace in charts[key].figure["data"] if trace.get("mode") != "lines"]
        assert all(max(y, default=0) <= 2 for y in drawn), key
        assert len(charts[key].rows) == 4
