"""The Planner in a browser: a change updates the result at once and is kept in the address; a point of the chart can be
clicked for details.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.observed_page import PHONE, Troubles, drawn, settle
from tests.yard_process import YardProcess

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_a_change_answers_at_once_and_stands_in_the_address(page: Page) -> None:
    page.goto("/planner/")
    page.get_by_label("Model", exact=True).select_option("gpt-22b")
    page.wait_for_url("**/planner/?*model=gpt-22b*")
    expect(page.locator("#plan h2")).to_be_visible()
    page.get_by_label("Batch").fill("0")
    page.get_by_label("Batch").press("Tab")
    expect(page.locator("#error-batch")).to_contain_text("Batch must be a whole number of at least 1")
    expect(page.get_by_label("Batch")).to_have_attribute("aria-invalid", "true")
    page.get_by_label("Batch").fill("512")
    page.get_by_label("Batch").press("Tab")
    expect(page.locator("#error-batch")).to_have_text("")
    expect(page.locator("#verdict")).to_contain_text(re.compile(r"\d m?s \("))
    assert "batch=512" in page.url
    assert "hidden=" not in page.url


def test_the_plan_is_as_large_as_what_is_said_of_it(page: Page) -> None:
    """The answer to the form was its smallest line."""
    page.goto("/planner/")
    size = "(node) => parseFloat(getComputedStyle(node).fontSize)"
    assert page.locator("#chosen > h2").evaluate(size) >= page.locator("#verdict").evaluate(size)


def test_a_wrong_value_is_refused_while_the_field_is_still_written_in(page: Page) -> None:
    """A plan is searched once a field is left; what cannot be planned takes no search."""
    page.goto("/planner/")
    page.get_by_label("Batch").fill("-1")
    expect(page.locator("#error-batch")).to_contain_text("Batch must be a whole number of at least 1; got -1.")
    page.get_by_label("Batch").fill("512")
    expect(page.locator("#error-batch")).to_have_text("")
    expect(page.get_by_label("Batch")).to_be_focused()


@pytest.mark.full
def test_a_point_of_the_chart_is_asked_about(page: Page) -> None:
    page.goto("/planner/")
    settle(page)
    box = page.locator("[data-picks-plan] .chart-box")
    box.scroll_into_view_if_needed()
    expect(box).to_have_attribute("data-picks", "yes")
    label = box.evaluate(
        """(box) => {
          const trace = box.data.findIndex((one) => one.name === "too large");
          const point = {customdata: box.data[trace].customdata[0]};
          box.emit("plotly_click", {points: [point]});
          return point.customdata;
        }"""
    )
    expect(page.locator("#plan h2")).to_have_text(label)
    expect(page.locator("#plan .notice")).to_contain_text("Why not:")
    assert "plan=" in page.url


def test_judge_gives_its_verdict_first(page: Page) -> None:
    page.goto("/planner/scenarios/")
    first = page.locator(".cases").first.get_by_role("link", name="Judge").all()[:2]
    ends = [link.bounding_box() for link in first]
    assert ends[0] and ends[1] and ends[0]["y"] == ends[1]["y"], "buttons of cards side by side are in one line"
    page.locator("section.card", has_text="200 B parameters").get_by_role("link", name="Judge").click()
    expect(page.locator("#verdict")).to_contain_text("A cannot: every rank holds the whole state")
    page.get_by_label("Plan", exact=True).first.fill("TP 8 x PP 16 x DP 8, SP")
    page.get_by_label("Plan", exact=True).first.press("Enter")
    expect(page.locator("#verdict")).to_contain_text("A works")
    page.get_by_role("link", name="Add a set-up").click()
    expect(page.locator("#verdict")).to_contain_text("A works")
    expect(page.get_by_label("Plan", exact=True)).to_have_count(3)


@pytest.mark.parametrize(
    ("address", "form"), [("/planner/", "f"), ("/planner/judge/", "f-b"), ("/planner/inference/", "f")]
)
def test_an_empty_field_shows_the_value_of_the_preset_that_is_chosen(page: Page, address: str, form: str) -> None:
    page.goto(address)
    cluster, devices, memory = (page.locator(f"#{form}-{name}") for name in ("cluster", "devices", "memory"))
    before = memory.get_attribute("placeholder")
    cluster.select_option("v100")
    expect(memory).to_have_attribute("placeholder", "16")
    assert before != "16"
    if not devices.input_value():
        expect(devices).to_have_attribute("placeholder", "32")


@pytest.mark.full
def test_a_long_search_is_waited_for_without_a_reload(page: Page, yard: YardProcess) -> None:
    analyst = yard.part("manage.py", "analyst")
    page.goto("/planner/accuracy/")
    page.evaluate("window.same = true")
    analyst.suspend()  # the search stays pending however fast this machine is
    try:
        page.get_by_role("link", name="Simulate 14.6B").click()
        waiting = page.locator("[data-search]", has_text="14.6B: simulating every rate")
        expect(waiting.get_by_role("progressbar")).to_be_visible()
        expect(waiting.get_by_role("button", name="Stop this search")).to_be_visible()
    finally:
        analyst.resume()
    expect(page.get_by_role("heading", name="14.6B: 3 rows")).to_be_visible()
    expect(waiting).to_have_count(0)
    assert page.evaluate("window.same"), "the page was reloaded"
    page.reload()
    page.get_by_role("link", name="Simulate 14.6B").click()
    expect(page.get_by_role("heading", name="14.6B: 3 rows")).to_be_visible()


@pytest.mark.full
def test_a_search_is_stopped_and_asked_again(page: Page, yard: YardProcess) -> None:
    analyst = yard.part("manage.py", "analyst")
    analyst.suspend()
    try:
        page.goto("/planner/accuracy/bubbles/28.3B")
        page.get_by_role("button", name="Stop this search").click()
        page.wait_for_url("**/planner/accuracy/")
        page.goto("/planner/accuracy/bubbles/28.3B")
        expect(page.get_by_text("Stopped by admin.")).to_be_visible()
        page.get_by_role("button", name="Ask again").click()
        page.goto("/planner/accuracy/bubbles/28.3B")
        expect(page.get_by_role("progressbar")).to_be_visible()
        page.get_by_role("button", name="Stop this search").click()
    finally:
        analyst.resume()


OVERLAPS = """() => [...document.querySelectorAll(".chart-box")].flatMap((box) => {
      const texts = [...box.querySelectorAll(".ytick text")];
      const labels = texts.map((own) => [own.getBoundingClientRect(), own.textContent]);
      labels.sort(([a], [b]) => a.top - b.top);
      return labels.slice(1).filter(([own], i) => own.top < labels[i][0].bottom - 2).map(([, words]) => words);
    })"""
"""Names of rows that overlap the previous one."""


def test_names_of_rows_have_room_on_a_phone(window: Callable[..., Page], session: Any) -> None:
    page = window(storage_state=session, viewport=PHONE)
    page.goto("/planner/accuracy/")
    drawn(page, [page.locator(".chart[data-chart]").first.get_attribute("data-chart") or ""])
    names = page.locator(".chart-box .ytick text")
    assert names.count() > 10
    assert any("<tspan" in names.nth(i).inner_html() for i in range(names.count())), "no name takes two lines"
    assert page.evaluate(OVERLAPS) == []


@pytest.mark.full
def test_a_text_too_long_for_a_tab_to_keep_is_refused_without_an_error_of_the_page(
    page: Page, troubles: Troubles
) -> None:
    troubles.expected += ["status of 413"]
    page.goto("/partition/graph/")
    page.get_by_label("The file's text").evaluate("area => { area.value = 'x'.repeat(9e6); }")
    page.get_by_role("button", name="Partition", exact=True).click()
    expect(page.get_by_role("heading", name="Too large")).to_be_visible()
    assert page.evaluate("sessionStorage.getItem('trainyard-draft')") is None


@pytest.mark.full
@pytest.mark.parametrize("refused", [False, True])
def test_without_a_clipboard_the_address_is_copied_all_the_same_or_it_is_said_that_it_is_not(
    page: Page, refused: bool
) -> None:
    """The browser has no clipboard API, as on a page over plain HTTP from another host."""
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    if refused:
        page.add_init_script("document.execCommand = () => false")
    page.goto("/planner/?batch=512")
    button = page.locator("[data-copy-address]")
    button.click()
    expect(button).to_have_text("Not copied: take it from the address bar" if refused else "Address copied")
    expect(button).to_be_focused()
    if not refused:
        page.evaluate("() => document.body.append(document.createElement('textarea'))")
        field = page.locator("body > textarea")
        field.press("Control+V")
        expect(field).to_have_value(page.url)


@pytest.mark.full
def test_on_a_phone_what_is_below_the_plan_is_folded_until_asked(window: Callable[..., Page], session: Any) -> None:
    """It was a page of fourteen screens; nothing that is folded is searched for."""
    page = window(storage_state=session, viewport=PHONE)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto("/planner/")
    expect(page.locator("#layout > summary")).to_be_visible()
    expect(page.locator("#layout")).not_to_have_attribute("open", "")
    page.get_by_role("link", name="Why each loses").click()
    expect(page.locator("#alone table")).to_be_in_viewport()
    page.locator("#questions > summary").click()
    expect(page.locator("#questions")).to_contain_text("What fits?")
    assert any("/planner/questions" in url for url in asked) and not any("/planner/layout" in url for url in asked)
    page.get_by_label("Batch").fill("512")
    page.get_by_label("Batch").press("Tab")
    page.wait_for_url("**batch=512*")
    expect(page.locator("#alone")).to_have_attribute("open", "")
    expect(page.locator("#layout")).not_to_have_attribute("open", "")
