"""The Crossover page: sentences that follow from the numbers, measured runs as dots, bad values reported at their
fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from django.test import Client

from dashboard.charts.crossover import _side, chart, title
from dashboard.plans.crossover import CrossoverForm, dots
from dashboard.runs import services
from dashboard.runs.models import Attempt, RankInfo, Run, State

PAGE = "/planner/crossover/"
MODEL = {"layers": 4, "hidden": 32, "heads": 2, "seq": 16}


def measured(
    owner: Any, seconds: float, hosts: Sequence[str] = ("yard-a",), device: str = "x86_64", **parallel: Any
) -> Run:
    spec = {"model": MODEL, "parallel": parallel, "train": {"global_batch": 8}}
    run = services.submit(owner=owner, spec=spec, name=str(parallel))
    Run.objects.filter(pk=run.pk).update(state=State.SUCCEEDED, summary={"timed": {"median": seconds}})
    nodes = [{"worker": name, "devices": [0], "first_rank": rank} for rank, name in enumerate(hosts)]
    attempt = Attempt.objects.create(run=run, number=1, devices=nodes)
    RankInfo.objects.create(attempt=attempt, rank=0, hello={"device": device})
    return run


def test_the_flip_and_the_limits_are_said(reader: Client) -> None:
    page = reader.get(PAGE)
    first = page.context["verdict"][0]
    assert "times one device with" in first and "on 8 devices" in first
    many = reader.get(PAGE, {**page.context["form"].initial, "devices": "1000000"}).context["verdict"][0]
    assert "on 1\N{NO-BREAK SPACE}000\N{NO-BREAK SPACE}000 devices" in many
    three = reader.get(PAGE, {"devices": "3", "heads": "32"}).context["verdict"]
    assert three[2:] == ["No tensor group of 3 divides 32 heads."] and not page.context["verdict"][2:]
    assert [chart.key for chart in page.context["charts"]] == ["along-hidden", "along-bandwidth", "along-micro_batches"]
    said = page.context["verdict"][1]
    assert said.startswith("TP is faster from width ") and said.count("TP is faster") == 1
    assert said.endswith(" on and from 140 GB/s on; PP is faster from 4 micro-batches on.")
    assert [name for name, _, _ in page.context["limits"]] == ["DP", "TP", "PP"]


def test_a_flip_beyond_usual_widths_is_said_and_marked() -> None:
    form = CrossoverForm({"hidden": 16384, "bandwidth": 3})
    assert form.is_valid()
    made = chart(form.case, "hidden", [])
    assert made.title.startswith("TP is faster from width ") and made.title.endswith(" on; here PP is.")
    assert any(line["name"] == "flip" for line in made.figure["data"])


def test_a_flip_is_not_rounded_beyond_the_batch() -> None:
    form = CrossoverForm({"batch": 1070, "micro_batches": 8, "bandwidth": 1e4, "alpha": 0.01, "seq": 512})
    assert form.is_valid()
    assert "1\N{NO-BREAK SPACE}070 micro-batches" in title(form.case, "micro_batches")


def test_own_runs_are_dots(reader: Client, alice: Any) -> None:
    measured(alice, 2.0)
    measured(alice, 1.6, tp=2)
    measured(alice, 1.25, pp=2, micro_batches=4)
    measured(alice, 1.0, pp=2, micro_batches=4, recompute="full")
    form = CrossoverForm({"devices": 2, "hidden": 32, "layers": 4, "seq": 16, "batch": 8, "micro_batches": 4})
    assert form.is_valid()
    found = dots(form.case, "hidden")
    assert sorted((dot.family, dot.x, dot.speedup) for dot in found) == [("pp", 32, 1.6), ("tp", 32, 1.25)]
    assert {dot.x for dot in dots(form.case, "micro_batches") if dot.family == "pp"} == {4}
    assert dots(form.case, "bandwidth") == []
    measured(alice, 3.0, micro_batches=4)
    noisy = measured(alice, 9.0)
    Run.objects.filter(pk=noisy.pk).update(summary={"timed": {"median": 9.0}, "cpu_others": 0.5})
    measured(alice, 8.0, ["yard-b"])
    measured(alice, 8.0, device="arm64")
    why = "of another split of the batch, disturbed, on another host, and on other devices"
    assert dots(form.case, "hidden") == found, why
    measured(alice, 4.0)
    assert {dot.family: dot.speedup for dot in dots(form.case, "hidden")} == {"tp": 2.5, "pp": 3.2}, "the newest one"
    measured(alice, 2.0, ["yard-a", "yard-c"], tp=2)
    both = sorted(dot.speedup for dot in dots(form.case, "hidden") if dot.family == "tp")
    assert both == [2.0, 2.5], "a run over the host of the one device and another is not elsewhere"
    page = reader.get(PAGE, {name: str(form[name].value()) for name in form.fields})
    assert "3 runs of this yard" in page.content.decode()
    width, _, parts = (chart.rows for chart in page.context["charts"])
    told = [row for row in width if row[-1] != "predicted"]
    name = "measured, {'pp': 2, 'micro_batches': 4}"
    assert ["32", "", "3.20", name] in told and len(told) == 3, "a hover is not the only copy of what was measured"
    assert {row[-1].split(", ")[-1] for row in told if row[1]} == {"its batch at once"}, "its line has 4 micro-batches"
    assert ["4", "", "3.20", name] in parts
    assert chart(form.case, "hidden", found[:1]).source.endswith("; 1 run of this yard")
    measured(alice, 1.0, pp=2, micro_batches=1)
    assert len(dots(form.case, "hidden")) == 3, "one micro-batch in a pipeline is not what its line predicts"
    assert {dot.x for dot in dots(form.case, "micro_batches") if dot.family == "pp"} == {1, 4}


def test_bad_values_are_told_at_their_fields(reader: Client) -> None:
    for field in ("bandwidth", "flops"):
        page = reader.get(PAGE, {field: 0}, headers={"HX-Request": "true"})
        assert "These values cannot be" in page.content.decode()
        assert set(page.context["form"].errors) == {field}


def test_no_more_micro_batches_than_sequences_are_taken_or_drawn(reader: Client) -> None:
    page = reader.get(PAGE, {"batch": 8, "micro_batches": 16}, headers={"HX-Request": "true"})
    assert page.context["form"].errors == {"micro_batches": ["Must be at most the batch, 8; got 16."]}
    page = reader.get(PAGE, {"batch": 64, "micro_batches": 16})
    drawn = page.context["charts"][2].figure["data"][0]["x"]
    assert (drawn[0], drawn[-1]) == pytest.approx((1, 64))
    one = reader.get(PAGE, {"batch": 1, "micro_batches": 1})
    assert [chart.key for chart in one.context["charts"]] == ["along-hidden", "along-bandwidth"]
    assert "micro-batches" not in one.context["verdict"][1]


def test_only_whole_widths_and_micro_batches_are_drawn_and_listed(reader: Client) -> None:
    charts = reader.get(PAGE, {"hidden": 4096, "batch": 16, "micro_batches": 4}).context["charts"]
    width, link, parts = (chart.figure["data"][0]["x"] for chart in charts)
    assert parts == list(range(1, 17)) and width == [round(x) for x in width] and len(link) == 61
    assert [row[0] for row in charts[2].rows] == ["1", "2", "3", "4", "6", "10", "16"]
    assert ["4\N{NO-BREAK SPACE}096", "predicted"] in [[row[0], row[-1]] for row in charts[0].rows], "the case's own"


def test_lines_are_named_behind_their_ends_and_values_are_level_on_a_phone(reader: Client) -> None:
    width, link, _ = reader.get(PAGE).context["charts"]
    lines = [trace for trace in width.figure["data"] if trace["mode"] == "lines+text"]
    assert [(trace["text"][-1], trace["textposition"]) for trace in lines] == [
        (" TP", "middle right"),
        (" PP", "middle right"),
    ]
    assert [_side(5.0, 4.9, True), _side(4.9, 4.9, True)] == ["top right", "bottom right"]
    narrow = width.figure["layout"]["meta"]["narrow"]["xaxis"]
    assert narrow["tickangle"] == 0 and [word.replace("\N{NO-BREAK SPACE}", "") for word in narrow["ticktext"]] == [
        "500", "2000", "10000", "50000",
    ]  # fmt: skip
    all_of_them = link.figure["layout"]["meta"]["narrow"]["xaxis"]["ticktext"]
    assert all_of_them == link.figure["layout"]["xaxis"]["ticktext"]
