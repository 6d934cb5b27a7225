"""The timeline of a step with more spans than a figure may have bars: zoomed by mouse and by address, inspected,
saved.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from dashboard.charts.heatmap import PHASES
from parallel_core.analysis.quantities import count_text
from tests.bench.timeline import seeded
from tests.browser.observed_page import LIVE_MS, PHONE, RUN_MS, TELL, Troubles, until
from tests.yard_process import YardProcess, wait_for

pytestmark = pytest.mark.browser
SPANS = 24_000
BOX = ".chart[data-chart=gantt] .chart-box"
RANGE = f"document.querySelector('{BOX}')?.layout?.xaxis?.range?.map(Number)"
PART = """async ([low, high]) => {
  const box = document.querySelector(".chart[data-chart=gantt] .chart-box");
  const src = JSON.parse(document.querySelector(".chart[data-chart=gantt] script").textContent).layout.meta.window;
  const { figure } = await (await fetch(`${src}&from=${low}&to=${high}`)).json();
  const trace = figure.data.find((one) => one.name === "forward");
  const inside = trace.base.map((start, i) => (start > low && start + trace.x[i] < high ? trace.x[i] : 0));
  const i = inside.indexOf(Math.max(...inside));
  const probe = document.createElement("span");
  probe.style.color = "var(--phase-forward)";
  document.body.append(probe);
  const [upper, bottom] = [box.layout.yaxis.range[1], box.layout.yaxis.range[0]];
  return {
    begin: (trace.base[i] - low) / (high - low), wide: trace.x[i] / (high - low), said: trace.customdata[i],
    down: (trace.y[i] - upper) / (bottom - upper), colour: getComputedStyle(probe).color,
    bars: figure.data.reduce((sum, one) => sum + one.x.length, 0),
  };
}"""
"""The widest forward span in a range of the step, as the server reports it: where its bar should be (in fractions of
the plot), its text, and its colour in the current theme.
"""
PIXEL = """(canvas, [across, down]) => {
  const one = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  one.drawImage(canvas, -Math.floor(across * canvas.width), -Math.floor(down * canvas.height));
  return `rgb(${[...one.getImageData(0, 0, 1, 1).data].slice(0, 3).join(", ")})`;
}"""
SAVED = """() => new Promise((resolve) => {
  const of = window.Plotly.toImage;
  window.Plotly.toImage = (figure, options) => {
    window.Plotly.toImage = of;
    resolve(figure.data.reduce((sum, one) => sum + (one.type === "bar" ? one.x.length : 0), 0));
    return of(figure, options);
  };
  document.querySelector(".chart[data-chart=gantt] [data-chart-png]").click();
})"""
UPDATE = """async () => {
  const { update } = await import(document.querySelector("script[src*='js/charts.js']").src);
  const src = JSON.parse(document.querySelector(".chart[data-chart=gantt] script").textContent).layout.meta.window;
  await update({ gantt: await (await fetch(src)).json() });
}"""


WATCH = """() => {
  const source = document.querySelector(".chart[data-chart=gantt] .chart-source");
  window.seen = [];
  const told = { childList: true, subtree: true, characterData: true };
  new MutationObserver(() => window.seen.push(source.textContent)).observe(source, told);
  const of = window.fetch;
  window.asked = 0;
  window.fetch = (...given) => {
    window.asked += String(given[0]).includes("gantt.json") ? 1 : 0;
    return of(...given);
  };
}"""
"""Records the texts that the timeline's source line takes from now on, and counts the requests for the timeline."""


@pytest.fixture(scope="module")
def long(yard: YardProcess, client: Any) -> dict[str, str]:
    """Addresses of a run and of a trace with a step of SPANS spans."""
    return seeded(yard, SPANS)[0]


def canvas(page: Page) -> Locator:
    return page.locator(f"{BOX} canvas.bars")


def opened(page: Page, address: str, window: tuple[float, float]) -> dict[str, Any]:
    """Opens a range of a step and returns what should be drawn there."""
    page.goto(f"{address}?from={window[0]}&to={window[1]}")
    expect(canvas(page)).to_be_visible(timeout=RUN_MS)
    assert page.evaluate(RANGE) == list(window), "the axis shows the range in the address"
    return dict(page.evaluate(PART, window))


@pytest.mark.full
def test_bars_stand_where_the_axis_says_and_say_what_they_are(
    page: Page, troubles: Troubles, long: dict[str, str]
) -> None:
    for address in long.values():
        found = opened(page, address, (5.0, 5.4))
        spot = [found["begin"] + 0.25 * found["wide"], found["down"] + 0.02]
        schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark", "light")
        for scheme in schemes:  # each is waited for: drawing anew hides the tip
            page.emulate_media(color_scheme=scheme)
            wanted = page.evaluate(PART, (5.0, 5.4))["colour"]
            until(
                page,
                f"([spot, colour]) => ({PIXEL})(document.querySelector('{BOX} canvas.bars'), spot) === colour",
                [spot, wanted],
            )
        at = canvas(page).bounding_box()
        assert at is not None
        page.mouse.move(at["x"] + spot[0] * at["width"], at["y"] + spot[1] * at["height"])
        tip = page.locator(f"{BOX} .bar-tip")
        expect(tip).to_be_visible()
        assert tip.inner_text() == found["said"].replace("<br>", "\n")
        page.mouse.move(at["x"] + 5, at["y"] + at["height"] + 60)
        expect(tip).to_be_hidden()
        assert page.evaluate(SAVED) == found["bars"], "the saved picture contains all bars"


