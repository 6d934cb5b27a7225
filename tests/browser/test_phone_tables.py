"""Tables on a phone: what is in sight before one scrolls sideways, and what a finger can hit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.observed_page import PHONE

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

BEYOND = "(cell) => cell.getBoundingClientRect().right - cell.closest('.table-scroll').getBoundingClientRect().right"


def beyond(cell: Locator) -> float:
    """How many pixels a cell ends beyond the edge of its table."""
    return float(cell.evaluate(BEYOND))


def test_the_speedups_of_a_study_are_in_sight_as_that_a_run_succeeded_takes_no_words(
    window: Callable[..., Page], session: Any, stocked: dict[str, Any]
) -> None:
    page = window(storage_state=session, viewport=PHONE)
    page.goto(f"/studies/{stocked['study']}/")
    table = page.locator("#numbers table")
    state = table.locator(".badge[data-state=succeeded]").first
    expect(state).to_have_text("Succeeded")
    box = state.bounding_box()
    assert box and box["width"] < 16, "its sign alone"
    assert beyond(table.get_by_role("columnheader", name="Speedup")) <= 0


def test_a_long_name_without_a_blank_leaves_room_for_the_numbers_of_the_record(
    window: Callable[..., Page], session: Any, stocked: dict[str, Any]
) -> None:
    page = window(storage_state=session, viewport=PHONE)
    page.goto("/partition/record/")
    name = page.locator("tbody th a").first
    name.evaluate("(name) => (name.textContent = 'a_b_c/lr=0.0003/seed=7/'.repeat(4))")
    assert beyond(page.get_by_role("columnheader", name="Step predicted")) <= 0


def test_what_a_prediction_was_settled_by_is_in_sight(
    window: Callable[..., Page], session: Any, stocked: dict[str, Any]
) -> None:
    """Of predicted, measured and error of time and memory the first alone was; the others were beyond the edge."""
    page = window(storage_state=session, viewport=PHONE)
    page.goto("/partition/record/")
    table = page.get_by_role("region", name="Settled predictions")
    expect(table.get_by_role("row").nth(1)).to_be_visible()
    assert table.evaluate("(table) => table.scrollWidth <= table.clientWidth")


def test_the_limits_of_each_strategy_are_in_sight_as_a_whole(window: Callable[..., Page], session: Any) -> None:
    page = window(storage_state=session, viewport=PHONE)
    page.goto("/planner/crossover/")
    table = page.get_by_role("region", name="Limits")
    expect(table).to_be_visible()
    assert table.evaluate("(table) => table.scrollWidth <= table.clientWidth")


def test_what_a_finger_opens_is_high_enough(window: Callable[..., Page], session: Any, stocked: dict[str, Any]) -> None:
    page = window(storage_state=session, viewport=PHONE, has_touch=True, is_mobile=True)
    page.goto(f"/runs/{stocked['single']}/?tab=metrics")
    for opener in page.locator("summary:visible, .brand").all():
        box = opener.bounding_box()
        assert box and box["height"] >= 36, opener.inner_text()


def test_the_link_of_the_page_is_not_in_the_fade_where_its_row_goes_on(
    window: Callable[..., Page], session: Any
) -> None:
    """As beside the name of a user that has many letters."""
    page = window(storage_state=session, viewport={"width": 360, "height": 800})
    page.goto("/planner/scenarios/")
    left = """(link) => link.parentElement.getBoundingClientRect().right - link.getBoundingClientRect().right"""
    for row in ("Main", "Planner"):
        assert page.get_by_role("navigation", name=row).locator("[aria-current]").evaluate(left) >= 32


def test_how_late_an_operation_was_is_in_sight(
    window: Callable[..., Page], session: Any, stocked: dict[str, Any]
) -> None:
    """Where it was planned and measured to end stood before it: what the table is for was beyond the edge."""
    page = window(storage_state=session, viewport=PHONE)
    page.goto(f"/runs/{stocked['dp']}/?tab=timeline")
    table = page.get_by_role("region", name="Late operations")
    expect(table).to_be_visible()
    assert table.evaluate("(table) => table.scrollWidth <= table.clientWidth")


def test_the_ways_to_serve_are_in_sight_as_a_whole(window: Callable[..., Page], session: Any) -> None:
    """Six numbers a way stood in one line: four of them were beyond the edge."""
    page = window(storage_state=session, viewport=PHONE)
    page.goto("/planner/inference/")
    table = page.get_by_role("region", name="Ways to serve")
    expect(table).to_be_visible()
    assert table.evaluate("(table) => table.scrollWidth <= table.clientWidth")


def test_a_value_of_the_spec_is_not_broken_into_its_words(
    window: Callable[..., Page], session: Any, stocked: dict[str, Any]
) -> None:
    """Long names of other fields took the width: 'Pairs: columns, then rows' stood on three lines."""
    page = window(storage_state=session, viewport=PHONE)
    page.goto(f"/runs/{stocked['single']}/?tab=spec")
    value = page.locator("#tab tr", has_text="Tensor split").locator("td")
    box = value.bounding_box()
    assert box and box["height"] < 3 * 20


def test_the_lessons_are_one_row_that_goes_on_beyond_the_edge(window: Callable[..., Page], session: Any) -> None:
    """Each stood on a line of its own, and the schedules below the first screen."""
    page = window(storage_state=session, viewport=PHONE)
    page.goto("/schedules/")
    box = page.get_by_role("navigation", name="Lessons").bounding_box()
    assert box and box["height"] < 48
