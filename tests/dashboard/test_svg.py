"""Figures as pictures without scripts: every bar where its numbers say, text kept as text, nothing half drawn."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
import pytest

from dashboard.charts import breakdown, gantt, loss, scaling, speedup, svg, theme
from dashboard.charts.chart import Entry
from dashboard.charts.loss import Curve
from dashboard.charts.updates import after_norm
from parallel_core.analysis.breakdown import Breakdown
from parallel_core.analysis.sentences import Result
from parallel_core.analysis.stats import speedup as ratio
from parallel_core.analysis.stats import summarise
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import Kind

TAG = "{http://www.w3.org/2000/svg}"


def tree(made: str) -> ElementTree.Element:
    """The picture, parsed strictly as XML."""
    return ElementTree.fromstring(made.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def rects(made: str) -> list[tuple[float, float]]:
    """(x, width) of every rectangle, in drawing order."""
    found = tree(made).iter(f"{TAG}rect")
    return [(float(rect.get("x", 0)), float(rect.get("width", 0))) for rect in found]


def bars(xs: list[float], **more: Any) -> dict[str, Any]:
    marker = {"color": theme.var("bar"), "line": {"width": 0}}
    return {"type": "bar", "orientation": "h", "x": xs, "y": list(range(len(xs))), "marker": marker, **more}


def figure(*data: dict[str, Any], **layout: Any) -> dict[str, Any]:
    axes = {"xaxis": theme.axis("ms", range=[0, 100]), "yaxis": theme.rows_axis(["one", "two"])}
    return {"data": list(data), "layout": theme.layout(200, **{**axes, **layout})}


def test_a_bar_is_as_long_as_its_number() -> None:
    (left, long), (_, half) = rects(svg.drawn(figure(bars([100, 50]))))
    assert half == pytest.approx(long / 2, abs=0.02)
    assert left + long == pytest.approx(svg.WIDTH - 24, abs=0.02)


def test_stacked_bars_begin_where_the_last_one_ended() -> None:
    found = rects(svg.drawn(figure(bars([30, 20]), bars([40, 10]), barmode="stack")))
    assert found[2][0] == pytest.approx(found[0][0] + found[0][1], abs=0.02)
    assert found[3][0] == pytest.approx(found[1][0] + found[1][1], abs=0.02)
    based = rects(svg.drawn(figure(bars([30, 20], base=[10, 20], width=[0.5, 0.5]))))
    assert based[0][0] - found[0][0] == pytest.approx(based[0][1] / 3, abs=0.05)


def test_names_stay_words_and_colours_are_those_of_the_stylesheet() -> None:
    steps = np.arange(5, dtype=np.int32)
    curve = Curve("<b>1 & 2</b>", steps, np.arange(5.0), np.linspace(5, 3, 5), 5)
    other = Curve("plain", steps, np.arange(5.0), np.array([5, np.nan, 4, 3.5, 3]), 5, family="dp", dashed=True)
    made = svg.drawn(loss.chart([curve, other], "t", "s").figure)
    words = ["".join(found.itertext()) for found in tree(made).iter(f"{TAG}text")]
    assert "<b>1 & 2</b>" in words
    assert "var(" not in made and svg.light()["line-dp"] in made
    lines = [path.get("d", "") for path in tree(made).iter(f"{TAG}path") if path.get("fill") == "none"]
    assert [line.count("M") for line in lines] == [1, 2], "a loss of NaN leaves a gap"


def test_the_charts_of_a_study_are_drawn(traced: dict[int, np.ndarray]) -> None:
    stats = summarise(np.array([0.1, 0.11, 0.12]))
    result = Result("DP", stats, breakdown=Breakdown(compute=80, bubble=20))
    entry = Entry("DP", family="dp", result=result, speed=ratio(stats, stats), ideal=2.0, recompute=True)
    step = gantt.chart([("", traced)], "t", "s")
    for chart in (speedup.chart([entry], "t", "s"), breakdown.chart([entry], "t", "s"), step):
        assert rects(chart.picture), chart.key
    assert step.columns[0] == "rank", "without named runs there is no column for the name"
    assert "url(#hatch-idle)" in step.picture
    assert 'id="hatch-idle"' in svg.hatches()


def test_recomputation_and_disturbance_have_patterns_of_their_own_that_can_be_seen() -> None:
    stats = summarise(np.full(5, 0.1))
    result, speed = Result("DP", stats), ratio(stats, stats)
    looks: tuple[dict[str, Any], ...] = ({"recompute": True}, {"others": 0.3}, {"others": 0.3, "done": False})
    made = speedup.chart([Entry("DP", result=result, speed=speed, **look) for look in looks], "t", "s")
    fills = [rect.get("fill", "") for rect in tree(made.picture).iter(f"{TAG}rect")]
    used = [fill for fill in fills if fill.startswith("url")]
    assert used == ["url(#hatch-surface)", "url(#hatch-x-surface)", "url(#hatch-x-ink-2)"]
    lines = {pattern.get("id"): pattern[0].get("stroke") for pattern in tree(svg.hatches()).iter(f"{TAG}pattern")}
    assert {f"url(#{name})" for name in lines} >= set(used)
    assert lines["hatch-surface"] == svg.light()["surface"] != lines["hatch-x-ink-2"]
    bars = [fill for fill in fills if not fill.startswith("url")]
    assert bars[2] == "none" not in bars[:2], "only the run that goes on is an outline"
    marker = made.figure["data"][0]["marker"]
    assert theme.CLEAR not in marker["color"], "pages hatch in the colour of the bar"
    pattern = marker["pattern"]
    assert pattern["fgcolor"] == [theme.var("surface"), theme.var("surface"), theme.var("ink-2")]


def test_each_symbol_has_its_own_shape() -> None:
    symbols = (*scaling.SYMBOLS, "x-thin", "line-ns", "circle-open")
    marker = {"symbol": list(symbols), "size": 8, "color": theme.var("bar"), "line": {"color": theme.var("bad")}}
    many = {"type": "scatter", "mode": "markers", "x": [50.0] * len(symbols), "y": [0] * len(symbols)}
    plain = tree(svg.drawn(figure(many | {"marker": {**marker, "size": 0}})))
    drawn = list(tree(svg.drawn(figure(many | {"marker": marker})))[0])[len(plain[0]) :]
    looks = [ElementTree.tostring(found) for found in drawn]
    assert len(set(looks)) == len(looks) == len(symbols)
    shapes = dict(zip(symbols, (found.tag.removeprefix(TAG) for found in drawn), strict=True))
    assert shapes["triangle-up"] == shapes["x"] == shapes["x-thin"] == "path" and shapes["circle"] == "circle"


def test_what_cannot_be_drawn_is_left_out_whole() -> None:
    assert svg.drawn(figure({"type": "heatmap", "x": [1], "y": [1], "z": [[1]]})) == ""
    assert svg.drawn(figure()) == ""


UPRIGHT = {"type": "bar", "x": ["DP", "TP"], "y": [1.0, 2.0]}


@pytest.mark.parametrize(
    "made",
    [
        figure(UPRIGHT),
        figure({**UPRIGHT, "x": [1, 2]}),
        figure({"type": "scatter", "x": ["DP", "TP"], "y": [1.0, 2.0]}),
        figure(bars([1.0]), bars([2.0], orientation="v")),
        figure(bars([1.0, 2.0]), xaxis=theme.log_axis("ms", 1.0, 2.0)),
    ],
)
def test_what_would_be_drawn_wrongly_is_left_out(made: dict[str, Any]) -> None:
    """Upright bars, words in place of numbers, and logarithmic axes."""
    assert svg.drawn(made) == ""


def test_round_values_stand_at_an_axis() -> None:
    assert svg.nice(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert svg.nice(97, 1230) == [200, 400, 600, 800, 1000, 1200]
    assert svg.nice(3, 3) == [3]


@pytest.fixture
def traced() -> dict[int, np.ndarray]:
    """Two ranks of 100 us; rank 1 waits in the norm from 50 to 90."""
    rows = np.zeros(4, SPAN)
    rows["kind"] = [Kind.STEP, Kind.F, Kind.OPT_STEP, Kind.NORM]
    rows["start"], rows["end"] = [0, 0, 50_000, 50_000], [100_000, 50_000, 100_000, 90_000]
    return {0: rows, 1: rows.copy()}


def test_large_values_of_an_axis_are_written_with_their_unit() -> None:
    """As the charts of the live pages have them: of steps, samples and tokens."""
    said = [svg.number(value) for value in (0.0, -2.5, 250_000.0, 1e6, -1.25e6, 4e9, 3e26)]
    assert said == ["0", "-2.5", "250000", "1 M", "-1.25 M", "4 B", "3e+26"]


def test_the_norm_of_a_single_device_is_part_of_its_update_and_no_communication(traced: dict[int, np.ndarray]) -> None:
    table = gantt.chart([("", {0: traced[0]})], "t", "s")
    busy = dict(zip(table.columns, table.rows[0], strict=True))
    assert (busy["communication not hidden, ms"], busy["optimizer, ms"]) == ("0", "0.0500")
    assert "communication" not in {trace["name"] for trace in table.figure["data"]}
    assert traced[0]["kind"][3] == Kind.NORM, "the spans themselves are unchanged"


def test_the_wait_for_the_norm_is_not_drawn_as_an_update(traced: dict[int, np.ndarray]) -> None:
    assert after_norm(traced[1])["start"].tolist() == [0, 0, 90_000, 50_000]
    assert traced[1]["start"][2] == 50_000, "the spans themselves are unchanged"
    table = gantt.chart([("", traced)], "t", "s")
    assert table.rows[1][table.columns.index("optimizer, ms")] == "0.0100"
    alone = gantt.chart([("", {0: traced[0]})], "t", "s")
    assert alone.rows[0][alone.columns.index("optimizer, ms")] == "0.0500", "a single rank waits for nobody"
