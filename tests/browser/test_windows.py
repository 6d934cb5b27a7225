"""Several windows of one browser: it opens at most six connections to one host, and still each window stays live."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import Page, Request, expect

from tests.browser.observed_page import RUN_MS, Troubles, endless
from tests.yard_process import YardProcess

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

WINDOWS = 7


PAGE, LIST = "/runs/{}/", "/runs/"
MOVES = {PAGE: "#verdict", LIST: "tr:has-text('In seven windows') td[data-title=Steps]"}
"""Address -> what on the page changes with every step of the run."""


def move(pages: list[Page], what: str) -> None:
    """Waits until this has changed on each of the pages."""
    shown = [page.locator(what) for page in pages]
    before = [one.inner_text() for one in shown]
    for one, text in zip(shown, before, strict=True):
        expect(one).not_to_have_text(text, use_inner_text=True)


@pytest.mark.full
@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(LIST, PAGE, id="lists"),
        pytest.param(PAGE, LIST, id="pages of a run"),
    ],
)
def test_seven_windows_on_live_pages_share_one_stream_and_outlive_the_one_that_holds_it(
    page: Page,
    yard: YardProcess,
    client: httpx.Client,
    troubles: Troubles,
    cancel_after: Callable[[int], int],
    first: str,
    second: str,
) -> None:
    """All seven are at the `first` address, then one goes to the `second`."""
    streams: list[Request] = []
    context = page.context
    context.on("request", lambda request: streams.extend([request] if "/live/stream" in request.url else []))
    run = cancel_after(yard.submit(client, endless(600), name="In seven windows"))
    yard.wait_state(client, run, "running")
    windows = [page, *(context.new_page() for _ in range(WINDOWS - 1))]
    for window in windows[1:]:
        troubles.watch(window)
    for window in windows:
        window.goto(first.format(run))
        expect(window.locator(MOVES[first])).to_contain_text(re.compile(r"^\d+"), timeout=RUN_MS)
    assert not any(window.evaluate("document.hidden") for window in windows)
    move(windows, MOVES[first])
    assert len({request.frame.page for request in streams}) == 1
    windows[-1].goto(second.format(run))  # it needs other topics, so the shared stream is reopened with them
    move(windows[:-1], MOVES[first])
    holder = streams[-1].frame.page
    holder.close()
    left = [window for window in windows[:-1] if window != holder]
    move(left, MOVES[first])
    client.post(f"/api/v1/runs/{run}/cancel")
    for window in (*left, windows[-1]):
        expect(window.locator(".badge[data-state=cancelled]").first).to_be_visible()
    assert len({request.frame.page for request in streams} - {holder}) == 1
