"""Every page: no violation for axe-core to find, no horizontal overflow on a phone, no HTML of a name executed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.browser.observed_page import HOSTILE, PHONE, WIDE, Troubles, overflow, settle, violations

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
TABS = ("timeline", "accounts", "whatif", "operators", "memory", "metrics", "ranks", "logs", "spec", "events")
LOOKS, LOOK_MS = 100, 100
ODD = ("kind=", "q=nothing", "network=0", "n=3", "t=9", "p=999")
"""In addresses of pages that are looked at by another address, too: these are left to the full test."""


def addresses(stocked: dict[str, Any]) -> list[str]:
    """The address of every page, including all tabs of the ended study and run."""
    pages = ["/studies/", f"/studies/{stocked['study']}/", "/studies/new/"]
    pages += [f"/studies/new/?kind={kind}" for kind in ("sweep", "scaling", "fit", "stashing", "generation")]
    pages += [f"/studies/{stocked['study']}/{page}/" for page in ("report", "add", "delete")]
    pages += ["/studies/?q=nothing-like-this", f"/studies/{stocked['study']}/edit/"]
    pages += ["/runs/", "/runs/?q=nothing-like-this", "/runs/new/", "/runs/texts/", f"/runs/{stocked['failed']}/"]
    pages += [f"/runs/{stocked['hostile']}/?tab={tab}" for tab in TABS]
    pages += [f"/runs/{stocked['dp']}/clone", f"/runs/{stocked['dp']}/edit", f"/runs/{stocked['dp']}/cancel"]
    pages += [f"/runs/{stocked['dp']}/report/", f"/runs/delete?runs={stocked['dp']},{stocked['single']}"]
    pages += ["/compare/", f"/compare/?runs={stocked['single']},{stocked['dp']}"]
    pages += ["/planner/", "/planner/?network=0&heads=7", "/planner/?cluster=a100-40&plan=DP+1024"]
    pages += ["/planner/accuracy/", "/planner/judge/", "/planner/judge/?n=3&a-plan=TP+eight", "/planner/scenarios/"]
    pages += [
        "/partition/",
        "/partition/graph/",
        "/partition/record/",
        "/partition/fleet/",
        "/planner/inference/",
        "/planner/crossover/",
    ]
    pages += ["/schedules/", "/schedules/strategies/", "/schedules/?a=zb-h1&b=&t=9", "/schedules/?p=999"]
    pages += ["/traces/", "/traces/new/", "/fleet/", "/fleet/set-aside/", "/api/"]
    return [*pages, "/accounts/tokens/", "/accounts/password/", "/no/such/page"]


UNSEEN = """() => [...document.querySelectorAll("nav [aria-current]")]
    .filter((link) => link.getBoundingClientRect().right > innerWidth)
    .map((link) => `the link to this page is not seen: ${link.textContent}`)"""
"""Rows of links scroll on a phone; they must start at the link of the current page."""


def left_over(page: Page) -> list[str]:
    """The overflow that lasts: charts are drawn anew a moment after the window was narrowed."""
    for _ in range(LOOKS):
        if not (found := overflow(page)):
            return []
        page.wait_for_timeout(LOOK_MS)
    return found


@pytest.mark.timeout(900)
def test_every_page_is_accessible_and_fits_a_screen_and_then_a_phone(
    window: Callable[..., Page], session: Any, stocked: dict[str, Any], troubles: Troubles
) -> None:
    """A quick version of the full test below, which loads each page in all four combinations of scheme and width. Here
    each but the ODD ones is loaded once, light and wide, and then made narrow.
    """
    troubles.expected.append("/no/such/page")
    page = window(storage_state=session, viewport=WIDE, color_scheme="light")
    wrong: dict[str, list[str]] = {}
    for address in addresses(stocked):
        if any(odd in address for odd in ODD):
            continue
        page.set_viewport_size(WIDE)
        page.goto(address)
        settle(page)
        found = [*violations(page), *overflow(page), *page.evaluate(UNSEEN)]
        page.set_viewport_size(PHONE)
        settle(page)
        if found := [*found, *(f"on a phone: {one}" for one in left_over(page))]:
            wrong[address] = found
        assert page.evaluate("() => window.hacked") is None, address
    assert not wrong


@pytest.mark.full
@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=["1440", "390"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_accessible_and_fits(
    window: Callable[..., Page], session: Any, stocked: dict[str, Any], troubles: Troubles, scheme: str, viewport: Any
) -> None:
    troubles.expected.append("/no/such/page")
    page = window(storage_state=session, viewport=viewport, color_scheme=scheme)
    wrong: dict[str, list[str]] = {}
    for address in addresses(stocked):
        page.goto(address)
        settle(page)
        if found := [*violations(page), *overflow(page), *page.evaluate(UNSEEN)]:
            wrong[address] = found
        assert page.evaluate("() => window.hacked") is None, address
    assert not wrong


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_sign_in_is_accessible(window: Callable[..., Page], scheme: str) -> None:
    for viewport in (WIDE, PHONE):
        page = window(viewport=viewport, color_scheme=scheme)
        page.goto("/accounts/login/")
        assert [*violations(page), *overflow(page)] == []


def test_html_in_a_name_is_text_wherever_it_is_shown(page: Page, stocked: dict[str, Any]) -> None:
    run, study = stocked["hostile"], stocked["study"]
    places = [f"/runs/{run}/", f"/runs/{run}/edit", f"/runs/{run}/clone", "/runs/", "/studies/", f"/studies/{study}/"]
    places += [f"/compare/?runs={run},{stocked['dp']}", "/fleet/", "/runs/?tag=%3Cb%3Etag%3C%2Fb%3E"]
    for place in places:
        page.goto(place)
        settle(page)
        for height in range(0, page.evaluate("() => document.body.scrollHeight"), 800):
            page.evaluate("(y) => scrollTo(0, y)", height)
            settle(page)
        shown = page.evaluate(
            "() => document.body.textContent + [...document.querySelectorAll('input')].map(i => i.value)"
        )
        assert HOSTILE in shown, place
        assert page.locator("main img[src='x'], main b").count() == 0, place
        assert page.evaluate("() => window.hacked") is None, place
