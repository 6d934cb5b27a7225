"""Pages of studies and comparisons of more runs than can be told apart at a glance."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from dashboard.charts.chart import row_labels
from dashboard.runs import services as runs
from dashboard.runs.differences import Difference
from dashboard.runs.models import Run
from dashboard.studies import compare
from dashboard.studies.models import Study
from dashboard.studies.overview import few_rows
from dashboard.studies.overview.overviews import Overview
from dashboard.studies.selectors import overview
from tests.dashboard import factory

MANY = few_rows.MOST + 5


@pytest.fixture(autouse=True)
def broker(redis_url: str) -> None:
    """Announcements need a broker."""


def queue(alice: Any, count: int, done: int = 3) -> Study:
    """A study with so many runs done, and the rest queued."""
    study = Study.objects.create(name="many", owner=alice)
    for i in range(done):
        factory.finished(alice, study=study, position=i, name=f"done {i}.")
    asked: list[runs.RunRequest] = [
        {"study": study, "spec": factory.spec_of({}), "exclusive": True, "position": i, "name": f"waits {i}."}
        for i in range(done, count)
    ]
    runs.write(runs.prepare(owner=alice, requests=asked))
    return study


def test_a_study_of_many_runs_begins_with_a_few_and_shows_all_on_demand(member: Client, alice: Any) -> None:
    study = queue(alice, MANY)
    Study.objects.filter(pk=study.pk).update(baseline=study.runs.get(position=MANY - 2))
    page = member.get(f"/studies/{study.pk}/")
    few, speedup = page.context["few"], page.context["charts"]["speedup"]
    positions = [row.run.position for row in few.shown.rows]
    assert positions == [*range(few_rows.FIRST), MANY - 2], "and the baseline"
    text = page.content.decode()
    assert text.count("<tr data-run=") == few_rows.FIRST + 1 and f">Show all {MANY}</a>" in text
    assert len(speedup.rows) == MANY, "every number is there"
    assert len(speedup.figure["layout"]["yaxis"]["ticktext"]) == few_rows.FIRST + 1
    assert f"; {few_rows.FIRST + 1} of {MANY} runs drawn" in speedup.source
    every = member.get(f"/studies/{study.pk}/?rows=all")
    assert every.content.decode().count("<tr data-run=") == MANY and ">Show a few</a>" in every.content.decode()
    assert not every.context["few"].hidden
    assert "drawn" not in every.context["charts"]["speedup"].source


@pytest.mark.full
def test_a_report_of_many_runs_lists_a_few_and_all_on_demand(member: Client, alice: Any) -> None:
    study = queue(alice, MANY, done=1)
    Study.objects.filter(pk=study.pk).update(baseline=study.runs.get(position=MANY - 2))

    def rows(query: str) -> tuple[list[int], str]:
        """Rows of each table with one for each run, and the text."""
        text = member.get(f"/studies/{study.pk}/report/{query}").content.decode()
        return [table.count("<tr><th") - 1 for table in re.findall("<table>.*?</table>", text, re.S)], text

    few, text = rows("")
    assert set(few) <= {*range(2), few_rows.FIRST + 1} and few.count(few_rows.FIRST + 1) == 5
    assert f"{few_rows.FIRST + 1} of {MANY} runs are listed" in text and f"/studies/{study.pk}/table.csv" in text
    assert f"/report/?baseline={study.runs.get(position=MANY - 2).pk}&amp;rows=all" in text
    every, text = rows("?rows=all")
    assert every.count(MANY) == 5 and "runs are listed" not in text
    kept = member.get(f"/studies/{study.pk}/report/?rows=all&download=1").content.decode()
    assert f"/studies/{study.pk}/?baseline=" in kept and "rows=all" in kept


def test_a_study_of_not_so_many_runs_shows_all_and_offers_nothing(member: Client, alice: Any) -> None:
    study = queue(alice, few_rows.MOST, done=1)
    page = member.get(f"/studies/{study.pk}/?rows=all").content.decode()
    assert page.count("<tr data-run=") == few_rows.MOST and "rows=all#" not in page and ">Show a few<" not in page


def test_the_times_to_a_loss_of_all_runs_take_as_many_queries_as_of_two(alice: Any) -> None:
    made = [factory.finished(alice, name=f"run {i}") for i in range(4)]

    def count(view: Overview) -> int:
        with CaptureQueriesContext(connection) as queries:
            assert compare.time_to_loss(view).lines
        return len(queries)

    assert count(overview(made)) == count(overview(made[:2]))


def test_runs_that_the_text_names_are_among_the_few(rf: Any, alice: Any) -> None:
    study = queue(alice, MANY, done=1)
    view = overview(study.runs.all())
    few = few_rows.few_of(rf.get("/"), view, ["Something holds of waits 24., too."])
    assert [row.run.position for row in few.shown.rows] == [*range(few_rows.FIRST), 24]


def test_what_differs_between_many_runs_is_counted(reader: Client, alice: Any) -> None:
    assert Difference("train.lr", ["1", "2", "1"]).counted == "1 in 2 runs; 2 in 1"
    assert Difference("train.lr", ["1", "2", "2"]).counted == "1 in 1 run; 2 in 2"
    made = [factory.queued(alice, train={"lr": 0.001 * (1 + i % 2)}) for i in range(7)]
    page = reader.get(f"/compare/?runs={','.join(str(run.pk) for run in made)}")
    assert "<td>0.001 in 4 runs; 0.002 in 3</td>" in page.content.decode()
    assert [values for _, values in page.context["by_run"]] == [["0.001"], ["0.002"]] * 3 + [["0.001"]]
    assert Run.objects.count() == 7


def test_a_label_is_not_cut_beside_one_that_is_as_long_and_whole() -> None:
    alike = [f"Learning rate = 1e-3, Global batch = {size}" for size in (16, 32)]
    other, longer = "Learning rate = 5e-4, Warm-up steps = 9", f"{alike[0]}, and much more than that"
    shown = row_labels([f"{alike[0]}0", f"{alike[0][:14]}x{alike[0][15:]}0", other, longer])
    assert shown[:3] == [f"{alike[0]}0", f"{alike[0][:14]}x{alike[0][15:]}0", other] and "…" in shown[3]


def test_a_column_for_differences_of_losses_is_there_only_where_runs_are_to_compute_the_same(
    reader: Client, alice: Any
) -> None:
    def columns(*made: Run) -> tuple[str, int, int]:
        table = reader.get(f"/compare/?runs={','.join(str(run.pk) for run in made)}").content.decode()
        table = table[table.index('aria-label="All runs of the study"') :]
        head, body = table[: table.index("</thead>")], table[table.index("<tbody>") : table.index("</tbody>")]
        return head, head.count("<th "), body.count("<td")

    a, b, other = (factory.finished(alice, train={"lr": lr}) for lr in (0.001, 0.001, 0.002))
    waits = factory.queued(alice, train={"lr": 0.002})
    with_it, wide, cells = columns(a, b, waits)
    assert "Loss differs" in with_it and cells == 3 * (wide - 1)
    without, narrow, cells = columns(a, other, waits)
    assert "Loss differs" not in without and (narrow, cells) == (wide - 1, 3 * (wide - 2))
