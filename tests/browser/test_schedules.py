"""The Schedules page in use: it reacts to changes, and its steps can be walked with the keyboard."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.observed_page import PHONE, WIDE, late_htmx, until

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


def test_what_was_chosen_before_the_scripts_had_come_is_simulated(page: Page) -> None:
    """Its form listens to `input`, where those of runs and studies listen to `change`, too."""
    come = late_htmx(page)
    page.goto("/schedules/", wait_until="commit")
    page.locator("#f-b").select_option("zb-h1")
    expect(page.locator("#verdict")).to_contain_text("1F1B and GPipe")
    come()
    expect(page.locator("#verdict")).to_contain_text("ZB-H1 is 1.22 times as fast")


def test_a_wrong_number_is_said_beside_its_field(window: Callable[..., Page], session: Any) -> None:
    page = window(storage_state=session)
    page.goto("/schedules/")
    page.locator("#f-p").fill("99")
    expect(page.locator("#error-p")).to_contain_text("Devices must be a whole number from 1 to 32")
    expect(page.locator("#f-p")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_role("alert")).to_contain_text("Change what is marked: Devices must be a whole number")
    page.locator("#f-p").fill("8")
    expect(page.locator("#error-p")).to_be_empty()
    expect(page.locator("#f-p")).not_to_have_attribute("aria-invalid", "true")
    expect(page.locator("#verdict")).to_be_visible()


@pytest.mark.full
def test_a_lesson_says_where_to_look_and_leads_to_the_next(window: Callable[..., Page], session: Any) -> None:
    page = window(storage_state=session)
    page.goto("/schedules/")
    with page.expect_navigation():
        page.get_by_role("link", name="1. Why micro-batches").click()
    lesson = page.get_by_role("region", name="Lesson 1", exact=True)
    expect(lesson).to_be_focused()
    expect(lesson).to_contain_text("Naive keeps 1 device busy at a time")
    with page.expect_navigation():
        lesson.get_by_role("link", name="Next: 2.").click()
    expect(page.get_by_role("region", name="Lesson 2")).to_be_focused()
    here = page.get_by_role("navigation", name="Lessons").locator("[aria-current]")
    expect(here).to_have_text("2. The same bubble, less memory")
    page.locator("#f-m").fill("12")
    expect(here).to_have_count(0)
    expect(page.get_by_role("region", name="Lesson 2")).to_have_count(0)
    expect(page.locator("#f-m")).to_be_focused()


@pytest.mark.parametrize("viewport", [pytest.param(WIDE, marks=pytest.mark.full), PHONE])
def test_what_is_played_is_seen_with_its_control(
    window: Callable[..., Page], session: Any, viewport: dict[str, int]
) -> None:
    page = window(storage_state=session, viewport=viewport)
    page.goto("/schedules/")
    until(page, "() => Number(document.getElementById('player-at').max) > 20")
    page.locator("[data-play]").click()
    now = page.locator("#player-now")
    expect(now).to_have_attribute("aria-live", "off")  # each instant would be read out over the one before
    expect(page.locator("#result .chart-box").first).to_be_in_viewport(ratio=1)
    expect(page.locator("[data-play]")).to_be_in_viewport(ratio=1)
    page.locator("#result .chart-box").last.scroll_into_view_if_needed()
    expect(page.locator("[data-play]")).to_be_in_viewport(ratio=1)
    page.locator("[data-play]").click()
    expect(now).to_have_attribute("aria-live", "polite")
