"""The timeline of a step of any size: bins that are exact at every zoom, and the cache of long steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from django.test import Client

from dashboard.charts import gantt, heatmap, memory_over_time, theme, timeline
from dashboard.charts.timeline import Step, window_of
from dashboard.runs.models import SpanChunk
from parallel_core.analysis.bins import bins
from parallel_core.analysis.breakdown import phases
from parallel_core.analysis.names import COMPONENT_NAMES
from parallel_core.bench.analysis import made
from parallel_core.layout import Layout
from parallel_core.observe.records import CATEGORIES, MEMORY, SPAN
from parallel_core.schedule.ir import Kind
from parallel_core.schedule.text import WORDS
from parallel_core.simulate.schedule_preview import preview
from parallel_core.spec import RunSpec
from tests.bench.timeline import STEP, seed
from tests.dashboard import factory

LAYOUT = Layout.of(RunSpec.model_validate({"parallel": {"dp": 2, "tp": 2, "pp": 2}}))


def test_bins_of_any_width_hold_the_exact_time_of_every_layer() -> None:
    starts = np.arange(0, 1_000, 10)
    one = bins([(starts, starts + 4), (starts + 2, starts + 8)], np.linspace(0, 1_000, 101))
    edges, shares = one.between(0, 1_000, 20) or pytest.fail("wide enough")
    assert np.allclose(np.diff(edges), 50)
    assert np.allclose(shares[0], 0.4) and np.allclose(shares[1], 0.4) and np.allclose(shares[2], 0.2)
    assert one.between(100, 200, 20) is None, "ten stored bins are not enough to show twenty"


def test_a_wide_window_shows_the_same_from_kept_bins_as_from_its_spans() -> None:
    spans = made(LAYOUT, 24_000)
    kept = heatmap.finest(spans)
    wide = (0.0, 30_000 / 1e6)
    quick, slow = (heatmap.chart(spans, "t", "s", wide, own) for own in (kept, None))
    assert len(quick.figure["data"][0]["x"]) in range(400, 801)
    for fast, exact in zip(quick.rows, slow.rows, strict=True):
        assert [float(text.split()[0]) for text in fast[1:]] == pytest.approx(
            [float(text.split()[0]) for text in exact[1:]], abs=1
        )


def test_bins_are_numbers_with_one_list_of_names() -> None:
    trace = heatmap.chart(made(LAYOUT, 24_000), "t", "s").figure["data"][0]
    assert "customdata" not in trace and trace["meta"]["names"] == heatmap.PHASES
    assert {type(value) for row in trace["z"] for value in row} == {int}


def test_bins_stand_at_their_time_from_the_start_of_the_step() -> None:
    spans = made(LAYOUT, 24_000)
    for rows in spans.values():
        rows["start"] += 10**9
        rows["end"] += 10**9
    trace = heatmap.chart(spans, "t", "s", (0.002, 0.003)).figure["data"][0]
    assert 0.002 <= trace["x"][0] < 0.0021 and 0.0029 < trace["x"][-1] <= 0.003


def test_a_short_step_is_shown_whole_and_a_long_one_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = Step(made(LAYOUT, 800), LAYOUT), Step(made(LAYOUT, 24_000), LAYOUT)
    assert not short.long and {t["type"] for t in short.chart("t", "s", (0.0, 0.0001)).figure["data"]} == {"bar"}
    assert long.chart("t", "s").figure["data"][0]["type"] == "heatmap"
    near = long.chart("t", "s", (0.001, 0.002))
    assert {trace["type"] for trace in near.figure["data"]} == {"bar"}
    assert near.figure["layout"]["meta"]["total"] == 24_000
    assert near.figure["layout"]["meta"]["inside"] == long.in_view((0.001, 0.002)) < 2_000
    assert near.rows[0][2:] != long.chart("t", "s", (0.002, 0.003)).rows[0][2:], (
        "the numbers are those of the spans in view"
    )
    monkeypatch.setattr(timeline, "KEPT_BYTES", 1)
    first = timeline.kept("a", lambda: long)
    assert timeline.kept("a", lambda: pytest.fail("it is kept")) is first
    other = Step(made(LAYOUT, 16_000))
    timeline.kept("b", lambda: other)
    assert timeline.kept("a", lambda: short) is short, "a step that was evicted from the cache is read again"


def test_rows_name_the_place_of_their_rank_and_lanes_part_messages_from_collectives() -> None:
    spans = made(LAYOUT, 800)
    figure = Step(spans, LAYOUT).chart("t", "s").figure
    ticks = figure["layout"]["yaxis"]["ticktext"]
    assert ticks[0].endswith(theme.small("stage 0, replica 0, tensor 0"))
    assert ticks[7].endswith(theme.small("stage 1, replica 1, tensor 1"))
    single = Step({0: spans[0]}, Layout.of(RunSpec())).chart("t", "s").figure
    assert single["layout"]["yaxis"]["ticktext"] == ["rank 0"]
    flight = next(trace for trace in single["data"] if trace["name"] == "communication")
    lanes = {round(y, 3) for y in flight["y"]}
    assert len(lanes) == 3 and min(lanes) < 0 < max(lanes), "buckets above, messages below, tensor collectives inside"


def test_a_rank_says_all_stages_that_it_holds() -> None:
    def of(**parallel: Any) -> dict[int, str]:
        spec = RunSpec.model_validate({"parallel": {"pp": 2, "micro_batches": 4, **parallel}, "model": {"layers": 8}})
        layout = Layout.of(spec)
        return Step(made(layout, 800), layout).places

    assert of(schedule="zb-v") == {0: "stages 0, 3", 1: "stages 1, 2"}
    assert of(schedule="interleaved", chunks=4) == {0: "stages 0 … 6", 1: "stages 1 … 7"}


def test_many_bars_and_parts_of_long_steps_are_painted_and_wait_in_hatches_as_whole_steps_do() -> None:
    few, many, long = (Step(made(LAYOUT, count), LAYOUT) for count in (200, 1_600, 24_000))
    part = long.chart("t", "s", (0.001, 0.002))
    painted = [
        chart.figure["layout"]["meta"].get("canvas") for chart in (few.chart("t", "s"), many.chart("t", "s"), part)
    ]
    assert painted == [False, True, True]
    assert all(chart.figure["layout"]["meta"]["zooms"] for chart in (few.chart("t", "s"), long.chart("t", "s"), part))
    assert not long.chart("t", "s").figure["layout"]["meta"].get("canvas"), "bins are not drawn as bars"
    waiting = next(trace for trace in part.figure["data"] if trace["name"] == "waiting")
    assert waiting["marker"]["pattern"] and "hatched is idle" in part.subtitle


@pytest.mark.parametrize("given", [{}, {"from": "1"}, {"from": "5", "to": "1"}, {"from": "nan", "to": "2"}])
def test_a_window_is_two_numbers_in_order(given: dict[str, str]) -> None:
    assert window_of(given) is None
    assert window_of({"from": "1", "to": "2.5"}) == (1.0, 2.5)


@pytest.mark.full
@pytest.mark.django_db
def test_pages_of_long_steps_zoom_down_to_bars(client: Client, admin_user: Any) -> None:
    addresses = seed(24_000)
    client.force_login(admin_user)
    trace = client.get(addresses["a trace"]).context["gantt"]
    src = trace.figure["layout"]["meta"]["window"]
    assert trace.figure["data"][0]["type"] == "heatmap" and src.endswith(f"gantt.json?step={STEP}")
    whole = trace.figure["layout"]["xaxis"]["range"][1]
    near = client.get(f"{src}&from={whole * 0.3}&to={whole * 0.33}").json()
    assert {one["type"] for one in near["figure"]["data"]} == {"bar"}
    assert "spans in view, of 24\N{NO-BREAK SPACE}000" in near["source"]
    page = client.get(addresses["a run"])
    assert page.context["gantt"].figure["data"][0]["type"] == "heatmap"
    assert page.context["findings"].later and "Judging the traced steps" in page.content.decode()
    run = SpanChunk.objects.latest("pk").attempt.run
    found = client.get(f"/runs/{run.pk}/part/findings").content.decode()
    assert "Judging" not in found and ("finding" in found or "Nothing wrong" in found)
    assert not client.get(addresses["a run"]).context["findings"].later, "judged findings are cached"


def test_in_flight_is_what_is_between_its_forward_and_its_last_backward() -> None:
    rows = np.zeros(6, SPAN)
    rows["kind"] = [Kind.STEP, Kind.F, Kind.F, Kind.B, Kind.BW, Kind.W]
    rows["micro_batch"] = [-1, 0, 1, 0, 1, 0]
    rows["start"], rows["end"] = [0, 0, 10, 20, 40, 60], [100, 10, 20, 30, 60, 80]
    at, count = memory_over_time.in_flight(rows)
    assert at.tolist() == [0, 0, 10, 60, 80, 100]
    assert count.tolist() == [0, 1, 2, 1, 0, 0]
    assert len(memory_over_time.in_flight(rows[:1])[0]) == 0


@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", None), ("interleaved", 2), ("zb-v", None)])
def test_in_flight_is_counted_as_a_schedule_counts_it(schedule: str, chunks: int | None) -> None:
    """Each of a rank's stages holds a part of the micro-batch."""
    made = preview(schedule, 2, 4, chunks=chunks)
    counts = [memory_over_time.in_flight(rows)[1] for rows in made.spans.values()]
    assert tuple(count.max() for count in counts) == made.kept
    assert all(count[0] == count[-1] == 0 for count in counts)


