"""Use without a mouse and without animation: everything by Tab, Enter and Escape, with the focus always visible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.observed_page import PHONE, STEPS, Troubles, endless, until
from tests.yard_process import YardProcess

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
MOST_TABS = 80
SEEN = """() => {
  const at = document.activeElement, box = at.getBoundingClientRect(), style = getComputedStyle(at);
  const rung = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
  return at === document.body || (rung && box.width > 0 && box.bottom > 0 && box.top < innerHeight);
}"""


def tab_to(page: Page, target: Locator) -> None:
    """Presses Tab until the target has the focus; every element that has the focus on the way must be visible."""
    target.wait_for()
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        until(page, SEEN)
        if target.evaluate("(e) => e === document.activeElement"):
            return
    raise AssertionError(f"{target} is not reached with {MOST_TABS} presses of Tab")


def fill(page: Page, label: str, text: str) -> None:
    tab_to(page, page.get_by_label(label, exact=True))
    page.keyboard.press("Control+A")
    page.keyboard.type(text)


def test_the_whole_way_from_sign_in_to_cancel_by_keyboard(
    window: Callable[..., Page], yard: YardProcess, cancel_after: Callable[[int], int]
) -> None:
    page = window()
    page.goto("/runs/")
    expect(page.get_by_label("Name")).to_be_focused()
    page.keyboard.type("admin")
    fill(page, "Password", yard.password)
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/")
    tab_to(page, page.get_by_role("link", name="New run").first)
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/new/")
    tab_to(page, page.get_by_role("link", name="Tiny GPT, PP 2 (1F1B)"))
    page.keyboard.press("Enter")
    page.wait_for_url("**?preset=pp2")
    fill(page, "Name", "By keyboard")
    fill(page, "Steps", str(STEPS))
    tab_to(page, page.get_by_role("button", name="Queue run"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="By keyboard", level=1)).to_be_visible()
    cancel_after(int(page.url.rstrip("/").rsplit("/", 1)[1]))
    button, dialog = page.locator("#cancel"), page.get_by_role("dialog")
    tab_to(page, button)
    page.keyboard.press("Enter")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    tab_to(page, dialog.get_by_role("button", name="Cancel the run"))
    page.keyboard.press("Enter")
    expect(page.locator("#head")).to_have_attribute("data-state", "cancelled")


def test_a_dialog_holds_the_focus_and_gives_it_back(
    page: Page, yard: YardProcess, client: httpx.Client, cancel_after: Callable[[int], int]
) -> None:
    run = cancel_after(yard.submit(client, endless(), name="Held"))
    page.goto(f"/runs/{run}/")
    button, dialog = page.locator("#cancel"), page.get_by_role("dialog")
    button.focus()
    page.keyboard.press("Enter")
    expect(dialog).to_be_visible()
    inside = "() => document.activeElement === document.body || !!document.activeElement.closest('dialog')"
    visited = set()
    for _ in range(6):
        page.keyboard.press("Tab")
        assert page.evaluate(inside)
        visited.add(page.evaluate("() => document.activeElement.textContent.trim().slice(0, 20)"))
    assert {"Cancel the run", "Keep it"} <= visited
    dialog.get_by_role("button", name="Keep it").press("Enter")
    expect(dialog).to_be_hidden()
    expect(button).to_be_focused()


def test_the_skip_link_comes_first_and_leads_to_the_content(page: Page) -> None:
    page.goto("/studies/")
    skip = page.get_by_role("link", name="Skip to content")
    page.keyboard.press("Tab")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("main#content")).to_be_focused()


WHOLE = """(e) => {
  const around = e.parentElement.closest("nav, thead").getBoundingClientRect(), own = e.getBoundingClientRect();
  const style = getComputedStyle(e), ring = parseFloat(style.outlineOffset) + parseFloat(style.outlineWidth);
  return style.outlineStyle !== "none" && own.top - ring >= around.top - 1 && own.bottom + ring <= around.bottom + 1;
}"""
"""Whether the ring of the focus is inside what would else cut it off."""


@pytest.mark.full
def test_no_ring_of_the_focus_is_cut_off(window: Callable[..., Page], session: Any, stocked: dict[str, Any]) -> None:
    """The rings of tabs had two sides, and on a phone the head of the list of runs, which is hidden there, had stops
    that nobody saw."""
    page = window(storage_state=session, viewport=PHONE)
    for address, places in (
        (f"/runs/{stocked['single']}/", (".rail-nav a", ".tabs a")),
        ("/runs/", (".runs-table thead a",)),
    ):
        page.goto(address)
        for place in places:
            stop = page.locator(place).nth(1)
            stop.focus()
            page.keyboard.press("Shift+Tab")
            page.keyboard.press("Tab")
            assert stop.evaluate(WHOLE), place


def test_a_menu_opens_and_closes_by_keyboard(page: Page) -> None:
    page.goto("/studies/")
    menu = page.locator(".rail-user")
    summary = menu.locator("summary")
    summary.focus()
    page.keyboard.press("Enter")
    expect(menu.get_by_role("button", name="Sign out")).to_be_visible()
    page.keyboard.press("Escape")
    expect(menu.get_by_role("button", name="Sign out")).to_be_hidden()
    expect(summary).to_be_focused()


def test_a_menu_that_the_focus_has_left_does_not_stay_over_the_page(page: Page) -> None:
    page.goto("/studies/")
    menu = page.locator(".rail-user")
    menu.locator("summary").focus()
    page.keyboard.press("Enter")
    last = menu.get_by_role("button", name="Sign out")
    tab_to(page, last)
    expect(last).to_be_visible()
    page.keyboard.press("Tab")
    expect(last).to_be_hidden()
    assert page.evaluate("() => !document.activeElement.closest('.rail-user')")


def test_a_refused_form_has_the_focus_on_why(page: Page, troubles: Troubles) -> None:
    """On these two pages it was on nothing: a reader heard only the page's title."""
    troubles.expected.append("status of 422")
    page.goto("/traces/new/")
    page.get_by_role("button", name="Upload").press("Enter")
    expect(page.get_by_role("alert")).to_be_focused()
    page.goto("/accounts/tokens/")
    page.get_by_label("What is it for?").fill(" ")
    page.get_by_role("button", name="Make token").press("Enter")
    refused = page.get_by_role("alert")
    expect(refused).to_be_focused()
    refused.get_by_role("link", name="What is it for?").press("Enter")
    expect(page.get_by_label("What is it for?")).to_be_focused()


