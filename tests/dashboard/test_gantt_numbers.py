"""The numbers under timelines: each instant of a rank counts once, and what is missing is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from django.test import Client

from dashboard.charts import gantt
from dashboard.charts.chart import Chart
from dashboard.charts.gantt_bars import BAR
from dashboard.charts.gantt_waits import cut
from dashboard.charts.gantt_words import MEASURED, hover
from dashboard.charts.timeline import Step
from dashboard.runs.models import SpanChunk
from parallel_core.bench.analysis import made
from parallel_core.layout import Layout
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec
from tests.dashboard import factory

SPLITS: tuple[dict[str, Any], ...] = (
    {"recompute": "full"},
    {"tp": 2, "recompute": "full"},
    {"pp": 2, "micro_batches": 4},
    {"dp": 2},
)


def sums(chart: Chart) -> list[float]:
    """The sum of each row of the table, in ms."""
    first = chart.columns.index("rank") + 1
    return [sum(float(cell) for cell in row[first:] if cell) for row in chart.rows]


@pytest.mark.parametrize("split", SPLITS, ids=["recompute", "tp", "pp", "dp"])
def test_a_row_adds_up_to_the_step_and_agrees_with_the_accounts(split: dict[str, Any]) -> None:
    spec = RunSpec.model_validate(factory.spec_of(split))
    step = Step(factory.simulate(spec), Layout.of(spec))
    chart = step.chart("t", "s")
    whole = chart.figure["layout"]["xaxis"]["range"][1] / 1.005
    assert sums(chart) == pytest.approx([whole] * spec.parallel.world, rel=0.01)
    for row, parts in zip(chart.rows, step.breakdown.values(), strict=True):
        told = {name.partition(",")[0]: float(cell) for name, cell in zip(chart.columns, row, strict=True) if cell}
        assert told["communication not hidden"] == pytest.approx(parts.communication / 1e6, rel=0.01)
        assert told["recompute"] == pytest.approx(parts.recompute / 1e6, rel=0.01)
        backward = told["backward"] + told["weight"]
        assert (told["forward"], backward) == pytest.approx(
            ((parts.forward or 0) / 1e6, (parts.backward or 0) / 1e6), rel=0.01
        )


def test_a_row_of_a_part_of_a_step_adds_up_to_the_part() -> None:
    """Operations that begin before the part, or end after it, count as far as they are in it."""
    layout = Layout.of(RunSpec.model_validate({"parallel": {"dp": 2, "tp": 2, "pp": 2}}))
    spans = {rank: rows.copy() for rank, rows in made(layout, 24_000).items()}
    for rows in spans.values():
        rows["start"] *= 1_000
        rows["end"] *= 1_000
    chart = Step(spans, layout).chart("t", "s", (1.25, 2.5))
    assert chart.columns[1] == "forward, ms in view"
    assert sums(chart) == pytest.approx([1.25] * layout.world, rel=0.01)


def test_of_a_run_whose_waits_are_not_known_none_are_told() -> None:
    spec = RunSpec.model_validate(factory.spec_of({"dp": 2}))
    spans, layout = factory.simulate(spec), Layout.of(spec)
    chart = gantt.chart([("a", spans), ("b", spans)], "t", "s", waited=[Step(spans, layout).waited, {}])
    waiting = chart.columns.index("waiting in messages and collectives, ms")
    assert [bool(row[waiting]) for row in chart.rows] == [True, True, False, False]


def test_a_wait_is_drawn_before_the_rest_of_its_message() -> None:
    bars = np.zeros(3, BAR)
    bars["start"], bars["end"] = 2.0, 9.0
    bars["until"], bars["waited"] = (7.0, 2.5, 2.0), (5.0, 0.5, 0.0)
    waits = cut(bars, 1.0)
    assert waits[["start", "end"]].tolist() == [(2.0, 7.0)]
    assert bars[["start", "end"]].tolist() == [(7.0, 9.0), (2.0, 9.0), (2.0, 9.0)], "a shorter wait stays in its bar"


def test_runs_of_which_spans_were_dropped_are_named_with_their_ranks(reader: Client, alice: Any) -> None:
    a, b = factory.finished(alice), factory.finished(alice, {"dp": 2})
    address = f"/compare/gantt.json?show={a.pk},{b.pk}"
    kept = sum(len(rows) for rows in factory.simulate(RunSpec.stored(b.spec)).values())
    assert "DP: " not in reader.get(address).json()["source"]
    SpanChunk.objects.filter(attempt__run=b, rank=0).update(total=20)
    half = kept // 2
    assert f"; DP: {kept} of {20 + half} spans" in reader.get(address).json()["source"]
    SpanChunk.objects.filter(attempt__run=b, rank=1).update(count=0, data=np.empty(0, SPAN).tobytes())
    source = reader.get(address).json()["source"]
    assert f"; DP: {half} of {20 + half} spans, the spans of 1 of 2 ranks of step 10 were not kept: its wor" in source
    assert ".; " not in source and "Single: " not in source


def test_the_weights_of_one_micro_batch_are_told_in_the_singular() -> None:
    row = {"rank": 0, "stage": 0, "micro_batch": 4, "start": 1.0, "end": 3.0, "bytes": 0, "waited": 0.0, "for": -1}
    said = [hover(Kind.F, {**row, "version": version}, MEASURED) for version in (0, 1, 2)]
    assert ["<br>weights of" in one for one in said] == [False, True, True]
    assert said[1].endswith("weights of 1 micro-batch") and said[2].endswith("weights of 2 micro-batches")