def test_a_pipeline_that_never_flushes_begins_and_ends_with_micro_batches_in_flight() -> None:
    made = preview("1f1b-stash", 4, 4)
    for rank, most in enumerate(made.in_flight):
        _, count = memory_over_time.in_flight(made.spans[rank])
        assert count.max() == most and {count[0], count[-1]} <= {most - 1, most}
    assert count[0] == 0, "the last stage turns each micro-batch round at once"


def test_the_largest_part_of_memory_is_not_called_most_of_it() -> None:
    peak = dict.fromkeys(CATEGORIES, 20 << 20) | {"activations": 35 << 20}
    one = memory_over_time.Metered(0, np.zeros(1, MEMORY), peak, 0, np.zeros(0, SPAN))
    title = memory_over_time.chart([one], "measured").title
    assert title == "115 MiB at most, on rank 0; the largest part is activations."


@pytest.mark.django_db
def test_the_memory_tab_shows_every_rank_over_its_step(client: Client, alice: Any) -> None:
    run = factory.finished(alice, {"pp": 2, "micro_batches": 4})
    client.force_login(alice)
    page = client.get(f"/runs/{run.pk}/?tab=memory")
    made = page.context["over_time"]
    assert [row[0] for row in made.rows] == ["0", "1"] and all(row[2] for row in made.rows)
    assert [row[5] for row in made.rows] == ["2", "1"], "1F1B keeps one micro-batch per stage from here to the end"
    flights = [trace for trace in made.figure["data"] if trace.get("name") == "in flight"]
    assert len(flights) == 2 and {trace["yaxis"] for trace in flights} == {"y2", "y4"}
    assert "predicted" in made.title and made.title in page.content.decode()


