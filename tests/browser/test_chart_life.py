"""Charts from their first drawing to their removal: double-clicks, other widths, pictures, and what is let go of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from dashboard.charts import loss
from dashboard.charts.loss import Curve
from dashboard.studies.templatetags.quantities import whole_words
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

MOUNTED = """async (figure) => {
  const { update, watch } = await import(document.querySelector("script[src*='js/charts.js']").src);
  if (document.querySelector(".chart[data-chart=above]")) return update({ above: { figure } });
  const old = document.querySelector(".chart[data-chart=schedule-1]");
  const made = old.cloneNode(true);
  made.dataset.chart = "above";
  made.id = "chart-above";
  made.querySelector(".zoom")?.remove();
  const box = Object.assign(document.createElement("div"), { className: "chart-box" });
  made.querySelector(".chart-box").replaceWith(box);
  made.querySelector("script[type='application/json']").textContent = JSON.stringify(figure);
  old.before(made);
  watch();
}"""
"""Draws a figure as a chart "above", before the first one of the page, or again as new numbers do."""


def losses(top: float) -> dict[str, Any]:
    """The figure of a curve whose first value lies far above the first view, 0 to `top`."""
    values = np.array([50.0, 1.0, 1.1, 0.9])
    curve = Curve("DP", np.arange(4, dtype=np.int32), np.arange(4.0), values, 4)
    return loss.chart([curve], "t", "measured", top=top).figure


@pytest.fixture
def schedules(window: Callable[..., Page], session: Any) -> Page:
    """The Schedules page, 900 px wide, with its first chart drawn."""
    page = window(storage_state=session, viewport={"width": 900, "height": 900})
    page.add_init_script(COUNT)
    page.goto("/schedules/")
    expect(page.locator(f"{BOX} .main-svg").first).to_be_visible()
    return page


@pytest.mark.full
def test_a_double_click_leads_to_the_whole_of_the_newest_figure(schedules: Page) -> None:
    first = schedules.evaluate(RANGE)
    schedules.evaluate(CHANGED, "longer")
    assert schedules.evaluate(RANGE) == [0, 2 * first[1]]
    schedules.locator("#chart-schedule-1").get_by_role("button", name="Zoom in").click()
    assert schedules.evaluate(RANGE)[1] < 2 * first[1]
    double_click(schedules, BOX, f"{RANGE}[1] === {2 * first[1]}")
    assert schedules.evaluate(RANGE)[0] == 0


def test_a_double_click_shows_all_values_and_leads_back_to_the_newest_first_view(schedules: Page) -> None:
    box = ".chart[data-chart=above] .chart-box"
    drawn = f"document.querySelector('{box}')"
    shown = f"{drawn}._fullLayout.yaxis.range.map(Number)"
    schedules.evaluate(MOUNTED, losses(1.4))
    expect(schedules.locator(f"{box} .main-svg").first).to_be_visible()
    assert schedules.evaluate(shown) == [0, 1.4]
    schedules.evaluate(MOUNTED, losses(2.0))
    assert schedules.evaluate(shown) == [0, 2]
    everything, first = f"{shown}[1] > 40", f"{shown}[1] === 2"
    for reached in (everything, first, everything):
        double_click(schedules, box, reached)
    schedules.evaluate(f"window.Plotly.relayout({drawn}, {{ 'xaxis.range': [1, 2], 'yaxis.range': [0, 2] }})")
    double_click(schedules, box, f"{drawn}.layout.xaxis.autorange")
    assert schedules.evaluate(first), "of all steps, before all values"


COVERED = """() => {
  const chart = document.querySelector("#chart-schedule-1");
  const [heading, zoom] = ["figcaption", ".zoom"].map((name) => chart.querySelector(name));
  window.scrollBy(0, heading.getBoundingClientRect().bottom + 8 - window.innerHeight);
  return zoom.getBoundingClientRect().top < heading.getBoundingClientRect().bottom;
}"""
"""Whether a chart's zoom buttons lie over its heading when no more than that is in the window."""


@pytest.mark.full
def test_zoom_buttons_are_never_over_the_heading(schedules: Page) -> None:
    schedules.set_viewport_size({"width": 900, "height": 300})
    expect(schedules.locator("#chart-schedule-1 .zoom")).to_be_attached()
    assert not schedules.evaluate(COVERED)


def double_click(page: Page, box: str, reached: str) -> None:
    """Until the expression is true: on a busy host the two clicks may arrive too far apart to count as one."""

    def clicked() -> bool:
        if not page.evaluate(reached):
            page.locator(f"{box} .nsewdrag").first.dblclick()
        return bool(page.evaluate(reached))

    wait_for(reached, clicked, 30)


