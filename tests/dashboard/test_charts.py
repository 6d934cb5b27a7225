"""Figures are pure functions of the numbers: what is drawn adds up and stays in order, and names remain plain text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plotly.graph_objects import Figure

from dashboard.charts import breakdown, loss, losses, memory, speedup, svg, tradeoff, waterfall
from dashboard.charts import plans as plan_charts
from dashboard.charts.chart import Chart, Entry
from dashboard.charts.loss import Curve
from parallel_core.analysis.breakdown import COMPONENTS
from parallel_core.analysis.downsample import Means
from parallel_core.analysis.losses import Losses
from parallel_core.analysis.quantities import bytes_text
from parallel_core.analysis.stats import Speedup, Stats
from tests.dashboard.every_chart import ENTRIES, MEMORY, charts, entry
from tests.dashboard.test_svg import TAG, tree

CSS = (Path(__file__).parents[2] / "dashboard/static/css/trainyard.css").read_text()
OF_THE_BUNDLE = {"bar", "scatter", "heatmap"}
"""Trace types that charts may use; the Plotly bundle that pages load contains few others."""
CHARTS = [chart for made in charts().values() for chart in made]


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.key)
def test_figures_are_valid_json_with_few_traces_and_known_colours(chart: Chart) -> None:
    text = json.dumps(chart.figure, allow_nan=False)
    assert 0 < len(chart.figure["data"]) <= 10
    assert "shapes" not in chart.figure["layout"]
    assert all(f"{token}:" in CSS for token in re.findall(r"var\((--[\w-]+)\)", text))
    assert all(len(row) == len(chart.columns) for row in chart.rows)


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.key)
def test_figures_speak_the_language_of_the_library(chart: Chart) -> None:
    coloured = re.sub(r"var\(--[\w-]+\)", "#000", json.dumps(chart.figure))
    figure = Figure(**{key: value for key, value in json.loads(coloured).items() if key in {"data", "layout"}})
    kinds = {trace.type for trace in figure.data}
    assert kinds <= OF_THE_BUNDLE, f"the pages' Plotly draws {', '.join(sorted(OF_THE_BUNDLE))} alone"


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.key)
def test_figures_are_drawn_for_reports_or_left_out_whole(chart: Chart) -> None:
    if made := svg.drawn(chart.figure):
        assert len(tree(made)) > 0


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.key)
def test_numbers_below_each_other_have_as_many_decimals_or_digits(chart: Chart) -> None:
    """Without its zero, 17 s below 16.5 s would look less exact."""
    published = chart.key == "times"  # what others measured has the digits that they gave
    told_of = [i for i in range(1, len(chart.columns)) if not (published and chart.columns[i] == "measured")]
    columns = [[row[i] for row in chart.rows] for i in told_of]
    columns += [list(trace["text"]) for trace in chart.figure["data"] if isinstance(trace.get("text"), list | tuple)]
    for column in columns:
        found: dict[str, list[str]] = {}
        for text in column:
            if told := re.fullmatch(r"[+−~ ]*(\d[\d.]*) ?(\D*)", re.sub("</?b>", "", str(text)).strip()):
                found.setdefault(told[2], []).append(told[1])
        for numbers in found.values():
            fixed = len({len(number.partition(".")[2]) for number in numbers if number.strip("0.")}) <= 1
            digits = {number: len(number.replace(".", "").lstrip("0")) for number in numbers if number.strip("0.")}
            fractions = [digits[number] for number in digits if "." in number]
            assert fixed or not fractions or min(digits.values()) >= max(fractions), column


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.key)
def test_what_is_drawn_is_in_the_table_and_the_finding_is_short(chart: Chart) -> None:
    """What appears at the pointer is not the only copy: nobody can print, save or reach it by keyboard."""
    assert chart.rows and chart.columns and chart.source and chart.subtitle
    assert max(len(sentence.split()) for sentence in re.split(r"(?<=[.;]) ", chart.title)) <= 25


def test_where_no_plan_fits_the_smallest_are_in_the_table() -> None:
    points = [plan_charts.Point(f"plan {i}", 1.0, (90 - i) * 2**30, False, False) for i in range(12)]
    made = plan_charts.scatter(points, 80 * 2**30, "t", "12 of 12 plans drawn")
    assert [row[0] for row in made.rows] == [f"plan {i}" for i in range(11, 1, -1)]
    chosen = plan_charts.scatter([*points, points[0]._replace(chosen=True)], 80 * 2**30, "t", "s")
    assert [row[0] for row in chosen.rows] == ["plan 0"]


def test_a_chart_of_every_module_is_checked() -> None:
    folder = Path(svg.__file__).parent
    making = {path.stem for path in folder.glob("*.py") if re.search(r"\bChart\(", path.read_text())}
    without = sorted(making - set(charts()))
    assert not without, f"add {', '.join(without)} to charts() in tests/dashboard/every_chart.py"


def test_breakdown_parts_cover_every_component_once() -> None:
    named = [field for _, fields, _ in breakdown.PARTS for field in fields]
    divided = {"forward", "backward", "undivided"}
    assert sorted(named) == sorted([*divided, *set(COMPONENTS) - {"compute"}])


def test_forward_and_backward_have_their_own_colours_where_they_are_known() -> None:
    known = entry("DP", 60, 1.6)
    assert known.result and known.result.breakdown
    before = replace(known.result, breakdown=replace(known.result.breakdown, forward=None))
    for results, names in (
        ([known.result], ["forward", "backward", "recomputation"]),
        ([known.result, before], ["forward", "backward", "forward and backward"]),
    ):
        made = breakdown.chart([replace(known, result=result) for result in results], "t", "s")
        bars = [trace for trace in made.figure["data"] if trace["type"] == "bar"]
        assert [trace["name"] for trace in bars[:3]] == names
        assert [trace["marker"]["color"] for trace in bars[:2]] == ["var(--phase-forward)", "var(--phase-backward)"]
        assert [trace["x"][0] for trace in bars[:2]] == pytest.approx([12, 24])
        assert [sum(trace["x"][i] for trace in bars) for i in range(len(results))] == pytest.approx([60] * len(results))


def test_the_steps_of_a_plan_divide_forward_and_backward() -> None:
    made = plan_charts.step({"compute": 0.06, "bubble": 0.01}, 0.02, "t")
    assert [row[:2] for row in made.rows] == [
        ["forward", "20.0"],
        ["backward", "40.0"],
        ["pipeline bubble", "10.0"],
        ["step", "70.0"],
    ]
    long = plan_charts.step({"compute": 15.0, "bubble": 1.2}, 5.0, "t")
    axis, (bars,) = long.figure["layout"]["xaxis"]["title"]["text"], long.figure["data"]
    assert (axis, long.columns[1], long.rows[-1][1]) == ("s", "s", "16.2")
    assert bars["x"][-1] == pytest.approx(16.2) and bars["text"][-1] == "16.2 s"


def test_stacked_parts_add_up_to_the_step() -> None:
    data = [t for t in breakdown.chart(ENTRIES, "t", "s").figure["data"] if t["type"] == "bar"]
    sums = [sum(trace["x"][i] for trace in data) for i in range(len(ENTRIES))]
    assert sums == pytest.approx([e.result.breakdown.total / 1e6 for e in ENTRIES if e.result and e.result.breakdown])


def test_charts_share_their_rows() -> None:
    made = charts()
    ticks = [made[name][0].figure["layout"]["yaxis"]["ticktext"] for name in ("speedup", "breakdown", "memory")]
    assert ticks[0] == ticks[1] == ticks[2] == ["DP", "<b>Single</b>", "Single + AR"]


def test_disturbed_bar_is_hatched_and_says_so() -> None:
    made = speedup.chart([entry("DP", 60, 1.6, others=0.14), entry("TP", 70, 1.4, others=0.02)], "t", "s")
    assert made.figure["data"][0]["marker"]["pattern"]["shape"] == ["x", ""]
    assert "+14 %" in json.dumps(made.figure)
    assert "+14 % = of one device used by others" in made.subtitle


def test_limit_far_away_is_said_and_not_drawn() -> None:
    near, far = (memory.chart(ENTRIES, "t", "s", limit=limit) for limit in (10 << 20, 1 << 40))
    assert any(trace.get("name") == "limit" for trace in near.figure["data"])
    assert not any(trace.get("name") == "limit" for trace in far.figure["data"])
    assert "limit 1 TiB" in far.subtitle
    assert "limit 11.8 GiB" in memory.chart(ENTRIES, "t", "s", limit=int(11.76 * 2**30)).subtitle


def test_the_number_of_the_longest_bar_has_room_on_a_phone() -> None:
    """Its plot is 175 px wide there, and the margin beside it 16: "34 MiB" takes 45."""
    layout, data = (memory.chart(ENTRIES, "t", "s").figure[part] for part in ("layout", "data"))
    longest = max(end for trace in data if trace.get("mode") == "text" for end in trace["x"])
    assert (1 - longest / layout["xaxis"]["range"][1]) * 175 + 16 >= 45


def test_names_are_escaped_for_plotly() -> None:
    made = speedup.chart([entry("<b>x</b>", 60, 1.6)], "t", "s")
    assert "<b>x" not in json.dumps(made.figure)


def test_pareto_holds_what_none_beats_in_both() -> None:
    light = {**MEMORY, "activations": 0}
    points = [
        (entry("a", 60, 1), 60.0, 8.0),
        (entry("b", 90, 1, memory=light), 90.0, 4.0),
        (entry("c", 95, 1), 95.0, 8.0),
    ]
    assert [e.label for e, _, _ in tradeoff.pareto(points)] == ["a", "b"]


def test_a_waterfall_leaves_its_longest_bar_room_for_a_number_on_a_phone() -> None:
    a, b = (entry(name, ms, 1).result for name, ms in (("A", 90), ("B", 60)))
    assert a and b and a.breakdown and b.breakdown
    layout = waterfall.chart(a.breakdown, b.breakdown, ("A", "B"), "s").figure["layout"]
    wide, phone = layout["xaxis"]["range"][1], layout["meta"]["narrow"]["xaxis"]["range"][1]
    assert phone > 1.15 * wide


@pytest.mark.parametrize(
    ("ms", "texts"),
    [
        (90, ["90.0", "\N{MINUS SIGN}18.0", "\N{MINUS SIGN}3.0", "\N{MINUS SIGN}9.0", "60.0"]),
        (0.09, ["0.0900", "\N{MINUS SIGN}0.0180", "\N{MINUS SIGN}0.0030", "\N{MINUS SIGN}0.0090", "0.0600"]),
    ],
)
def test_a_waterfall_numbers_every_bar_that_is_not_nothing_however_short_the_step(ms: float, texts: list[str]) -> None:
    a, b = (entry(name, of, 1).result for name, of in (("A", ms), ("B", ms / 1.5)))
    assert a and b and a.breakdown and b.breakdown
    bars, _ = waterfall.chart(a.breakdown, b.breakdown, ("A", "B"), "s").figure["data"]
    assert [text for text in bars["text"] if text != "0"] == texts
    assert bars["text"].count("0") == 4


def test_few_steps_have_no_whiskers_and_take_no_room_for_them() -> None:
    many, few = entry("DP", 60, 1.6), replace(entry("TP", 60, 1.6), speed=Speedup(1.6, 0.4, 5.0, True, 4))
    made = speedup.chart([many, few], "t", "s")
    error = made.figure["data"][0]["error_x"]
    assert error["array"] == [pytest.approx(0.048), None] and error["arrayminus"] == [pytest.approx(0.032), None]
    assert made.figure["layout"]["xaxis"]["range"] == speedup.chart([many], "t", "s").figure["layout"]["xaxis"]["range"]
    words = next(trace for trace in made.figure["data"] if trace.get("mode") == "text")
    assert words["x"][1] < 2.0, "before the ideal's tick"
    whiskers = [
        path.get("d", "") for path in tree(made.picture).iter(f"{TAG}path") if path.get("stroke-width") == "1.25"
    ]
    assert len(whiskers) == 1


def test_a_long_status_ends_with_a_clause() -> None:
    waits = replace(
        ENTRIES[0], result=None, speed=None, status="queued: Waits for other runs of its study: they go on."
    )
    [words] = [one for one in speedup.chart([ENTRIES[1], waits], "t", "s").figure["data"] if one.get("mode") == "text"]
    assert words["text"][1] == "queued: Waits for other runs of its study"
    assert words["meta"]["narrow"]["text"] == [words["text"][0], "queued"], "a phone would cut it off within a word"


def test_what_several_runs_wait_for_is_said_in_the_first_of_their_rows() -> None:
    """A study of 14 runs said twelve times that they wait for other runs of it."""
    first, second, third = (
        replace(ENTRIES[0], result=None, speed=None, status=status)
        for status in ("queued: Waits for other runs of its study", *["queued: Waits for a GPU"] * 2)
    )
    drawn = speedup.chart([ENTRIES[1], first, replace(first, label="d"), second, third], "t", "s").figure["data"]
    [words] = [one for one in drawn if one.get("mode") == "text"]
    assert words["text"][1:] == [first.status, "queued", second.status, "queued"]


def test_of_one_split_the_title_speaks_of_one() -> None:
    assert charts()["splits"][0].title == "1 of 2 splits is beaten by none in both time and memory."


def test_names_with_commas_are_told_apart() -> None:
    light = {**MEMORY, "activations": 0}
    named = [entry("Single, fp32", 60, 1), entry("DP, bf16", 90, 1, memory=light)]
    assert tradeoff.chart(named, "s").title.endswith("memory: Single, fp32; DP, bf16.")
    plainly = [entry("Single", 60, 1), entry("DP", 90, 1, memory=light)]
    assert tradeoff.chart(plainly, "s").title.endswith("memory: Single, DP.")


def test_what_is_beaten_within_noise_alone_is_said_to_be_so() -> None:
    def noisy(label: str, ms: float, **more: Any) -> Entry:
        made = entry(label, ms, 1, **more)
        assert made.result
        return replace(made, result=replace(made.result, step=Stats(ms / 1e3, 0.05, 0.07, ms / 1e3, 40)))

    twins = [noisy("a", 60), noisy("b", 61)]
    assert tradeoff.chart(twins, "s").title == "1 of 2 is beaten by none in both time and memory: a; b is within noise."
    far = tradeoff.chart([*twins, entry("c", 95, 1)], "s").title
    assert far.startswith("1 of 3 ") and far.endswith("; b is within noise.")
    light = {**MEMORY, "activations": 0}
    lighter = [noisy("a", 60, memory=light), noisy("b", 61)]
    assert tradeoff.chart(lighter, "s").title.endswith(": a."), "b takes more memory for no less time"


def test_names_of_a_scatter_beside_another_chart_end_inside_it() -> None:
    light = {**MEMORY, "activations": 0}
    named = [entry("Single", 88, 1), entry("Single x4 micro-batches + AR", 127, 1, memory=light)]
    *_, dots = tradeoff.chart(named, "s").figure["data"]
    assert dots["text"] == dots["meta"]["half"]["text"] == ["Single", "Single x4 micro-batches + AR"]
    assert dots["textposition"][1].endswith("right") and dots["meta"]["half"]["textposition"][1].endswith("left")


def test_memory_of_a_plan_is_outlined() -> None:
    made = plan_charts.memory([("peak", {"params": 1e9, "activations": 2e9})], [4e9], "t")
    stack = [trace for trace in made.figure["data"] if trace["type"] == "bar"]
    assert [trace["marker"] for trace in stack[:2]] == [
        {"color": f"var(--memory-{part}-soft)", "line": {"width": 1.5, "color": f"var(--memory-{part})"}}
        for part in ("params", "grads")
    ]


def test_loss_has_every_axis_for_every_line() -> None:
    curve = Curve("DP", np.arange(3, dtype=np.int32), np.arange(3.0) / 2, np.array([3.0, 2.0, 1.0]), 30, 16)
    made = loss.chart([curve], "t", "measured")
    assert made.figure["layout"]["meta"]["axes"] == {
        "step": [[0, 1, 2]],
        "samples": [[0, 16, 32]],
        "seconds": [[0, 0.5, 1]],
    }
    assert made.source.endswith("3 of 30 points")


def test_a_long_name_is_cut_in_the_legend_as_in_rows_but_not_at_the_pointer() -> None:
    """A phone's legend has room for about 40 characters: of a longer name the end, and "baseline", were cut off."""
    name = "a name of a run that goes on and on until it has eighty characters"
    curves = [Curve(own, np.arange(2, dtype=np.int32), np.arange(2.0), np.ones(2), 2) for own in (name, "DP")]
    long, short = loss.chart(curves, "t", "measured").figure["data"]
    assert long["name"] == "a name of a ru…ty characters" and short["name"] == "DP"
    assert long["hovertemplate"].startswith(name)


