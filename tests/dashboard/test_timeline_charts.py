"""Timelines draw every span at its place, or as many as they can and say so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dashboard.charts import gantt, heatmap, overlay, theme
from parallel_core.analysis.critical import critical_path
from parallel_core.analysis.lateness import lateness
from parallel_core.analysis.quantities import count_text
from parallel_core.layout import Layout
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec
from tests.dashboard import factory


def test_gantt_draws_every_span_at_its_place() -> None:
    spans = factory.simulate(RunSpec.model_validate(factory.spec_of({"pp": 2, "micro_batches": 2})))
    figure = gantt.figure({rank: with_offset(rows, 5_000_000) for rank, rows in spans.items()})
    drawn = sum(len(trace["x"]) for trace in figure["data"])
    assert drawn == sum(map(len, spans.values())) == figure["layout"]["meta"]["total"]
    assert min(min(trace["base"]) for trace in figure["data"]) == 0
    forward = next(trace for trace in figure["data"] if trace["name"] == "forward")
    assert set(forward["text"]) == {"0", "1"}


def with_offset(rows: Any, ns: int) -> Any:
    moved = rows.copy()
    moved["start"] += ns
    moved["end"] += ns
    return moved


def test_gantt_keeps_the_longest_and_says_how_many() -> None:
    rows = np.zeros(50, SPAN)
    rows["kind"], rows["end"] = Kind.F, np.arange(50) * 1_000_000
    chart = gantt.figure({0: rows}, max_bars=10)
    assert chart["layout"]["meta"] == {"zooms": True, "shown": 10, "inside": 50, "total": 50}
    assert min(chart["data"][0]["x"]) == 40
    assert "no span" not in gantt.chart([], "t", "s").source


def test_plans_are_outlined_on_all_ranks_where_not_all_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two equal stages, each with as many operations as are outlined."""
    spec = RunSpec.model_validate(factory.spec_of({"pp": 2, "micro_batches": 4}))
    spans, layout = factory.simulate(spec), Layout.of(spec)
    joined, path = lateness(spans, spans, layout), critical_path(spans, layout)
    few = int(overlay.outlined(joined).sum()) // 2
    monkeypatch.setattr(overlay, "MAX_OUTLINES", few)
    made = overlay.chart(spans, joined, path, "t", "s")
    outlines = next(trace for trace in made.figure["data"] if trace["name"] == "planned")
    assert len(outlines["y"]) == few and set(outlines["y"]) == {0, 1}
    assert made.source.endswith(f", the {few} longest of {2 * few} planned outlined")


def test_a_long_step_with_its_plan_says_which_spans_are_drawn() -> None:
    rows = np.zeros(2_500, SPAN)
    rows["kind"], rows["start"], rows["end"] = Kind.F, np.arange(2_500) * 10, np.arange(2_500) * 10 + 5
    layout = Layout.of(RunSpec.model_validate(factory.spec_of({})))
    spans = {0: rows}
    made = overlay.chart(spans, lateness({}, spans, layout), critical_path(spans, layout), "t", "s")
    longest = f"the {count_text(2_000)} longest of {count_text(2_500)}"
    assert made.source == f"s; {longest} spans drawn, 0 of 0 planned"


def test_several_runs_share_one_axis() -> None:
    specs = [RunSpec.model_validate(factory.spec_of(split)) for split in ({}, {"dp": 2})]
    figure = gantt.figure_of([(str(i), factory.simulate(spec)) for i, spec in enumerate(specs)])
    longest = max(t["base"][i] + t["x"][i] for t in figure["data"] for i in range(len(t["x"])))
    assert figure["layout"]["xaxis"]["range"][1] == pytest.approx(longest, rel=0.01)
    assert len(figure["layout"]["yaxis"]["tickvals"]) == 3