@pytest.mark.full
def test_a_dragged_part_is_asked_for_and_a_double_click_shows_the_whole_again(
    page: Page, troubles: Troubles, long: dict[str, str]
) -> None:
    page.goto(long["a run"])
    plot = page.locator(f"{BOX} .nsewdrag").first
    expect(plot).to_be_attached(timeout=RUN_MS)
    whole = page.evaluate(RANGE)
    at = plot.bounding_box()
    assert at is not None
    middle = at["y"] + at["height"] / 2
    page.mouse.move(at["x"] + 100, middle)
    expect(page.locator(f"{BOX} .hoverlayer")).to_contain_text(re.compile(f"mostly ({'|'.join(PHASES)}) at"))
    drag(page, at["x"] + 200, at["x"] + 220, middle)
    expect(canvas(page)).to_be_visible(timeout=RUN_MS)
    low, high = page.evaluate(RANGE)
    share = (whole[1] - whole[0]) / at["width"]
    assert (low, high) == pytest.approx((200 * share, 220 * share), abs=1.5 * share)
    expect(page.locator(".chart[data-chart=gantt] .chart-source")).to_contain_text(
        f"spans in view, of {count_text(SPANS)}"
    )
    # On a busy host the two clicks of a double-click may arrive too far apart to count as one: click again, as a user
    # would.
    wait_for("the whole step", lambda: again(page, at["x"] + 300, middle), RUN_MS / 1000)
    assert page.evaluate(RANGE) == whole and "from=" not in page.url


def test_buttons_and_keys_zoom_to_single_operations_and_back(page: Page, long: dict[str, str]) -> None:
    page.goto(long["a run"])
    buttons = page.locator("#chart-gantt").get_by_role("group", name="Zoom")
    expect(buttons).to_be_visible(timeout=RUN_MS)
    first, last = page.evaluate(RANGE)
    back = buttons.get_by_role("button", name="Whole step")
    expect(back).to_be_hidden()
    expect(buttons.get_by_role("button", name="Zoom out")).to_have_attribute("aria-disabled", "true")
    buttons.get_by_role("button", name="Zoom in").focus()
    page.keyboard.press("Enter")
    assert page.evaluate(RANGE) == pytest.approx([(last - first) / 4, 3 * (last - first) / 4])
    buttons.get_by_role("button", name="Later").click()
    assert page.evaluate(RANGE) == pytest.approx([(last - first) / 2, last])
    expect(buttons.get_by_role("button", name="Later")).to_have_attribute("aria-disabled", "true")
    page.locator(f"{BOX} .nsewdrag").first.click()  # the chart has the focus
    for key in "wwww":
        page.keyboard.press(key)
    expect(canvas(page)).to_be_visible(timeout=RUN_MS)
    low, high = page.evaluate(RANGE)
    assert high - low == pytest.approx((last - first) / 32)
    for key, moved in (("a", -0.5), ("ArrowRight", 0.0), ("d", 0.5)):
        page.keyboard.press(key)
        assert page.evaluate(RANGE)[0] == pytest.approx(low + moved * (high - low))
    page.keyboard.press("Control+s")  # the browser's own
    page.keyboard.press("s")
    now = page.evaluate(RANGE)
    assert now[1] - now[0] == pytest.approx(2 * (high - low)) and "from=" in page.url
    back.focus()
    page.keyboard.press("Enter")
    expect(back).to_be_hidden()
    assert page.evaluate(RANGE) == [first, last] and "from=" not in page.url
    expect(buttons.get_by_role("button", name="Zoom in")).to_be_focused()


@pytest.mark.full
def test_news_asked_for_before_a_zoom_do_not_draw_over_it(page: Page, yard: YardProcess, long: dict[str, str]) -> None:
    late: list[Route] = []

    def held(route: Route) -> None:
        """Holds back the first response with the whole step until the reader has zoomed."""
        if late or "from=" in route.request.url:
            route.continue_()
        else:
            late.append(route)

    page.goto(long["a run"])
    plot = page.locator(f"{BOX} .nsewdrag").first
    expect(plot).to_be_attached(timeout=RUN_MS)
    page.route("**/data/gantt.json*", held)
    run = int(long["a run"].strip("/").split("/")[-1])
    yard.query(TELL.format(run=run, study=None, what="spans"))
    wait_for("the question", lambda: bool(late), RUN_MS / 1000, lambda: page.wait_for_timeout(100))
    at = plot.bounding_box()
    assert at is not None
    drag(page, at["x"] + 200, at["x"] + 220, at["y"] + at["height"] / 2)
    source = page.locator(".chart[data-chart=gantt] .chart-source")
    expect(source).to_contain_text("spans in view", timeout=RUN_MS)
    page.evaluate(WATCH)
    late[0].continue_()
    until(page, "() => window.asked > 0")
    page.wait_for_timeout(1000)
    assert page.evaluate("() => window.seen") == []