def test_a_thinned_line_says_what_each_point_stands_for() -> None:
    values = np.array([3.0, 1.0, 4.0, 2.0])
    kept = np.array([1, 2, 3])
    curve = Curve("DP", kept.astype(np.int32), kept / 2, values[kept], 4, means=Means.of(values, kept))
    line, older = loss.chart([curve], "t", "measured", replaced=[curve]).figure["data"]
    assert line["meta"] == {"mean": [2.0, 4.0, 2.0], "count": [2, 1, 1]}
    assert older["meta"] == {"whole": True}
    (whole,) = loss.chart([replace(curve, means=None)], "t", "measured").figure["data"]
    assert "meta" not in whole


@pytest.mark.parametrize(("first", "above"), [(50.0, 1), (1.5, 0)])
def test_a_first_step_to_warm_up_does_not_press_the_others_together(first: float, above: int) -> None:
    values = np.array([first, 1.0, 1.1, 0.9])
    curve = Curve("DP", np.arange(4, dtype=np.int32), np.arange(4.0), values, 4)
    made = loss.chart([curve], "t", "measured", top=1.4)
    axis = made.figure["layout"]["yaxis"]
    assert (axis.get("range") == [0, 1.4]) == bool(above)
    assert ("1 of them above this view: “All values” shows them" in made.source) == bool(above)
    assert made.figure["layout"]["meta"].get("above", 0) == above
    assert made.figure["data"][0]["y"] == values.tolist()  # the point outside the view is still in the data


