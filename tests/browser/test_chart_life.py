"""Charts from their first drawing to their removal: double-clicks, other widths, and what is let go of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.observed_page import until
from tests.yard_process import wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
BOX = ".chart[data-chart=schedule-1] .chart-box"
RANGE = f"document.querySelector('{BOX}').layout.xaxis.range.map(Number)"
SIZE = f"document.querySelector('{BOX}').layout.font.size"
COUNT = """
window.held = new Set();
for (const [name, change] of [["addEventListener", "add"], ["removeEventListener", "delete"]]) {
  const own = window[name];
  window[name] = function (type, listener, ...more) {
    if (type === "resize" && (this ?? window) === window) window.held[change](listener);
    return own.call(this ?? window, type, listener, ...more);
  };
}
window.drawings = 0;
document.addEventListener("chartdrawn", () => { window.drawings += 1; });
"""
"""Keeps the listeners of the window that wait for another width, of which the library adds one a chart."""
CHANGED = """async (change) => {
  const { update } = await import(document.querySelector("script[src*='js/charts.js']").src);
  const figure = JSON.parse(document.querySelector(".chart[data-chart=schedule-1] script").textContent);
  const changes = {
    longer: () => { figure.layout.xaxis.range = [0, 2 * figure.layout.xaxis.range[1]]; },
    whiskers: () => {
      const error_x = { type: "data", symmetric: false, array: [1, null, 0], arrayminus: [1, null, 0] };
      figure.data = [{ type: "bar", orientation: "h", x: [3, 3, 3], y: [0, 1, 2], error_x }];
    },
  };
  changes[change]();
  await update({ "schedule-1": { figure } });
}"""


@pytest.fixture
def schedules(window: Callable[..., Page], session: Any) -> Page:
    """The Schedules page, 900 px wide, with its first chart drawn."""
    page = window(storage_state=session, viewport={"width": 900, "height": 900})
    page.add_init_script(COUNT)
    page.goto("/schedules/")
    expect(page.locator(f"{BOX} .main-svg").first).to_be_visible()
    return page


def test_a_double_click_leads_to_the_whole_of_the_newest_figure(schedules: Page) -> None:
    first = schedules.evaluate(RANGE)
    schedules.evaluate(CHANGED, "longer")
    assert schedules.evaluate(RANGE) == [0, 2 * first[1]]
    schedules.locator("#chart-schedule-1").get_by_role("button", name="Zoom in").click()
    assert schedules.evaluate(RANGE)[1] < 2 * first[1]

    def whole() -> bool:
        """On a busy host the two clicks may arrive too far apart to count as one: clicks again, as a user would."""
        schedules.locator(f"{BOX} .nsewdrag").first.dblclick()
        return bool(schedules.evaluate(RANGE) == [0, 2 * first[1]])

    wait_for("the whole step", whole, 30)


def test_a_box_of_another_width_has_its_figure_fitted_again(schedules: Page) -> None:
    """Within the same layout of the page, so that nothing else draws it again."""
    assert schedules.evaluate(SIZE) == 13
    for width, size in ((420, 11), (900, 13)):
        schedules.set_viewport_size({"width": width, "height": 900})
        until(schedules, f"(size) => {SIZE} === size", size)
    schedules.locator(BOX).evaluate("(box) => { box.style.width = '300px'; }")
    until(schedules, f"() => {SIZE} === 11")


def test_charts_that_are_replaced_are_let_go_of(schedules: Page) -> None:
    until(schedules, "() => window.drawings >= 2")
    before = schedules.evaluate("window.held.size")
    for name in ("zb-h1", "gpipe", "zb-h1"):
        drawings = schedules.evaluate("window.drawings")
        schedules.locator("#f-b").select_option(name)
        until(schedules, "(drawings) => window.drawings >= drawings + 2", drawings)
    assert schedules.evaluate("window.held.size") == before > 0


def test_charts_that_go_in_a_morph_are_let_go_of(schedules: Page) -> None:
    until(schedules, "() => window.drawings >= 2")
    before = schedules.evaluate("window.held.size")
    schedules.evaluate(
        """async () => {
          const charts = document.querySelector("script[src*='js/charts.js']").src;
          const { morph } = await import(charts.replace("charts.js", "morph.js"));
          const section = document.querySelector("#chart-schedule-1").parentElement;
          const fresh = section.cloneNode(true);
          fresh.querySelector("#chart-schedule-1").remove();
          morph(section, fresh);
        }"""
    )
    expect(schedules.locator("#chart-schedule-1")).to_have_count(0)
    assert schedules.evaluate("window.held.size") == before - 1


def test_a_whisker_of_no_length_known_is_not_drawn(schedules: Page) -> None:
    schedules.evaluate(CHANGED, "whiskers")
    drawn = "(paths) => paths.map((path) => path.getAttribute('d')).filter(Boolean).length"
    assert schedules.locator(f"{BOX} .errorbar path").evaluate_all(drawn) == 2
