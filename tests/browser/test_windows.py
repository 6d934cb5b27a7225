"""Several windows of one browser: it opens at most six connections to one host, and still each window stays live."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import Page, Request, expect

from tests.browser.observed_page import RUN_MS, Troubles, endless
from tests.yard_process import YardProcess

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

WINDOWS = 7


def move(pages: list[Page]) -> None:
    """Waits until the verdict on each of the pages has changed."""
    verdicts = [page.locator("#verdict") for page in pages]
    before = [verdict.inner_text() for verdict in verdicts]
    for verdict, text in zip(verdicts, before, strict=True):
        expect(verdict).not_to_have_text(text)


def test_seven_windows_on_live_pages_share_one_stream_and_outlive_the_one_that_holds_it(
    page: Page, yard: YardProcess, client: httpx.Client, troubles: Troubles, cancel_after: Callable[[int], int]
) -> None:
    streams: list[Request] = []
    context = page.context
    context.on("request", lambda request: streams.extend([request] if "/live/stream" in request.url else []))
    run = cancel_after(yard.submit(client, endless(), name="In seven windows"))
    yard.wait_state(client, run, "running")
    windows = [page, *(context.new_page() for _ in range(WINDOWS - 1))]
    for window in windows[1:]:
        troubles.watch(window)
    for window in windows:
        window.goto(f"/runs/{run}/")
        expect(window.locator("#verdict")).to_contain_text("Step", timeout=RUN_MS)
    assert not any(window.evaluate("document.hidden") for window in windows)
    move(windows)
    assert len({request.frame.page for request in streams}) == 1
    windows[-1].goto("/runs/")  # it needs other topics, so the shared stream is reopened with them
    move(windows[:-1])
    holder = streams[-1].frame.page
    holder.close()
    left = [window for window in windows[:-1] if window != holder]
    move(left)
    client.post(f"/api/v1/runs/{run}/cancel")
    for window in left:
        expect(window.locator("#head")).to_have_attribute("data-state", "cancelled")
    expect(windows[-1].locator("tr", has_text="In seven windows")).to_contain_text("Cancelled")
    assert len({request.frame.page for request in streams} - {holder}) == 1
