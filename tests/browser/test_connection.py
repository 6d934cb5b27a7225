"""Nothing old is shown as live: a page says so when its stream is silent, or the server itself gets no news."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.observed_page import JUMPED, LOST, Troubles, mark, same_page, until
from tests.yard_process import YardProcess

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
INTERRUPTED = "Live updates are interrupted"
SILENT_STREAMS = """
window.streams = [];
window.EventSource = class extends EventTarget {
  constructor() {
    super();
    this.readyState = 1;
    window.streams.push(this);
  }
  close() {}
  send(name, data) {
    this.dispatchEvent(new MessageEvent(name, { data: JSON.stringify(data), lastEventId: "1-0" }));
  }
};"""
"""In place of the browser's own event streams: these receive only what a test sends."""


def send(page: Page, name: str, live: bool = True) -> None:
    page.evaluate("([name, live]) => window.streams.at(-1).send(name, { live })", [name, live])


def test_a_connection_that_is_gone_without_notice_is_said_and_replaced(page: Page, troubles: Troubles) -> None:
    troubles.expected += JUMPED
    page.add_init_script(SILENT_STREAMS)
    page.clock.install()
    page.goto("/runs/")
    until(page, "() => window.streams.length === 1")
    said = page.get_by_text(INTERRUPTED)
    send(page, "hello")
    for _ in range(3):
        page.clock.fast_forward(20_000)
        send(page, "beat")
    page.clock.run_for(2_000)
    expect(said).to_be_hidden()
    page.clock.fast_forward(31_000)
    page.clock.run_for(2_000)
    expect(said).to_be_visible()
    until(page, "() => window.streams.length === 2")
    send(page, "hello")
    expect(said).to_be_hidden()


def test_a_server_without_news_is_said_and_one_that_is_away_is_not_left_for(page: Page, troubles: Troubles) -> None:
    """A link that was followed then led to the browser's own page of an error."""
    troubles.expected += LOST
    page.add_init_script(SILENT_STREAMS)
    page.goto("/runs/")
    until(page, "() => window.streams.length === 1")
    said = page.get_by_text(INTERRUPTED)
    send(page, "hello", live=False)
    expect(said).to_be_visible()
    send(page, "beat")
    expect(said).to_be_hidden()
    send(page, "beat", live=False)
    expect(said).to_be_visible()
    link = page.get_by_role("link", name="Fleet")
    page.route("**/js/stay.*", lambda route: route.abort())
    link.click()
    stays = page.get_by_text("The yard could not be reached, so “Fleet” was not opened and this page stays.")
    expect(stays).to_be_visible()
    assert page.url.endswith("/runs/")
    send(page, "beat")
    expect(stays).to_be_hidden()
    send(page, "beat", live=False)
    expect(said).to_be_visible()
    page.unroute_all(behavior="wait")
    link.click()
    page.wait_for_url("**/fleet/")


@pytest.mark.full
def test_a_broker_that_stands_still_is_said_until_it_goes_on(
    page: Page, yard: YardProcess, stocked: dict[str, Any]
) -> None:
    page.goto(f"/runs/{stocked['single']}/")
    mark(page)
    said, broker = page.get_by_text(INTERRUPTED), yard.part("valkey")
    page.wait_for_timeout(1_000)  # the stream opens
    broker.suspend()
    try:
        expect(said).to_be_visible()
    finally:
        broker.resume()
    expect(said).to_be_hidden()
    assert same_page(page)


WAITS = """async (status) => {
  const base = document.querySelector("script[src*='js/list.js']").src;
  const { check, Paced } = await import(new URL("refetch.js", base).href);
  const [part, waits] = [new Paced(), []];
  part.soon = (work, wait) => waits.push(wait / 1000);
  for (const ok of [false, false, false, false, true, false]) {
    await part.run(async () => check({ ok, status, url: "" }), 0, false);
  }
  return waits;
}"""


@pytest.mark.parametrize(("status", "waits"), [(500, [3, 6, 12, 15, 3]), (401, []), (404, [])])
def test_a_failed_fetch_is_repeated_ever_more_seldom_and_a_refused_one_not(
    page: Page, troubles: Troubles, status: int, waits: list[int]
) -> None:
    troubles.expected.append(f": {status}")
    page.goto("/runs/")
    assert page.evaluate(WAITS, status) == waits
