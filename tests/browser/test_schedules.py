"""The Schedules page under the hand: it answers to changes, and steps through the schedule with the keyboard."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.watched import until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_changes_are_simulated_and_the_slider_steps(window: Callable[..., Page], session: Any) -> None:
    page = window(storage_state=session)
    page.goto("/schedules/")
    expect(page.locator("#verdict")).to_contain_text("1F1B and GPipe take equally long")
    page.locator("#f-b").select_option("zb-h1")
    expect(page.locator("#verdict")).to_contain_text("ZB-H1 is 1.22 times as fast")
    assert "b=zb-h1" in page.url
    expect(page.locator("#result .chart-box .plot-container").first).to_be_visible()
    slider = page.locator("#player-at")
    until(page, "() => Number(document.getElementById('player-at').max) > 20")
    slider.press("Home")
    slider.press("ArrowRight")
    expect(page.locator("#player-now")).to_contain_text("device 0: forward 0")
    expect(page.locator("#player-now")).to_contain_text(re.compile("1F1B: device 0.* ZB-H1: device 0"))
    assert "t=1" in page.url
    page.reload()
    expect(page.locator("#player-now")).to_contain_text("Until 1 units")
    page.locator("#player-at").press("End")
    expect(page.locator("#player-now")).to_have_text("The whole step is shown.")
    slider.press("ArrowRight")
    expect(page.locator("#player-now")).to_contain_text("Until 0 units")
    slider.press("ArrowRight")
    expect(page.locator("#player-now")).to_contain_text("Until 1 units")


def test_a_wrong_number_is_said_beside_its_field(window: Callable[..., Page], session: Any) -> None:
    page = window(storage_state=session)
    page.goto("/schedules/")
    page.locator("#f-p").fill("99")
    expect(page.locator("#error-p")).to_contain_text("Devices must be a whole number from 1 to 32")
    page.locator("#f-p").fill("8")
    expect(page.locator("#error-p")).to_be_empty()
    expect(page.locator("#verdict")).to_be_visible()
