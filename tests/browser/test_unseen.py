"""What happens while a page gets no news: the page catches up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.observed_page import SETTLE, endless, look, mark, same_page, until
from tests.browser.test_connection import SILENT_STREAMS, send
from tests.yard_process import YardProcess

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.mark.full
def test_what_happens_before_the_stream_is_open_is_not_missed(
    page: Page, yard: YardProcess, client: httpx.Client, cancel_after: Callable[[int], int]
) -> None:
    run = cancel_after(yard.submit(client, endless(), name="Ends unseen"))
    yard.wait_state(client, run, "running")
    held: list[Route] = []
    page.route("**/live/stream**", lambda route: held.append(route))
    page.goto(f"/runs/{run}/")
    mark(page)
    page.wait_for_load_state()
    client.post(f"/api/v1/runs/{run}/cancel")
    yard.wait_state(client, run, "cancelled")
    expect(page.locator("#head")).to_have_attribute("data-state", "running")
    assert held
    held[0].continue_()
    expect(page.locator("#head")).to_have_attribute("data-state", "cancelled")
    assert same_page(page)


def test_a_tab_that_nobody_sees_holds_no_stream_and_catches_up(
    page: Page, yard: YardProcess, client: httpx.Client, cancel_after: Callable[[int], int]
) -> None:
    """Six tabs with a stream each would use all connections that a browser opens to one host."""
    run = cancel_after(yard.submit(client, endless(), name="Ends in another tab"))
    yard.wait_state(client, run, "running")
    page.goto(f"/runs/{run}/")
    expect(page.locator("#head")).to_have_attribute("data-state", "running")
    mark(page)
    look(page, seen=False)
    page.wait_for_timeout(3000)  # answers to earlier requests arrive
    client.post(f"/api/v1/runs/{run}/cancel")
    yard.wait_state(client, run, "cancelled")
    page.wait_for_timeout(3000)
    expect(page.locator("#head")).to_have_attribute("data-state", "running")
    look(page, seen=True)
    expect(page.locator("#head")).to_have_attribute("data-state", "cancelled")
    assert same_page(page)


STUDY_NEWS = "**/changes.json*"
UNSEEN = "Object.defineProperty(document, 'hidden', { value: true, configurable: true });"


@pytest.mark.full
def test_an_ended_study_that_was_opened_in_a_tab_that_nobody_saw_catches_up(
    page: Page, yard: YardProcess, stocked: dict[str, Any]
) -> None:
    yard.query(SETTLE.format(study=stocked["study"]))
    page.add_init_script(UNSEEN)
    page.goto(f"/studies/{stocked['study']}/")
    page.wait_for_load_state()
    with page.expect_response(STUDY_NEWS):
        look(page, seen=True)


@pytest.mark.full
def test_an_ended_study_whose_stream_opens_late_catches_up(
    page: Page, yard: YardProcess, stocked: dict[str, Any]
) -> None:
    yard.query(SETTLE.format(study=stocked["study"]))
    page.add_init_script(SILENT_STREAMS)
    page.clock.install()
    page.goto(f"/studies/{stocked['study']}/")
    until(page, "() => window.streams.length === 1")
    page.clock.fast_forward(11_000)
    with page.expect_response(STUDY_NEWS):
        send(page, "hello")
