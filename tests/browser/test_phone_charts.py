"""Charts on a phone: what a tap says, and labels that leave the bars their width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from dashboard.charts import theme
from tests.browser.observed_page import PHONE, drawn, until
from tests.browser.test_phone import CLICKS_MS, STILL

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

CHART = ".chart[data-chart=schedule-1]"
CHANGED = """async ([canvas, label]) => {
  const { update } = await import(document.querySelector("script[src*='js/charts.js']").src);
  const figure = JSON.parse(document.querySelector(".chart[data-chart=schedule-1] script").textContent);
  figure.layout.meta.canvas = canvas;
  if (label) figure.layout.yaxis.ticktext[0] = label;
  await update({ "schedule-1": { figure } });
}"""
"""Draws the first schedule again, with its bars on a canvas as of a long step, or with another label of its first
row.
"""


@pytest.fixture
def phone(window: Callable[..., Page], session: Any) -> Page:
    """A phone that shows two schedules."""
    page = window(storage_state=session, viewport=PHONE, has_touch=True, is_mobile=True)
    page.goto("/schedules/")
    drawn(page, ["schedule-1"])
    return page


@pytest.mark.parametrize(
    ("canvas", "text"), [pytest.param(False, ".hoverlayer .hovertext", marks=pytest.mark.full), (True, ".bar-tip")]
)
def test_a_tap_on_a_bar_says_what_it_is_until_the_next_one(phone: Page, canvas: bool, text: str) -> None:
    """The library took it for a double-click, drew the chart again, and the text was gone; that of bars on a canvas,
    as of long steps, was never there."""
    phone.evaluate(CHANGED, [canvas, ""])
    plot = phone.locator(f"{CHART} .nsewdrag").first
    plot.evaluate("(e) => e.scrollIntoView({ block: 'center' })")
    phone.evaluate(STILL)
    row = phone.locator(f"{CHART} .ytick text").first.bounding_box()
    at = plot.bounding_box()
    assert row is not None and at is not None
    phone.touchscreen.tap(at["x"] + at["width"] / 2, row["y"] + row["height"] / 2)
    phone.wait_for_timeout(CLICKS_MS)
    said = phone.locator(f"{CHART} {text}")
    expect(said).to_be_visible()
    expect(said).to_contain_text("device 0")


TICKS = """async (ticktext) => {
  const charts = document.querySelector("script[src*='js/charts.js']").src;
  const { fitted } = await import(charts.replace("charts.js", "chart_fit.js"));
  const box = document.createElement("div");
  document.querySelector("main").append(box);
  const yaxis = { range: [ticktext.length - 0.5, -0.5], ticktext };
  const layout = { height: 100, margin: { t: 8, b: 40 }, font: { size: 13 }, yaxis };
  return fitted({ data: [], layout }, box).layout.yaxis.ticktext;
}"""


def test_a_name_without_a_blank_leaves_the_bars_of_a_chart_their_width(phone: Page) -> None:
    """Of 29 characters in one line, it took two thirds of the chart, and the numbers beside the bars were cut off."""
    names = ["Single", "Single x4 micro-batches", "w" * 14 + "…" + "w" * 14, "<b>wide_mlp_2048_fp32_dp2_try1</b>"]
    names += [f"<b>{'&amp;' * 24}</b>"]
    lines = ["Single", "Single x4<br>micro-batches", "w" * 14 + "…<br>" + "w" * 14]
    lines += ["<b>wide_mlp_2048_<br>fp32_dp2_try1</b>", f"<b>{'&amp;' * 12}<br>{'&amp;' * 12}</b>"]
    assert phone.evaluate(TICKS, names) == lines


SIZES = """(label) => [label, ...label.querySelectorAll("tspan[style*=font-size]")].map((part) =>
  Number.parseFloat(getComputedStyle(part).fontSize))"""


def test_where_a_rank_is_placed_is_written_smaller_than_its_number(phone: Page) -> None:
    phone.evaluate(CHANGED, [False, f"rank 0<br>{theme.small('replica 0')}"])
    rank, replica = phone.locator(f"{CHART} .ytick text").first.evaluate(SIZES)
    assert 8 <= replica < rank


MIDDLE = """() => {
  const box = document.querySelector(".chart[data-chart=loss] .chart-box");
  const [{ xaxis, yaxis, _size: size }, { x, y }] = [box._fullLayout, box.data[0]];
  const [at, left, top] = [Math.floor(x.length / 2), box.getBoundingClientRect().left, box.getBoundingClientRect().top];
  return [box.data[0].meta.run, left + size.l + xaxis.l2p(x[at]), top + size.t + yaxis.l2p(y[at])];
}"""
"""Run of the first line of the chart of losses, and where on the screen its middle point is."""


def test_a_tap_on_a_name_of_a_legend_hides_its_line_and_asks_for_no_double_click(
    window: Callable[..., Page], session: Any, stocked: dict[str, Any]
) -> None:
    """A note about double-clicks, which a finger cannot make, covered the controls of the page."""
    page = window(storage_state=session, viewport=PHONE, has_touch=True, is_mobile=True)
    page.goto(f"/compare/?runs={stocked['single']},{stocked['dp']}")
    page.locator(".chart[data-chart=loss]").evaluate("(e) => e.scrollIntoView({ block: 'center' })")
    drawn(page, ["loss"])
    page.locator("[data-chart=loss] .legendtoggle").first.tap()
    until(page, "() => document.querySelector('[data-chart=loss] .chart-box')._fullData[0].visible === 'legendonly'")
    assert page.locator(".notifier-note").count() == 0, "at once, as it fades"


def test_a_tap_on_a_line_marks_its_run(window: Callable[..., Page], session: Any, stocked: dict[str, Any]) -> None:
    """Browsers make a click of a tap as well, which took the mark off again."""
    page = window(storage_state=session, viewport=PHONE, has_touch=True, is_mobile=True)
    page.goto(f"/compare/?runs={stocked['single']},{stocked['dp']}")
    page.locator(".chart[data-chart=loss]").evaluate("(e) => e.scrollIntoView({ block: 'center' })")
    drawn(page, ["loss"])
    page.evaluate(STILL)
    run, *at = page.evaluate(MIDDLE)
    page.touchscreen.tap(*at)
    page.wait_for_timeout(CLICKS_MS)
    assert page.url.endswith(f"&marked={run}")