def test_numbers_stand_where_they_can_be_read() -> None:
    """In a zoomed view, a bar shows its micro-batch if there are six pixels per digit; a whole step contains all texts,
    since it may be zoomed into.
    """
    spans = {rank: rows.copy() for rank, rows in made(LAYOUT, 24_000).items()}
    for rows in spans.values():
        rows["start"] *= 100_000
        rows["end"] *= 100_000
    seen = set()
    for window in ((100.0, 200.0), None):
        figure = gantt.figure_of([("", spans)], max_bars=10**6, window=window)
        for trace in figure["data"]:
            for x, text in zip(trace["x"], trace.get("text", [""] * len(trace["x"])), strict=True):
                if trace["name"] == "forward" and window is not None:
                    assert x >= 100 * gantt.LEAST_DIGIT * len(text)
                if trace["name"] == "forward":
                    seen.add((window, bool(text)))
    assert seen == {((100.0, 200.0), False), ((100.0, 200.0), True), (None, True)}


@pytest.mark.parametrize("collective", [Kind.ALLREDUCE, Kind.NORM])
def test_a_wait_inside_a_collective_is_idle_in_bars_and_bins_as_it_is_in_the_accounts(collective: Kind) -> None:
    rows = [
        [(Kind.STEP, 0, 100), (Kind.BW, 0, 20), (collective, 20, 100)],
        [(Kind.STEP, 0, 100), (Kind.BW, 0, 70), (collective, 70, 100)],
    ]
    spans = {
        rank: np.array([(kind, 0, 0, -1, 0, 0, a, b, 0) for kind, a, b in own], SPAN) for rank, own in enumerate(rows)
    }
    for own in spans.values():
        own["start"] *= 1_000_000
        own["end"] *= 1_000_000
    step = Step(spans, Layout.of(RunSpec.model_validate({"parallel": {"dp": 2}})))
    parts = step.breakdown[0]
    chart = step.chart("t", "s")
    bars = {trace["name"]: trace for trace in chart.figure["data"]}
    assert parts.bubble == 50_000_000 and (bars["waiting"]["base"], bars["waiting"]["x"]) == ([20.0], [50.0])
    assert (bars["communication"]["base"], bars["communication"]["x"]) == ([70.0, 70.0], [30.0, 30.0])
    assert bars["communication"]["y"] == [0.0, 1.0], "drawn in the rows of the ranks, which wait inside it"
    said = f"rank 0, stage 0: waits for rank 1 in {WORDS[collective]}<br>50 ms at 20.00"
    assert bars["waiting"]["customdata"] == [said]
    assert bars["waiting"]["marker"]["color"] == bars["idle"]["marker"]["color"]
    told = dict(zip(chart.columns, chart.rows[0], strict=True))
    assert (told["communication not hidden, ms"], told["waiting in messages and collectives, ms"]) == ("30.0", "50.0")
    bins = heatmap.chart(spans, "t", "s", None, heatmap.finest(spans, step.waited), step.waited)
    shares = dict(zip(bins.columns, bins.rows[0], strict=True))
    assert (shares["idle, % of the window"], shares["communication, % of the window"]) == ("50 %", "30 %")
    part = heatmap.chart(spans, "t", "s", (20.0, 100.0), None, step.waited)
    assert part.rows[0][1] == "63 %", "50 of 80 ms"


