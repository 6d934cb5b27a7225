"""The log of a run's rank on an open page: it grows in place, and shows a single attempt."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.observed_page import TELL, mark, same_page
from tests.yard_process import YardProcess

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.mark.full
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
    sent: list[int] = []

    def part(route: Route) -> None:
        asked = parse_qs(urlparse(route.request.url).query)
        sent.append(1)
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
    assert len(sent) <= 2 + KEPT // 65536, "what would be dropped at once is not asked for"
    page.evaluate("() => { const b = document.getElementById('log-earlier'); b.click(); b.click(); }")
    expect(log).to_have_attribute("data-start", str(len(text) - len(shown) - 65536))
    page.wait_for_timeout(500)
    assert log.text_content() == text[-len(shown) - 65536 :]


class GrowingLog:
    """Answers for the log of attempt 2 (as if there were one) in parts of at most 64 KiB; `total` bytes exist."""

    def __init__(self, page: Page, yard: YardProcess, run: int) -> None:
        self.page, self.yard, self.run, self.attempt = page, yard, run, 2
        self.text, self.total = "".join(f"line {i} of very many\n" for i in range(60_000)), 900_000
        self.begins_again = False
        page.goto(f"/runs/{run}/?tab=logs")
        self.log = page.get_by_role("log", name="Log of rank 0")
        self.earlier = page.get_by_role("button", name="Load earlier lines")
        page.route("**/data/log.json*", self._part)
        self.grow(0)

    def grow(self, by: int) -> None:
        self.total += by
        self.yard.query(TELL.format(run=self.run, study=None, what="log"))
        expect(self.log).to_have_attribute("data-end", str(self.total))

    def _part(self, route: Route) -> None:
        asked = parse_qs(urlparse(route.request.url).query)
        if self.begins_again and "limit" in asked:
            self.attempt, self.text, self.total = 3, self.text[::-1], 200_000
            self.yard.query(TELL.format(run=self.run, study=None, what="state"))
        start = min(self.total, int(asked["start"][0]))
        end = min(self.total, start + int(asked.get("limit", ["65536"])[0]))
        part = {"text": self.text[start:end], "start": start, "end": end, "total": self.total}
        route.fulfill(json={**part, "attempt": self.attempt})


@pytest.mark.full
def test_earlier_lines_stay_while_a_long_log_grows(page: Page, yard: YardProcess, stocked: dict[str, Any]) -> None:
    grown = GrowingLog(page, yard, stocked["single"])
    start = int(grown.log.get_attribute("data-start") or 0)
    grown.earlier.click()
    expect(grown.log).to_have_attribute("data-start", str(start - 65536))
    grown.log.evaluate("log => { log.scrollTop = log.scrollHeight; }")
    grown.grow(65536)
    expect(grown.log).to_have_attribute("data-start", str(start - 65536))
    assert grown.log.text_content() == grown.text[start - 65536 : grown.total]


@pytest.mark.full
def test_earlier_lines_asked_for_as_a_new_attempt_begins_show_its_log_once(
    page: Page, yard: YardProcess, stocked: dict[str, Any]
) -> None:
    grown = GrowingLog(page, yard, stocked["single"])
    grown.begins_again = True
    grown.earlier.click()
    expect(grown.log).to_have_attribute("data-attempt", "3")
    expect(grown.log).to_have_attribute("data-end", "200000")
    page.wait_for_timeout(1_000)
    assert grown.log.text_content() == grown.text[:200_000]


def test_an_answer_with_earlier_lines_that_no_longer_adjoin_is_left_out(page: Page, stocked: dict[str, Any]) -> None:
    page.goto(f"/runs/{stocked['single']}/?tab=logs")
    kept = page.evaluate(RACE)
    assert kept == {"text": "b" * 10, "start": 600_010}


RACE = """async () => {
  const { Log } = await import(new URL("run_log.js", document.querySelector("script[src*='js/run.js']").src).href);
  const element = document.getElementById("log").cloneNode(false);
  element.textContent = "b".repeat(10);
  Object.assign(element.dataset, { rank: 0, start: 600000, end: 600010, total: 600010, attempt: 2 });
  document.getElementById("log").replaceWith(element);
  let answer;
  const log = new Log(element, () => new Promise((resolve) => { answer = resolve; }), () => {});
  const asked = log.fetchEarlier();
  log.start = 600010; // as if its first piece had been dropped
  answer({ text: "a", start: 534464, end: 600000, total: 600010, attempt: 2 });
  await asked;
  return { text: element.textContent, start: log.start };
}"""