def drag(page: Page, start: float, end: float, y: float) -> None:
    page.mouse.move(start, y)
    page.mouse.down()
    page.mouse.move(end, y + 2, steps=4)
    page.mouse.up()


def again(page: Page, x: float, y: float) -> bool:
    """Whether a double-click on a zoomed timeline shows the whole step again, within the time that a busy host
    needs.
    """
    page.mouse.dblclick(x, y)
    try:
        expect(canvas(page)).to_have_count(0, timeout=LIVE_MS / 4)
    except AssertionError:
        return False
    return True


@pytest.mark.full
def test_a_part_that_cannot_be_fetched_is_said_until_one_can(
    page: Page, troubles: Troubles, long: dict[str, str]
) -> None:
    troubles.expected += ["net::ERR_FAILED", "Failed to fetch"]  # the page may poll for updates in the meantime
    page.goto(long["a run"])
    expect(page.locator(f"{BOX} .nsewdrag").first).to_be_attached(timeout=RUN_MS)
    zoom = f"(range) => window.Plotly.relayout(document.querySelector('{BOX}'), {{'xaxis.range': range}})"
    page.route("**/data/gantt.json*", lambda route: route.abort())
    page.evaluate(zoom, [5.0, 5.4])
    said = page.locator(".chart[data-chart=gantt] .chart-note")
    expect(said).to_contain_text("zoom again to try once more")
    page.unroute("**/data/gantt.json*")
    page.evaluate(zoom, [5.0, 5.3])
    expect(canvas(page)).to_be_visible(timeout=RUN_MS)
    expect(said).to_have_count(0)


@pytest.mark.full
def test_of_two_zooms_the_first_says_nothing_and_news_that_draw_the_second_unsay_it(
    page: Page, yard: YardProcess, troubles: Troubles, long: dict[str, str]
) -> None:
    troubles.expected += ["net::ERR_FAILED", "Failed to fetch"]
    page.goto(long["a run"])
    expect(page.locator("#chart-gantt .zoom")).to_be_visible(timeout=RUN_MS)
    zoom = f"(range) => window.Plotly.relayout(document.querySelector('{BOX}'), {{'xaxis.range': range}})"
    said = page.locator(".chart[data-chart=gantt] .chart-note")
    held: list[Route] = []
    page.route("**/data/gantt.json*to=5.4", lambda route: held.append(route))
    page.route("**/data/gantt.json*to=5.2", lambda route: route.abort())
    page.evaluate(zoom, [5.0, 5.4])
    page.evaluate(zoom, [5.0, 5.3])
    expect(canvas(page)).to_be_visible(timeout=RUN_MS)
    assert held
    with page.expect_event("requestfailed"):
        for route in held:
            route.abort()
    page.wait_for_timeout(300)
    expect(said).to_have_count(0)
    page.evaluate(zoom, [5.0, 5.2])
    expect(said).to_contain_text("What is drawn is of the zoom before")
    page.unroute_all(behavior="wait")
    run = int(long["a run"].strip("/").split("/")[-1])
    yard.query(TELL.format(run=run, study=None, what="spans"))
    expect(said).to_have_count(0, timeout=RUN_MS)


@pytest.mark.full
def test_new_numbers_another_width_and_the_printer_leave_the_reader_where_he_is(
    page: Page, troubles: Troubles, long: dict[str, str]
) -> None:
    window = (5.0, 5.4)
    found = opened(page, long["a run"], window)
    page.evaluate(UPDATE)
    assert page.evaluate(RANGE) == list(window), "an update of the whole step does not move the axis"
    found = opened(page, long["a run"], window)
    ratio = "(canvas) => canvas.width / canvas.clientWidth"
    assert canvas(page).evaluate(ratio) == pytest.approx(1, abs=0.01)
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert canvas(page).evaluate(ratio) == pytest.approx(3, abs=0.01)
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert canvas(page).evaluate(ratio) == pytest.approx(1, abs=0.01)
    page.set_viewport_size(PHONE)
    same = f"""() => {{
      const at = (name) => document.querySelector(`{BOX} ${{name}}`).getBoundingClientRect();
      const [bars, plot] = [at("canvas.bars"), at(".nsewdrag")];
      return plot.width < 390 && Math.abs(bars.left - plot.left) < 1 && Math.abs(bars.width - plot.width) < 1;
    }}"""
    until(page, same)
    spot = [found["begin"] + 0.25 * found["wide"], found["down"] + 0.02]
    assert canvas(page).evaluate(PIXEL, spot) == found["colour"]