@pytest.mark.full
def test_nothing_moves_for_those_who_ask_for_no_motion(
    window: Callable[..., Page],
    session: Any,
    yard: YardProcess,
    client: httpx.Client,
    cancel_after: Callable[[int], int],
) -> None:
    run = cancel_after(yard.submit(client, endless(), name="Still"))
    moving = "() => document.getAnimations().filter((a) => a.playState === 'running').length"
    for motion, still in (("reduce", True), ("no-preference", False)):
        page = window(storage_state=session, reduced_motion=motion)
        page.goto(f"/runs/{run}/")
        expect(page.locator("#head")).to_have_attribute("data-state", "running")
        assert (page.evaluate(moving) == 0) is still


@pytest.mark.full
def test_arrow_keys_choose_a_baseline_and_the_button_sends_it(page: Page, stocked: dict[str, Any]) -> None:
    """Each arrow key chooses the next option of a closed list: none of them may load another page."""
    page.goto(f"/studies/{stocked['study']}/")
    choice = page.get_by_label("Baseline")
    first = choice.input_value()
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.is_navigation_request() else None)
    choice.focus()
    page.keyboard.press("ArrowUp" if choice.evaluate("(list) => list.selectedIndex") else "ArrowDown")
    expect(choice).not_to_have_value(first)
    chosen = choice.input_value()
    page.wait_for_timeout(500)
    assert not sent and "baseline" not in page.url
    tab_to(page, page.get_by_role("button", name="Apply", exact=True).first)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**?baseline={chosen}")
