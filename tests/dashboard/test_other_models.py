"""Runs of another kind of model than the baseline's: nowhere are their times held against it."""

from __future__ import annotations

import csv
import re
from typing import Any

import pytest
from django.test import Client

from dashboard.runs.models import Run
from dashboard.studies.models import Study
from dashboard.studies.overview import answers, figures
from dashboard.studies.overview.overviews import NO_SPEEDUP
from dashboard.studies.report import report_answers
from dashboard.studies.selectors import overview
from parallel_core.spec import RunSpec
from tests.dashboard import factory


@pytest.fixture
def study(alice: Any) -> Study:
    """Two GPTs, and an MLP whose steps take a hundredth of their time."""
    made = Study.objects.create(name="Mixed", owner=alice)
    for position, split in enumerate(({}, {"dp": 2})):
        factory.finished(alice, split, study=made, position=position, reference=1e-3 * (1 + position))
    made.baseline = made.runs.order_by("position").first()
    made.save()
    other = factory.finished(alice, study=made, position=2, name="Tiny MLP", reference=4e-3)
    mlp = RunSpec.model_validate({"model": {"kind": "mlp"}, "train": {"corpus": "digits", "global_batch": 16}})
    summary = other.summary | {"timed": {name: value / 100 for name, value in other.summary["timed"].items()}}
    Run.objects.filter(pk=other.pk).update(spec=mlp.model_dump(mode="json"), summary=summary)
    return made


def test_a_studys_verdict_ranks_runs_of_the_baselines_kind_of_model(client: Client, alice: Any, study: Study) -> None:
    view = overview(study.runs.all(), study.baseline)
    assert view.verdict[0].startswith("DP, GPT is fastest: ")
    assert not any("MLP" in said for said in view.verdict)
    client.force_login(alice)
    page = client.get(f"/studies/{study.pk}/")
    assert page.context["verdict"] == view.verdict and view.on_times == view.verdict[0]
    for address in (f"/studies/{study.pk}/", f"/studies/{study.pk}/report/"):
        assert client.get(address).content.decode().count(NO_SPEEDUP) == 1, address
    asked = {one.question: one.lines for one in report_answers.of_overview(view, {})}
    fastest = " ".join(asked["Which is fastest, which slowest, and why?"])
    assert "DP, GPT is fastest" in fastest and "MLP" not in fastest


def test_its_bars_and_trades_leave_the_other_out_but_keep_its_row(study: Study) -> None:
    view = overview(study.runs.all(), study.baseline)
    charts = figures.of_overview(view)
    (mlp,) = (row.entry.label for row in view.rows if not row.alike)
    assert charts["speedup"].title.startswith("1 of 1 beat Single")
    (row,) = (row for row in charts["speedup"].rows if row[0] == mlp)
    assert row[1] == figures.OTHER and not any(row[2:])
    bars = charts["speedup"].figure["data"][0]
    assert len(bars["x"]) == 2 and not any("MLP" in name for name in bars["customdata"])
    ticks = [charts[key].figure["layout"]["yaxis"]["ticktext"] for key in ("speedup", "breakdown")]
    assert ticks[0] == ticks[1], "the rows of both charts are the same"
    assert mlp not in {row[0] for row in charts["tradeoff"].rows}


def test_its_memory_and_layers_are_no_answers_either(study: Study) -> None:
    """An MLP takes less memory and holds more layers than any GPT, which is no reason to choose it."""
    view = overview(study.runs.all(), study.baseline)
    (mlp,) = (row.entry for row in view.rows if not row.alike)
    assert mlp.largest and mlp.largest > max(row.entry.largest or 0 for row in view.rows if row.alike)
    said = {one.question: f"{one.answer} {one.detail}" for one in answers.of_overview(view)}
    assert "MLP" not in said["Largest model"] + said["Least memory"]
    title = figures.of_overview(view)["capacity"].title
    asked = {one.question: one.lines for one in report_answers.of_overview(view, {})}
    assert title == asked["How many layers fit?"][0] and "MLP" not in title


def test_its_csv_has_no_ratio_at_the_baselines_pace(reader: Client, study: Study) -> None:
    lines = reader.get(f"/studies/{study.pk}/table.csv").content.decode().splitlines()
    table = {row["label"]: row for row in csv.DictReader(lines)}
    dp, mlp = table["DP, GPT"], table["Tiny MLP"]
    assert dp["speedup"] and mlp["reference_s"]
    assert not any(mlp[name] for name in ("speedup", "speedup_low", "speedup_high", "speedup_at_baseline_pace"))


def test_compare_titles_step_times_as_its_verdict_says(reader: Client, study: Study) -> None:
    base, dp, mlp = study.runs.order_by("position").values_list("pk", flat=True)
    three = reader.get(f"/compare/?runs={base},{dp},{mlp}")
    title = three.context["charts"]["steps"].title
    assert title == three.context["verdict"][0] and title.startswith("DP, GPT is fastest: ")
    two = reader.get(f"/compare/?runs={base},{mlp}").context["charts"]["steps"].title
    assert not re.search(r"\dx\b", two) and "MLP" not in two
    assert two.endswith(" a step: no other run of the kind of model of Single, GPT has finished.")
