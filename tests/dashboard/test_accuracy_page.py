"""The Accuracy page: every published row with its error, and sentences that follow from the rows."""

from __future__ import annotations

import pytest
from django.test import Client

from dashboard.charts import errors
from dashboard.plans import accuracy_page
from parallel_core.analysis.quantities import signed_percent_text
from parallel_core.plan.cluster import accuracy, pipedream_2019
from tests.dashboard.run_analyst import answered

PAGE = "/planner/accuracy/"


def test_every_row_stands_with_its_measurement_and_error(reader: Client) -> None:
    page = reader.get(PAGE)
    text = page.content.decode()
    for row in [*accuracy.step_times(), *accuracy.layer_times(), *accuracy.figure_1(), *accuracy.figure_7()]:
        assert row.key in text
    times = next(s for s in page.context["sections"] if s.key == "times").charts[0]
    assert len(times.rows) == 18
    assert sum(row[4] == "yes" for row in times.rows) == 4


def test_errors_in_and_out_of_the_fit_stand_apart(reader: Client) -> None:
    first = reader.get(PAGE).context["sections"][0].sentences[0]
    found = accuracy.summary([row for row in accuracy.step_times() if not row.fitted])
    assert first.startswith(
        f"Out of the fit: 14 rows, mean error {100 * found.mean:.1f} %, worst {100 * found.worst:.1f} %"
    )
    assert "In the fit: 4 rows" in first


def test_the_first_chart_says_more_than_the_verdict_above_it(reader: Client) -> None:
    times = reader.get(PAGE).context["sections"][0]
    worst = max(accuracy.step_times(), key=lambda row: abs(row.error))
    title = times.charts[0].title
    assert title not in times.sentences and title.startswith("All 18 rows are within the 8 % aimed at")
    assert f"{worst.key}, {signed_percent_text(worst.error)}" in title


def test_speedups_of_pipedream_stand_with_what_its_programme_says(reader: Client) -> None:
    section = next(s for s in reader.get(PAGE).context["sections"] if s.key == "pipedream")
    (chart,) = section.charts
    assert [row[0] for row in chart.rows] == [line.row.key for line in pipedream_2019.speedups()]
    assert [row[1] for row in chart.rows][:2] == ["5.28 times DP", "2.98 times DP"]
    assert "mean error" in section.sentences[0] and "In 5 of 6 rows" in section.sentences[1]
    errors_of = [abs(line.row.error) for line in pipedream_2019.speedups() if "-" in line.published]
    assert len(errors_of) == 4
    mean = f"{25 * sum(errors_of):.1f} %"
    told = f"2 rows are data parallelism itself, 1 by definition; the other 4 have a mean error of {mean}."
    assert told in section.sentences[1]


def test_bars_end_at_the_errors_and_fitted_rows_are_outlined() -> None:
    rows = accuracy.step_times()
    bars = errors.chart("times", "", rows, 0.08).figure["data"][0]
    assert bars["x"] == pytest.approx([100 * (row.predicted - row.measured) / row.measured for row in rows])
    hollow = [colour == "rgba(0,0,0,0)" for colour in bars["marker"]["color"]]
    assert hollow == [row.fitted for row in rows]


def test_on_a_phone_a_number_has_room_behind_its_bar() -> None:
    """The number is printed next to the end of its bar; the axis must leave room for it. It used to be on the other
    side of zero.
    """
    for rows, goal in ((accuracy.step_times(), 0.08), (accuracy.figure_7(), None), (accuracy.layer_times(), None)):
        figure = errors.chart("times", "", rows, goal).figure
        low, high = figure["layout"]["meta"]["narrow"]["xaxis"]["range"]
        bars = figure["data"][0]
        assert bars["textposition"] == "outside" and "textposition" not in bars["meta"]["narrow"]
        longest = max(bars["x"] + [0.0]) - min(bars["x"] + [0.0])
        room = min(high - max(bars["x"]), min(bars["x"]) - low)
        assert room / (high - low) > 0.2 or longest < 8, "a number of 11 px takes a fifth of the axis"


def test_only_a_chart_with_outlined_bars_says_what_they_are() -> None:
    times = errors.chart("times", "", accuracy.step_times())
    assert "outlined" in times.subtitle and "right = predicted too slow" in times.subtitle
    assert times.figure["layout"]["xaxis"]["title"]["text"] == "error, %", "more is cut on a phone"
    assert "outlined" not in errors.chart("layers", "", accuracy.layer_times()).subtitle
    memory = accuracy_page.memory()
    assert "percentage points" in memory.charts[0].title
    assert "percentage points" not in "".join(memory.sentences[1:]), "the chart has said it"


def test_what_was_computed_is_not_called_measured() -> None:
    """Both figures of memory are formulas of the paper, and the times of 2021 are those of published FLOP/s."""
    memory = accuracy_page.memory()
    assert "Nothing here was measured: the paper computed both figures from its formulas." in memory.sentences
    (chart,) = memory.charts
    assert chart.source.startswith("published: Korthikanti") and chart.columns[1] == "published"
    assert "measured" not in chart.subtitle + chart.source
    times = accuracy_page.step_times()
    assert "Times of 2021 are the published FLOP/s of a GPU, three digits, turned into seconds." in times.sentences
    assert times.charts[0].source.startswith("measured: ") and times.charts[0].columns[1] == "measured"


def test_errors_have_a_minus_sign_and_none_where_they_round_to_nothing() -> None:
    told = [row[3] for row in errors.table([*accuracy.step_times(), *accuracy.figure_1()])]
    assert "−2.77 %" in told and "0.00 %" in told
    assert not any("-" in text or text == "+0.00 %" for text in told)


@pytest.mark.full
def test_bubble_rates_are_simulated_for_a_model_of_the_tables(reader: Client) -> None:
    text = answered(reader, f"{PAGE}bubbles/1.5B", part=True).content.decode()
    assert "1.5B: 3 rows, worst 0.3" in text
    assert "against 4.33" in text
    assert "at equal memory: shorter in 1 of 6, equal in 5, longer in none" in text
    assert "15.85 against 15.85 (0.00)" in text and "-0.00" not in text and "room for 2p, ZB-2p" in text
    assert "table compact wide wrapped" in text, (
        "without these classes the last of the seven columns is cut off on a desktop"
    )
    assert "Back to Accuracy" not in text
    assert "Back to Accuracy" in reader.get(f"{PAGE}bubbles/1.5B").content.decode()
    assert reader.get(f"{PAGE}bubbles/7B").status_code == 404


def test_constants_name_their_sources() -> None:
    rows = accuracy_page.constants().more["rows"]
    assert len(rows) >= 9
    assert sum(source == "fitted" for _, _, source in rows) == 3
    assert all(source for _, _, source in rows)
