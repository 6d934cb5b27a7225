"""Pages on paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.browser.observed_page import until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


INK = "() => getComputedStyle(document.body).color"
LABEL = "() => getComputedStyle(document.querySelector('.chart-box .xtick text')).fill"


@pytest.mark.full
def test_a_dark_page_is_printed_in_the_colours_of_paper(window: Callable[..., Page], session: Any) -> None:
    page = window(storage_state=session, color_scheme="light")
    page.goto("/schedules/")
    page.locator(".chart-box .xtick text").first.wait_for()
    light, label = page.evaluate(INK), page.evaluate(LABEL)
    toggle = page.locator("[data-theme-toggle]").first
    for _ in range(2):  # light, then dark
        toggle.evaluate("(toggle) => toggle.click()")
    until(page, f"(label) => ({LABEL})() !== label", label)
    page.emulate_media(media="print")
    assert page.evaluate(INK) == light
    page.emulate_media(media="screen")
    assert page.evaluate(INK) != light
    page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    until(page, f"(label) => ({LABEL})() === label", label)
    page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    until(page, f"(label) => ({LABEL})() !== label", label)
    assert page.evaluate("() => document.documentElement.dataset.theme") == "dark"


A4_PX = 718
"""Width of the paper between the margins, in CSS pixels."""
CUT = """(width) => [...document.querySelectorAll('.table-scroll')].filter((box) => {
  const table = box.querySelector('table').getBoundingClientRect(), style = getComputedStyle(box);
  const held = style.overflowX !== 'visible' && table.right > box.getBoundingClientRect().right + 1;
  return table.width && (table.right > width || held);
}).map((box) => box.getAttribute('aria-label'))"""


@pytest.mark.full
def test_no_column_of_a_wide_table_is_cut_off_by_the_edge_of_the_paper(page: Page, stocked: dict[str, Any]) -> None:
    """Paper does not scroll: of the fourteen columns of a step's accounts, six were not printed."""
    for address in (f"/runs/{stocked['dp']}/?tab=accounts", f"/studies/{stocked['study']}/"):
        page.goto(address)
        page.locator(".table-scroll").last.wait_for(state="attached")
        page.emulate_media(media="print")
        page.set_viewport_size({"width": A4_PX, "height": 1000})
        assert page.locator(".table-scroll").evaluate_all("(all) => all.some((one) => one.offsetWidth > 0)")
        assert page.evaluate(CUT, A4_PX) == []
        sizes = "(all) => all.map((one) => [one, one.parentElement].map((it) => getComputedStyle(it).fontSize))"
        words = page.locator(".table td > .badge").evaluate_all(sizes)
        assert all(own == beside for own, beside in words), "a state is no larger than the numbers beside it"
        page.emulate_media(media="screen")


DRAWN = "() => document.querySelector('.chart[data-src] .js-plotly-plot') !== null"


def test_a_chart_that_was_never_scrolled_to_is_printed(page: Page, stocked: dict[str, Any]) -> None:
    """Its numbers are fetched when it comes near the screen: under its heading the paper had nothing."""
    page.set_viewport_size({"width": 1440, "height": 300})
    page.goto(f"/studies/{stocked['study']}/")
    page.locator(".chart-box .xtick text").first.wait_for()
    assert not page.evaluate(DRAWN)
    page.evaluate(f"() => addEventListener('afterprint', () => {{ window.printed = ({DRAWN})(); }})")
    page.pdf()
    until(page, "() => window.printed === true")


def test_what_only_a_screen_is_for_is_not_printed(page: Page, stocked: dict[str, Any]) -> None:
    page.goto(f"/runs/{stocked['dp']}/?tab=timeline")
    files = page.locator("main a[download]:visible")
    files.first.wait_for()
    page.emulate_media(media="print")
    assert files.count() == 0
    page.emulate_media(media="screen")