def test_bins_divide_a_step_as_the_table_of_its_bars_does() -> None:
    """A bucket that nothing hides, the arrival of a message, a collective behind computing, and the norm."""
    kinds = [
        [(Kind.F, 0, 20), (Kind.SEND_ACT, 20, 50), (Kind.BW, 50, 60), (Kind.BUCKET, 55, 90), (Kind.NORM, 90, 100)],
        [(Kind.RECV_ACT, 0, 50), (Kind.F, 50, 80), (Kind.TP_FLIGHT, 70, 85), (Kind.NORM, 85, 100)],
    ]
    spans = {
        rank: np.array(
            [(kind, 0, rank, 0, 0, 0, a * 10**6, b * 10**6, 0) for kind, a, b in [(Kind.STEP, 0, 100), *own]], SPAN
        )
        for rank, own in enumerate(kinds)
    }
    step = Step(spans, Layout.of(RunSpec.model_validate({"parallel": {"pp": 2}})))
    assert [parts.exposed_collective for parts in step.breakdown.values()] == [40_000_000, 10_000_000]
    for waited in (step.waited, {}):
        made = heatmap.chart(spans, "t", "s", None, heatmap.finest(spans, waited), waited)
        shown = [dict(zip(heatmap.PHASES, row[1:], strict=True)) for row in made.rows]
        told = [phases(spans[rank], waited.get(rank)) for rank in (0, 1)]
        for own, parts in zip(shown, told, strict=True):
            parts["idle"] += parts.pop("waiting")
            assert own == {phase: f"{ns // 10**6} %" for phase, ns in parts.items()}
    assert [parts["communication"] for parts in told] == [70_000_000, 65_000_000]
    alone = heatmap.chart({0: spans[0]}, "t", "s").rows[0]
    assert alone[1 + heatmap.PHASES.index("optimizer")] == "10 %", "the norm of a single device waits for nobody"


@pytest.mark.parametrize(
    ("later", "words"),
    [
        (0, "9 ms a step"),
        (3, "9 ms a step, on average over the ranks"),
        (0.004, "9 ms a step"),
        (0.06, "9 ms a step, on average over the ranks"),  # of the same step What if says 9.06 ms
    ],
)
def test_a_step_of_ranks_that_begin_apart_is_said_to_be_a_mean(later: float, words: str) -> None:
    begin, ms = (0, later), 1_000_000
    spans = {
        rank: np.array([(kind, 0, 0, -1, 0, 0, at * ms, (at + 9) * ms, 0) for kind in (Kind.STEP, Kind.BW)], SPAN)
        for rank, at in enumerate(begin)
    }
    step = Step(spans, Layout.of(RunSpec.model_validate({"parallel": {"dp": 2}})))
    assert step.pace == words
    assert step.finding().startswith(f"{words}: 100 % compute, 0 % ")


def test_a_run_and_a_trace_say_the_same_of_a_step_but_for_what_nothing_covers() -> None:
    """For a run, uncovered time is one part of the step among others; for an imported trace, the caller describes what
    it is.
    """
    rows = [(Kind.STEP, 0, 0, -1, 0, 0, 0, 10_000_000, 0), (Kind.F, 0, 0, 0, 0, 0, 0, 6_000_000, 0)]
    step = Step({0: np.array(rows, SPAN)})
    name = COMPONENT_NAMES["other"]
    assert step.finding() == f"10 ms a step: 60 % compute, 40 % {name}."
    # the median over all steps of a run may differ
    assert step.finding(number=20).startswith("10 ms in step 20: 60 % compute")
    asked: list[float] = []

    def named(ns: float) -> str:
        asked.append(ns)
        return "between its operations"

    said = step.finding(named)
    assert (said, asked) == (step.finding().replace(name, "between its operations"), [4_000_000])