def test_words_behind_bars_have_more_room_on_a_phone() -> None:
    layout = speedup.chart(ENTRIES, "t", "s").figure["layout"]
    wide, narrow = layout["xaxis"]["range"], layout["meta"]["narrow"]["xaxis"]["range"]
    assert narrow[0] == wide[0] == 0 and narrow[1] > wide[1] > 0


def test_several_lines_are_named_beside_them() -> None:
    one, two = (Curve(n, np.arange(3, dtype=np.int32), np.arange(3.0), np.ones(3), 3) for n in ("DP", "TP"))
    assert not loss.chart([one], "t", "s").figure["layout"]["showlegend"]
    both = loss.chart([one, two], "t", "s")
    assert both.figure["layout"]["showlegend"]
    assert both.height > loss.chart([one], "t", "s").height
    assert both.subtitle.endswith(" of each run; both lines lie on one another"), (
        "no dash is explained that is not drawn"
    )
    dashed = loss.chart([one, replace(two, dashed=True)], "t", "s").subtitle
    assert dashed.endswith("; dashed = with recomputation; both lines lie on one another")
    apart = loss.chart([one, replace(two, value=np.array([1.0, 1.0, 2.0]))], "t", "s")
    late = loss.chart([one, replace(two, step=np.arange(1, 4, dtype=np.int32))], "t", "s")
    assert "lie on" not in apart.subtitle + late.subtitle


