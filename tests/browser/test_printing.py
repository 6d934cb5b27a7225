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
