"""The log of a run's rank on an open page: it grows in place, and shows a single attempt."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.watched import TELL, mark, same_page
from tests.yard_process import YardProcess

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_the_longer_log_of_a_later_attempt_takes_the_place_of_the_one_before(
    page: Page, yard: YardProcess, stocked: dict[str, Any]
) -> None:
    run, text = stocked["single"], "".join(f"line {i} of the second attempt\n" for i in range(2000))

    def second(route: Route) -> None:
        """Answers as the server would if there were another attempt, in parts."""
        start = int(route.request.url.rpartition("start=")[2])
        end = min(len(text), start + 30_000)
        route.fulfill(json={"text": text[start:end], "start": start, "end": end, "total": len(text), "attempt": 2})

    page.goto(f"/runs/{run}/?tab=logs")
    mark(page)
    log = page.get_by_role("log", name="Log of rank 0")
    expect(log).to_be_visible()
    assert int(log.get_attribute("data-total") or 0) < len(text)
    page.route("**/data/log.json*", second)
    yard.query(TELL.format(run=run, study=None, what="log"))
    expect(page.locator("#log-size")).to_have_text(f"{len(text)} of {len(text)} bytes")
    assert log.text_content() == text
    assert same_page(page)


KEPT = 512 * 1024


def test_a_long_log_keeps_its_end_and_loads_what_was_before_once(
    page: Page, yard: YardProcess, stocked: dict[str, Any]
) -> None:
    text = "".join(f"line {i} of very many\n" for i in range(50_000))

    def part(route: Route) -> None:
        asked = parse_qs(urlparse(route.request.url).query)
        start = int(asked["start"][0])
        end = min(len(text), start + int(asked.get("limit", ["65536"])[0]))
        route.fulfill(json={"text": text[start:end], "start": start, "end": end, "total": len(text), "attempt": 2})

    page.goto(f"/runs/{stocked['single']}/?tab=logs")
    log, earlier = page.get_by_role("log", name="Log of rank 0"), page.get_by_role("button", name="Load earlier lines")
    expect(earlier).to_be_hidden()
    page.route("**/data/log.json*", part)
    yard.query(TELL.format(run=stocked["single"], study=None, what="log"))
    expect(page.locator("#log-size")).to_contain_text(re.compile(rf"of {len(text)} bytes, from byte"))
    expect(log).to_have_attribute("data-end", str(len(text)))
    shown = log.text_content() or ""
    assert text.endswith(shown) and KEPT <= len(shown) < KEPT + 65536
    page.evaluate("() => { const b = document.getElementById('log-earlier'); b.click(); b.click(); }")
    expect(log).to_have_attribute("data-start", str(len(text) - len(shown) - 65536))
    page.wait_for_timeout(500)
    assert log.text_content() == text[-len(shown) - 65536 :]