def test_nothing_measured_draws_nothing_and_keeps_the_size() -> None:
    waiting = [Entry("DP", done=False, status="queued")]
    assert breakdown.chart(waiting, "t", "s").empty
    assert breakdown.chart(waiting, "t", "s").height == speedup.chart(waiting, "t", "s").height
    assert speedup.chart(waiting, "t", "s").rows == [["DP", "queued", "", "", "", ""]]


def test_the_stair_of_losses_reaches_a_speedup_beyond_the_number_of_devices() -> None:
    slow = losses.chart(Losses(devices=2, single=100, smaller_kernels=60), "s")
    assert slow.title.endswith("goes to slower compute."), "spans do not tell whether others used the device"
    assert "as others used the devices" in slow.subtitle
    found = Losses(devices=2, single=100, bubble=30, smaller_kernels=-60)
    chart = losses.chart(found, "s")
    assert found.speedup > 2.8
    assert chart.figure["layout"]["xaxis"]["range"][1] > found.speedup
    assert chart.figure["data"][0]["text"][2] == "\N{MINUS SIGN}0.86"


def test_words_of_a_row_do_not_stand_across_a_line() -> None:
    """The ratio must not cross the line of the baseline's speed, nor the total of a plan the line of its device's
    limit.
    """
    slow = replace(entry("Single + AR", 120, 0.9), ideal=0.95)
    figure = speedup.chart([ENTRIES[0], slow], "t", "s").figure
    words = next(trace for trace in figure["data"] if trace.get("mode") == "text")
    assert words["x"][1] > 1
    far = replace(entry("DP", 60, 1.2), ideal=2.0)
    words = next(t for t in speedup.chart([far], "t", "s").figure["data"] if t.get("mode") == "text")
    assert far.speed and far.speed.high < words["x"][0] < 1.7, "next to the bar, not next to the ideal speed"
    wide, phone = (at[0] - far.speed.high for at in (words["x"], words["meta"]["narrow"]["x"]))
    assert phone > 2 * wide, "on the few pixels of a phone's axis it would touch the whisker"
    gib = 1 << 30
    made = plan_charts.memory(
        [("near", {"params": 73.0 * gib}), ("far", {"params": 20.0 * gib})], [78.0 * gib] * 2, "t"
    )
    totals = next(trace for trace in made.figure["data"] if trace.get("mode") == "text")
    assert totals["x"] == [78.0, 20.0]
    half = plan_charts.memory([("half", {"params": 55.0 * gib})], [78.0 * gib], "t").figure["data"][-1]
    assert (half["x"], half["meta"]["narrow"]["x"]) == ([55.0], [78.0]), "text takes relatively more room on a phone"


def test_of_two_hundred_runs_each_memory_is_written_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each pair of runs both were written anew: some ten thousand times, which took most of a page's time."""
    written: list[float] = []

    def note(count: float, **how: Any) -> str:
        written.append(count)
        return bytes_text(count, **how)

    monkeypatch.setattr(tradeoff, "bytes_text", note)
    fast = [entry(f"fast {i}", 60 + i, 1, memory={**MEMORY, "activations": (200 - i) << 20}) for i in range(100)]
    slow = [entry(f"slow {i}", 70 + i, 1, memory={**MEMORY, "activations": (200 - i) << 20}) for i in range(100)]
    made = tradeoff.chart([*fast, *slow], "measured")
    assert made.title.startswith("100 of 200 are beaten by none") and len(written) <= 3 * 200
