"""Elements that change their place on a narrow screen."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.observed_page import PHONE, drawn, until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

LINES = """(line) => {
  const left = line.getBoundingClientRect().left, rows = [];
  let before = Infinity;
  for (const part of line.children) {
    const box = part.getBoundingClientRect(), dot = getComputedStyle(part, "::before");
    const dotted = dot.content.includes("·") ? box.left + parseFloat(dot.left) + parseFloat(dot.width) : Infinity;
    if (box.left <= before) rows.push([]);
    rows.at(-1).push(part.matches(".part") ? dotted <= left : null);
    before = box.left;
  }
  return rows;
}"""
"""For each line of an element's parts: whether the dot of each part is left of the element; null for the badge and for
tags, which have none."""


@pytest.mark.full
def test_no_line_below_the_name_of_a_run_begins_or_ends_with_a_dot(
    window: Callable[..., Page], session: Any, stocked: dict[str, Any]
) -> None:
    page = window(storage_state=session, viewport=PHONE)
    page.goto(f"/runs/{stocked['dp']}/")
    line = page.locator(".state-line")
    expect(line).to_contain_text("2 devices")
    assert "·" not in line.inner_text()
    assert line.evaluate("(line) => getComputedStyle(line).overflowX") == "clip"
    first, *others = line.evaluate(LINES)
    assert not any(first) and others, "the badge begins the first line, and there are more"
    assert all(outside in (i == 0, None) for row in others for i, outside in enumerate(row))


CLICKS_MS = 700  # longer than doubleClickDelay of static/js/charts.js
ABOVE = """async (top) => {
  const { update } = await import(document.querySelector("script[src*='js/charts.js']").src);
  const figure = JSON.parse(document.querySelector(".chart[data-chart=loss] script").textContent);
  const { layout } = figure;
  Object.assign(layout.yaxis, { range: [0, top], autorange: false });
  layout.meta.above = 1;
  window.again = () => update({ loss: { figure } });
  await window.again();
}"""
"""Draws the chart of losses with a first view that ends at `top`, as charts of step times have."""


def test_values_above_the_first_view_are_one_tap_away(
    window: Callable[..., Page], session: Any, stocked: dict[str, Any]
) -> None:
    page = window(storage_state=session, viewport=PHONE, has_touch=True, is_mobile=True)
    page.goto(f"/runs/{stocked['single']}/?tab=metrics")
    drawn(page, ["loss"])
    page.evaluate(ABOVE, 1.0)
    shown = "document.querySelector('.chart[data-chart=loss] .chart-box')._fullLayout.yaxis.range.map(Number)"
    assert page.evaluate(shown) == [0, 1]
    buttons = page.get_by_role("group", name="Range")
    buttons.get_by_role("button", name="All values").tap()
    until(page, f"() => {shown}[1] > 2")
    page.evaluate("() => window.again()")
    assert page.evaluate(f"{shown}[1] > 2"), "new numbers leave it so"
    buttons.get_by_role("button", name="First view").tap()
    until(page, f"() => {shown}[1] === 1")


def swipe(page: Page, x: float, y: float, down: float) -> None:
    """Moves a finger from a point of the window so far down (or, if negative, up)."""
    session = page.context.new_cdp_session(page)
    steps = [("touchStart", 0.0), *(("touchMove", i / 8) for i in range(1, 9))]
    for kind, part in steps:
        touched = {"type": kind, "touchPoints": [{"x": x + part, "y": y + part * down}]}
        session.send("Input.dispatchTouchEvent", touched)
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


STILL = """() => new Promise((done) => {
  let last = scrollY;
  const look = () => setTimeout(() => {
    if (scrollY === last) return done(true);
    last = scrollY;
    look();
  }, 100);
  look();
})"""
"""Waits until the page has stopped scrolling."""


def test_a_finger_on_a_chart_scrolls_the_page(
    window: Callable[..., Page], session: Any, stocked: dict[str, Any]
) -> None:
    page = window(storage_state=session, viewport=PHONE, has_touch=True, is_mobile=True)
    page.goto(f"/runs/{stocked['dp']}/")
    drawn(page, ["gantt"])
    page.locator(".chart[data-chart=gantt] .nsewdrag").first.evaluate("(e) => e.scrollIntoView({ block: 'center' })")
    at = page.locator(".chart[data-chart=gantt] .nsewdrag").first.bounding_box()
    assert at is not None
    before = page.evaluate("scrollY")
    swipe(page, at["x"] + at["width"] / 2, at["y"] + at["height"] / 2, -200)
    until(page, "(before) => scrollY > before + 100", before)
    assert "from=" not in page.url
    page.evaluate(STILL)  # Chromium complains of a tap on a page that still scrolls
    chart = page.locator("#chart-gantt")
    chart.get_by_role("button", name="Zoom in").tap()
    page.wait_for_url("**from=*&to=*")
    chart.locator(".nsewdrag").first.tap()
    page.wait_for_timeout(CLICKS_MS)
    assert "from=" in page.url, "a tap is no double-click"
    chart.get_by_role("button", name="Whole step").tap()
    expect(chart.get_by_role("button", name="Whole step")).to_be_hidden()
    assert "from=" not in page.url


COVERED = """() => {
  const bar = document.querySelector(".feasibility > .form-actions"), at = document.activeElement;
  return !bar.contains(at) && at.getBoundingClientRect().bottom > bar.getBoundingClientRect().top;
}"""


@pytest.mark.parametrize(
    ("address", "name"), [("/runs/new/", "Queue run"), ("/studies/new/", re.compile("^Queue .*runs"))]
)
def test_the_button_of_a_new_run_or_study_is_in_sight_and_covers_no_field_with_the_focus(
    window: Callable[..., Page], session: Any, client: Any, address: str, name: Any
) -> None:
    page = window(storage_state=session, viewport=PHONE)
    page.goto(address)
    button = page.get_by_role("button", name=name)
    expect(button).to_be_in_viewport(ratio=1)
    page.get_by_label("Name", exact=True).focus()
    covered = []
    while not button.evaluate("(e) => e === document.activeElement"):
        page.keyboard.press("Tab")
        if page.evaluate(COVERED):
            covered.append(page.evaluate("() => document.activeElement.id"))
        expect(button).to_be_in_viewport(ratio=1)
    assert not covered
    expect(page.get_by_role("heading", name=re.compile("Will it run|What will run"))).to_have_count(1)


@pytest.mark.full
def test_a_link_or_an_address_opens_the_section_that_it_leads_to(
    window: Callable[..., Page], session: Any, stocked: dict[str, Any]
) -> None:
    page = window(storage_state=session, viewport=PHONE)
    address = f"/studies/{stocked['study']}/"
    page.goto(f"{address}#loss")
    closed = page.locator("details.accordion[data-phone-closed]:not([open])")
    expect(page.locator("#loss")).to_have_attribute("open", "")
    expect(page.locator("#loss .chart-box").first).to_be_visible()
    expect(closed).to_have_count(page.locator("details.accordion[data-phone-closed]").count() - 1)
    link = page.locator('#answers a[href="#memory"]')
    link.click()
    expect(page.locator("#memory")).to_have_attribute("open", "")
    expect(page.locator("#memory > summary")).to_be_in_viewport()
    page.locator("#memory > summary").click()
    expect(page.locator("#memory")).not_to_have_attribute("open", "")
    link.click()  # the address is the same as before
    expect(page.locator("#memory")).to_have_attribute("open", "")
    page.evaluate("() => { location.hash = 'capacity' }")
    expect(page.locator("#capacity > summary")).to_be_in_viewport()
    expect(page.locator("#capacity .chart-box")).to_be_visible()


@pytest.mark.full
def test_a_form_in_a_section_leads_back_to_it_open(
    window: Callable[..., Page], session: Any, stocked: dict[str, Any]
) -> None:
    page = window(storage_state=session, viewport=PHONE)
    page.goto(f"/studies/{stocked['study']}/")
    section = page.locator("#timeline")
    section.locator(":scope > summary").click()
    page.get_by_text("Choose which runs are drawn").click()
    page.locator("form[data-numbers] input").first.uncheck()
    page.get_by_role("button", name="Draw these").click()
    page.wait_for_url("**/?show=*#timeline")
    expect(section).to_have_attribute("open", "")


def test_the_last_lines_of_a_log_begin_at_their_end(
    window: Callable[..., Page], session: Any, stocked: dict[str, Any]
) -> None:
    """The message of an error is the last one, and a phone has no room for all of them."""
    page = window(storage_state=session, viewport=PHONE)
    page.goto(f"/runs/{stocked['dp']}/")
    lines = "\\n".join(f"line {i}" for i in range(99))
    page.evaluate(f"document.querySelector('main').innerHTML = `<pre class='log end'><code>{lines}</code></pre>`")
    log = page.locator(".log.end")
    box, last = (
        log.bounding_box(),
        log.evaluate(
            """(log) => {
          const range = document.createRange(), text = log.querySelector("code").firstChild;
          range.setStart(text, text.length - 2);
          range.setEnd(text, text.length);
          return range.getBoundingClientRect().bottom;
        }"""
        ),
    )
    assert box and box["y"] < last <= box["y"] + box["height"]
    assert log.evaluate("(log) => log.scrollHeight > log.clientHeight")


def test_a_run_of_the_list_is_a_short_card_with_targets_for_a_finger(
    window: Callable[..., Page], session: Any, stocked: dict[str, Any]
) -> None:
    page = window(storage_state=session, viewport=PHONE)
    page.goto("/runs/")
    card = page.locator(f"#run-{stocked['dp']}")
    box = card.bounding_box()
    assert box and box["height"] < 120, "name, state, and two or three lines"
    for target in (card.get_by_role("checkbox"), card.locator("th a")):
        own = target.bounding_box()
        assert own and min(own["width"], own["height"]) >= 24
    expect(card.locator("[data-title='Step time']")).to_be_visible()
    card.locator("[data-title='Memory']").evaluate("(cell) => cell.toggleAttribute('data-none')")
    expect(card.locator("[data-title='Memory']")).to_be_hidden()


@pytest.mark.full
def test_fields_beside_each_other_begin_in_one_line_and_plans_have_lines_of_their_own(
    window: Callable[..., Page], session: Any
) -> None:
    page = window(storage_state=session, viewport=PHONE)
    page.goto("/runs/")
    tops = [page.locator(f"label[for=filter-{name}]").bounding_box() for name in ("tag", "created_after")]
    assert tops[0] and tops[1] and tops[0]["y"] == tops[1]["y"]
    page.goto("/planner/")
    names = page.locator("[aria-labelledby=ranked-title] tbody th")
    expect(names.first).to_be_visible()
    heights = names.evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().height)")
    assert heights and max(heights) < 72, "a name has at most three lines"
    heads = page.locator("[aria-labelledby=ranked-title] thead th")
    heights = heads.evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().height)")
    assert len(heights) == 4 and max(heights) < 32, "no word is broken"


def test_the_marked_place_of_a_schedule_that_is_refused_is_scrolled_to(
    window: Callable[..., Page], session: Any
) -> None:
    page = window(storage_state=session, viewport=PHONE)
    page.goto("/runs/new/")
    page.get_by_role("link", name="own schedule").click()
    order = page.get_by_label("Own schedule")
    order.fill(order.input_value().replace("0B0", "0B1", 1))
    order.blur()
    said = page.locator("#error-parallel__program")
    expect(said).to_contain_text(">0B1<")
    until(page, "() => document.querySelector('#error-parallel__program').scrollLeft > 0")
    seen = said.evaluate(
        """(said) => {
          const lines = said.lastChild, at = lines.data.indexOf(">0B1<"), place = document.createRange();
          place.setStart(lines, at);
          place.setEnd(lines, at + 5);
          const [mark, box] = [place, said].map((one) => one.getBoundingClientRect());
          return box.left <= mark.left && mark.right <= box.right;
        }"""
    )
    assert seen


def test_what_changes_above_a_chosen_tab_does_not_move_it(
    window: Callable[..., Page], session: Any, stocked: dict[str, Any]
) -> None:
    """On the page of a run that began, the table of its events moved down by two screens, in seven leaps."""
    page = window(storage_state=session, viewport=PHONE)
    page.goto(f"/runs/{stocked['single']}/?tab=events#details")
    page.locator("[data-chart=gantt][data-drawn], [data-chart=gantt] .main-svg").first.wait_for(state="attached")
    tabs, table = page.get_by_role("navigation", name="Details of the run"), page.locator("#tab table").first
    for change in (
        "() => document.querySelector('#head').insertAdjacentHTML('beforeend', '<p style=\"height: 400px\">more</p>')",
        "() => document.querySelector('.split').remove()",
    ):
        page.evaluate(change)
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        row, at = tabs.bounding_box(), table.bounding_box()
        assert row and at and 0 <= row["y"] < at["y"] < 100