def test_a_predicted_step_is_outlined_and_a_measured_one_filled() -> None:
    spans = factory.simulate(RunSpec.model_validate(factory.spec_of({"pp": 2, "micro_batches": 4})))
    made = gantt.chart([("measured", spans), ("predicted", spans)], "t", "s", predicted=(1,))
    rows = len(spans)
    for phase in ("forward", "backward", "communication"):
        filled, outlined = (trace for trace in made.figure["data"] if trace["name"] == phase)
        assert max(filled["y"]) < rows - 0.5 < min(outlined["y"]) and len(filled["x"]) == len(outlined["x"])
        fill = theme.phase_fill(phase)
        assert (filled["marker"]["color"], outlined["marker"]["line"]["color"]) == (fill, fill)
        assert outlined["marker"]["color"] == theme.soft(fill)
    assert made.subtitle.endswith("outlined = predicted")
    assert "predicted" not in (said := gantt.chart([("measured", spans)], "t", "s").subtitle)
    assert "; above a row collectives" in said


def test_the_number_of_a_backward_stands_beside_the_recomputation_in_it() -> None:
    """It stood in the middle of the whole bar, at the edge of what is recomputed there."""
    rows = np.zeros(4, SPAN)
    rows["kind"] = [Kind.STEP, Kind.BW, Kind.R, Kind.R]
    rows["start"], rows["end"] = [0, 0, 0, 48_000_000], [100_000_000, 100_000_000, 10_000_000, 65_000_000]
    backward = next(trace for trace in gantt.figure({0: rows})["data"] if trace["name"] == "backward")
    assert (backward["base"], backward["x"]) == ([0.0, 10.0], [100.0, 38.0])
    assert backward["text"] == ["", "0"]
    assert len(set(backward["customdata"])) == 1, "at the pointer both say what the whole took"
    assert (backward["y"], backward["width"]) == ([0, 0], [0.68, 0.68])


def many(n: int) -> dict[int, np.ndarray]:
    """Two ranks with n operations of 2 us, 1 us apart, that start long after time zero."""
    out = {}
    for rank in (0, 1):
        rows = np.zeros(n, SPAN)
        rows["kind"] = np.resize([Kind.F, Kind.BW], n)
        rows["start"] = 10**12 + 3_000 * np.arange(n)
        rows["end"] = rows["start"] + 2_000
        out[rank] = rows
    return out


def test_the_bins_of_a_heatmap_add_up() -> None:
    rows = many(5_000)[0]
    edges = np.linspace(int(rows["start"][0]), int(rows["end"][-1]), 101)
    filled = heatmap.fill(rows, edges)
    assert np.allclose(filled.sum(axis=0), 1)
    assert filled[heatmap.PHASES.index("idle")].mean() == pytest.approx(1 / 3, abs=0.01)
    assert filled[heatmap.PHASES.index("forward")].mean() == pytest.approx(1 / 3, abs=0.01)


def test_a_heatmap_shows_the_window_that_is_asked_for() -> None:
    made = heatmap.chart(many(5_000), "title", "measured", (3.0, 6.0))
    x = made.figure["data"][0]["x"]
    assert (x[0], x[-1]) == (pytest.approx(3.0, abs=0.01), pytest.approx(6.0, abs=0.01))
    assert made.figure["layout"]["xaxis"]["range"] == [0, pytest.approx(15.0, abs=0.1)]
    assert "10\N{NO-BREAK SPACE}000 spans" in made.source
    outside = heatmap.chart(many(100), "title", "measured", (10**6, 2 * 10**6))
    assert len(outside.figure["data"][0]["x"]) == 1


def test_a_window_of_bars_says_how_many_are_in_view() -> None:
    made = gantt.chart([("", many(5_000))], "title", "measured", window=(3.0, 3.3))
    assert "spans in view, of 10\N{NO-BREAK SPACE}000" in made.source
    bars = [x for trace in made.figure["data"] for x in trace["base"]]
    assert min(bars) >= 2.9
    assert max(bars) <= 3.3


def test_the_legend_names_every_colour_of_a_timeline() -> None:
    assert {phase for phase, _ in theme.LEGEND} >= {theme.phase_of(kind) for kind in Kind}