@pytest.mark.full
def test_a_box_of_another_width_has_its_figure_fitted_again(schedules: Page) -> None:
    """Within the same layout of the page, so that nothing else draws it again."""
    assert schedules.evaluate(SIZE) == 13
    for width, size in ((420, 11), (900, 13)):
        schedules.set_viewport_size({"width": width, "height": 900})
        until(schedules, f"(size) => {SIZE} === size", size)
    schedules.locator(BOX).evaluate("(box) => { box.style.width = '300px'; }")
    until(schedules, f"() => {SIZE} === 11")


@pytest.mark.full
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


@pytest.mark.full
def test_a_whisker_of_no_length_known_is_not_drawn(schedules: Page) -> None:
    schedules.evaluate(CHANGED, "whiskers")
    drawn = "(paths) => paths.map((path) => path.getAttribute('d')).filter(Boolean).length"
    assert schedules.locator(f"{BOX} .errorbar path").evaluate_all(drawn) == 2


WORDS = """async (text) => {
  const charts = document.querySelector("script[src*='js/charts.js']").src;
  const { setWholeWords } = await import(charts.replace("charts.js", "whole_words.js"));
  const node = document.createElement("p");
  setWholeWords(node, text);
  return node.innerHTML;
}"""


@pytest.mark.full
@pytest.mark.parametrize(
    "text",
    [
        "DP of ZeRO-3 takes 48 ms, PP 22.1 %",
        "Next: \u05e0\u05d9 \u05d0-\u05d1: 11 270, DP 7",
        "\u05e0\u05d9 4 12 \u05d0-\u05d1 3 \u00b5s DP 7",
    ],
)
def test_words_that_arrive_later_are_kept_together_as_those_of_the_server(schedules: Page, text: str) -> None:
    assert schedules.evaluate(WORDS, text) == whole_words(text)


RECORD = """() => {
  window.said = [];
  const own = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...more) {
    window.said.push(text);
    return own.call(this, text, ...more);
  };
}"""


def test_a_saved_picture_says_what_its_colours_mean(schedules: Page) -> None:
    """They are explained once a page, above its charts; the picture of one had no word on them."""
    chart = schedules.locator("#chart-schedule-1")
    chart.locator("summary").click()
    schedules.evaluate(RECORD)
    with schedules.expect_download():
        chart.get_by_role("button", name="Save the picture as PNG").click()
    said = schedules.evaluate("window.said")
    named = [text for text in said if text in schedules.locator(".legend > li").all_inner_texts()]
    assert named[0] == "forward" and "idle (bubble)" in named
    assert "recomputation" not in named and len(named) == len(set(named)), "only what is in the picture, and once"


TASKS = """
let library, task = 0;
window.tasks = [];
Object.defineProperty(window, "Plotly", {
  configurable: true,
  get: () => library,
  set: (loaded) => {
    const own = loaded.react;
    loaded.react = (...figure) => {
      window.tasks.push(task);
      setTimeout(() => { task += 1; });
      return own.apply(loaded, figure);
    };
    library = loaded;
  },
});
"""
"""Notes for each drawing how many tasks of the browser have begun since an earlier one."""


def test_each_chart_of_the_first_screen_is_drawn_in_a_task_of_its_own(page: Page) -> None:
    """They were all drawn in one, for which nothing could be clicked, and before which none of them was seen."""
    page.add_init_script(TASKS)
    page.set_viewport_size({"width": 1440, "height": 2000})
    page.goto("/planner/accuracy/")
    until(page, "window.tasks.length >= 3")
    tasks = page.evaluate("window.tasks")
    assert len(set(tasks)) == len(tasks)


PRINTED = """
document.addEventListener("chartdrawn", () => {
  dispatchEvent(new Event("beforeprint"));
  setTimeout(() => {
    const boxes = [...document.querySelectorAll(".chart[data-chart] .chart-box")].filter((box) => box.offsetWidth);
    window.missing = boxes.filter((box) => !box.querySelector(".main-svg, .empty")).length;
  });
}, { once: true });
"""
"""Prints when the first chart is drawn, and counts those that the paper lacks."""


def test_charts_that_wait_for_their_turn_are_printed(page: Page) -> None:
    page.add_init_script(PRINTED)
    page.set_viewport_size({"width": 1440, "height": 2000})
    page.goto("/planner/accuracy/")
    until(page, "window.missing !== undefined")
    assert page.evaluate("window.missing") == 0
