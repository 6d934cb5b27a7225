"""Curves over steps: smoothed, on a logarithmic scale, also where there is little or nothing to draw."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.observed_page import drawn, until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
BOX = "document.querySelector('.chart[data-chart=loss] .chart-box')"
AVERAGED = """async ([values, factor, meta]) => {
  const charts = document.querySelector("script[src*='js/charts.js']").src;
  return (await import(charts.replace("charts.js", "chart_curves.js"))).averaged(values, factor, meta);
}"""
PUT = """async (values) => {
  const { update } = await import(document.querySelector("script[src*='js/charts.js']").src);
  const figure = JSON.parse(document.querySelector(".chart[data-chart=loss] script").textContent);
  const steps = [...values.keys()];
  const axes = Object.fromEntries(Object.keys(figure.layout.meta.axes).map((name) => [name, [steps]]));
  figure.data = values.length ? [{ ...figure.data[0], x: steps, y: values }] : [];
  figure.layout.meta = { ...figure.layout.meta, axes };
  await update({ loss: { figure } });
}"""
"""Draws other values in the chart of losses."""


def lines(page: Page) -> list[list[float | None]]:
    """The values of each trace of the chart of losses, as the chart library holds them."""
    return list(page.evaluate(f"{BOX}.data.map((one) => one.y)"))


def test_smoothing_and_scale_are_drawn_said_and_kept_in_the_address(page: Page, stocked: dict[str, Any]) -> None:
    page.goto(f"/runs/{stocked['single']}/?tab=metrics")
    drawn(page, ["loss"])
    (values,) = lines(page)
    words = page.locator("[data-smoothed]")
    expect(words).to_be_hidden()
    page.get_by_label("Smoothing").select_option("strong (0.98)")
    page.get_by_label("Scale").select_option("logarithmic")
    until(page, f"() => {BOX}._fullLayout.yaxis.type === 'log' && {BOX}.data.length === 2")
    assert "smoothing=strong&scale=log" in page.url
    page.reload()
    drawn(page, ["loss"])
    expect(words).to_contain_text("exponential moving average")
    expect(page.locator(".chart[data-chart=loss] .legend")).to_contain_text("moving average, factor 0.98")
    raw, average = lines(page)
    assert raw == values and average == page.evaluate(AVERAGED, [values, 0.98, {}])
    assert page.evaluate(f"{BOX}.data.map((one) => one.opacity ?? 1)") == [0.3, 1]
    page.get_by_label("Smoothing").select_option("none")
    page.get_by_label("Scale").select_option("linear")
    until(page, f"() => {BOX}._fullLayout.yaxis.type === 'linear' && {BOX}.data.length === 1")
    assert "smoothing" not in page.url and "scale" not in page.url


@pytest.mark.full
def test_the_only_line_cannot_be_hidden_for_good(page: Page, stocked: dict[str, Any]) -> None:
    page.goto(f"/runs/{stocked['single']}/?tab=metrics&smoothing=light")
    drawn(page, ["loss"])
    at = page.locator(".chart[data-chart=loss] .legendtext").first.bounding_box()
    assert at is not None
    page.mouse.click(at["x"] + at["width"] / 2, at["y"] + at["height"] / 2)
    page.wait_for_timeout(700)  # the chart library waits for a second click
    page.get_by_label("Smoothing").select_option("none")
    until(page, f"() => {BOX}.data.length === 1")
    assert page.evaluate(f"{BOX}._fullData.map((one) => one.visible)") == [True]


def test_an_average_begins_at_the_first_value_and_leaves_out_what_is_no_number(
    page: Page, stocked: dict[str, Any]
) -> None:
    page.goto(f"/runs/{stocked['single']}/?tab=metrics")

    def averaged(*values: float | None, **meta: list[float]) -> list[float | None]:
        return list(page.evaluate(AVERAGED, [values, 0.5, meta]))

    assert averaged() == [] and averaged(None) == [None] and averaged(3.0) == [3.0]
    assert averaged(None, 3.0, None, 6.0) == [None, 3.0, None, pytest.approx((0.25 * 3 + 0.5 * 6) / 0.75)]
    # A point that stands for several values counts as their mean; one that was added later, as itself alone.
    every = averaged(1.0, 3.0, 8.0)
    thinned = averaged(3.0, 8.0, mean=[2.0], count=[2])
    assert thinned[0] == 2.0
    assert thinned[1] == pytest.approx((0.5 * 0.5**0.5 * 2 + (1 - 0.5**0.5) * 8) / (1 - 0.5**1.5))
    assert every[-1] != thinned[-1], "the factor is for as many values as a point of the line stands for"


FEW = (
    ([2.0], "log", ""),
    ([2.0, 0.0, 1.0, -1.0], "log", "2 of 4 values are not above 0"),
    ([2.0, None, 1.0], "log", ""),
    ([0.0, -1.0], "linear", "2 of 2 values are not above 0"),
    ([None], "linear", ""),
)
"""Values, the scale that they have where a logarithmic one is chosen, and what is said of it."""


@pytest.mark.full
def test_a_logarithmic_scale_says_what_it_cannot_show(page: Page, stocked: dict[str, Any]) -> None:
    page.goto(f"/runs/{stocked['single']}/?tab=metrics&smoothing=light&scale=log")
    drawn(page, ["loss"])
    said = page.locator(".chart[data-chart=loss] .chart-note")
    for values, kind, note in FEW:
        page.evaluate(PUT, values)
        assert page.evaluate(f"{BOX}._fullLayout.yaxis.type") == kind
        raw, average = lines(page)
        assert raw == values and [one is None for one in average] == [one is None for one in values]
        expect(said).to_contain_text(note) if note else expect(said).to_have_count(0)
    page.evaluate(PUT, [])
    expect(page.locator(".chart[data-chart=loss] .empty")).to_be_visible()


def test_a_marked_line_is_thick_and_stands_in_the_address(page: Page, stocked: dict[str, Any]) -> None:
    """By the list of runs, or by a row of the chart's numbers: of many lines, most have no name in the legend."""
    runs = [stocked[name] for name in ("single", "dp", "hostile")]
    page.goto(f"/compare/?runs={','.join(map(str, runs))}")
    drawn(page, ["loss"])
    widths = f"Object.fromEntries({BOX}.data.map((one) => [one.meta.run, one.line.width]))"
    page.get_by_label("Mark").select_option(str(runs[2]))
    until(page, f"() => {widths}[{runs[2]}] === 4")
    assert f"&marked={runs[2]}" in page.url
    chart = page.locator(".chart[data-chart=loss]")
    chart.locator(".chart-data summary").click()
    chart.locator(".chart-data tbody tr", has_text="Small DP").locator("td").first.click()
    until(page, f"() => {widths}[{runs[1]}] === 4")
    assert f"&marked={runs[2]},{runs[1]}" in page.url
    marked = page.locator("#table tr.is-marked")
    expect(marked).to_have_count(2)
    page.reload()
    drawn(page, ["loss"])
    assert page.evaluate(widths) == {str(run): 4 if run != runs[0] else 1.75 for run in runs}
    marked.first.locator("td").last.click()
    marked.first.locator("td").last.click()
    until(page, f"() => Object.values({widths}).every((width) => width === 1.75)")
    assert "marked" not in page.url
