"""Parts of a run's page that the server replaces: what the user has set or opened in them stays."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.observed_page import TELL, drawn, mark, same_page, until
from tests.yard_process import YardProcess

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_a_slider_changes_what_if_and_its_chart_stays_the_same_element(page: Page, stocked: dict[str, Any]) -> None:
    page.goto(f"/runs/{stocked['dp']}/?tab=whatif")
    mark(page)
    said = page.locator("#whatif-result .verdict")
    expect(said).to_contain_text("as it was measured")
    page.locator("#chart-whatif").evaluate("element => { element.kept = true; }")
    device = page.get_by_role("slider", name="Device, times as fast")
    device.focus()
    page.keyboard.press("End")
    expect(said).to_contain_text("a device 16 times as fast")
    expect(page.get_by_label("Device, times as fast", exact=True)).to_have_value("16")
    expect(page).to_have_url(re.compile("device=16"))
    links = page.get_by_role("slider", name="Links")
    links.focus()
    page.keyboard.press("End")
    expect(said).to_contain_text("free communication, a device 16 times as fast")
    expect(links).to_have_attribute("aria-valuetext", "free")
    assert page.locator("#chart-whatif").evaluate("element => element.kept === true")
    assert same_page(page)
    page.reload()
    expect(device).to_have_value("4")  # the slider's value is the exponent: 2 to the 4th
    expect(said).to_contain_text("free communication, a device 16 times as fast")


@pytest.mark.full
def test_news_after_a_change_of_what_if_keep_the_choice_of_the_newest_step(
    page: Page, yard: YardProcess, stocked: dict[str, Any]
) -> None:
    page.goto(f"/runs/{stocked['dp']}/?tab=whatif")
    heading = page.locator("#timeline-title")
    expect(heading).to_contain_text("Newest")
    page.get_by_role("slider", name="Links").press("End")
    expect(page).to_have_url(re.compile(r"\bstep=\d"))
    with page.expect_response("**/part/steps?*"):
        yard.query(TELL.format(run=stocked["dp"], study=None, what="spans"))
    page.wait_for_timeout(300)
    expect(heading).to_contain_text("Newest")


@pytest.mark.full
def test_any_timeline_is_zoomed_by_buttons_but_only_that_of_the_step_in_the_address(
    page: Page, stocked: dict[str, Any]
) -> None:
    page.goto(f"/runs/{stocked['dp']}/?tab=whatif")
    drawn(page, ["whatif"])
    shown = "document.querySelector('.chart[data-chart=whatif] .chart-box').layout.xaxis.range.map(Number)"
    low, high = page.evaluate(shown)
    page.locator("#chart-whatif").get_by_role("button", name="Zoom in").click()
    zoomed = [(high - low) / 4, 3 * (high - low) / 4]
    assert page.evaluate(shown) == pytest.approx(zoomed) and "from=" not in page.url
    page.emulate_media(color_scheme="dark")
    page.get_by_role("slider", name="Links").press("End")
    expect(page.locator("#whatif-result .verdict")).to_contain_text("free communication")
    assert page.evaluate(shown) == pytest.approx(zoomed), "a new answer leaves the reader where he is"


@pytest.mark.full
def test_a_zoom_into_what_a_shorter_answer_does_not_reach_ends(page: Page, stocked: dict[str, Any]) -> None:
    page.goto(f"/runs/{stocked['dp']}/?tab=whatif")
    drawn(page, ["whatif"])
    shown = "document.querySelector('.chart[data-chart=whatif] .chart-box').layout.xaxis.range.map(Number)"
    _, high = page.evaluate(shown)
    device = page.get_by_role("slider", name="Device")
    device.press("Home")  # by how much it is longer depends on how busy the host was during the step
    until(page, f"(high) => {shown}[1] > 1.02 * high", high)
    _, longest = page.evaluate(shown)
    chart = page.locator("#chart-whatif")
    for _ in range(3):
        chart.get_by_role("button", name="Zoom in").click()
    later = chart.get_by_role("button", name="Later")
    while later.get_attribute("aria-disabled") != "true":
        later.click()
    assert page.evaluate(shown)[0] > 0.8 * longest
    device.press("End")
    until(page, f"(longest) => {shown}[0] < 0.1 * longest && {shown}[1] < 0.99 * longest", longest)


def test_what_is_laid_open_stays_open_when_its_part_is_replaced(page: Page, stocked: dict[str, Any]) -> None:
    address = f"/runs/{stocked['single']}/"
    page.goto(address)
    menu = page.locator("#export")
    menu.locator("summary").click()
    expect(menu).to_have_attribute("open", "")
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        box = menu.locator(".menu-body").bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= width, f"the whole menu is visible at {width} px"
    menu.evaluate("menu => menu.classList.add('older')")
    swap = "address => htmx.ajax('GET', address, {target: '#export', select: '#export', swap: 'outerHTML'})"
    page.evaluate(swap, address)
    expect(page.locator("#export:not(.older)")).to_have_attribute("open", "")
