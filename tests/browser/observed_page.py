"""A browser page under observation: errors that a user would not see (console, exceptions, failed responses) are
recorded and judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import ConsoleMessage, Page, Route, ViewportSize

from tests.yard_process import tiny, wait_for

WIDE: ViewportSize = {"width": 1440, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}
WCAG = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
HOSTILE = "<img src=x onerror=\"window.hacked='yes'\"><b>bold</b>"
"""A name that would run a script wherever it were inserted as HTML, and appear in bold where only scripts are
blocked.
"""
OVERTAKEN = ["htmx:sendAbort", "htmx:afterRequest"]
"""htmx reports these when a validation request is aborted because the form is sent or edited again."""
SETTLED = ["Too many auto-margin redraws"]
"""Plotly says so where two sets of tick labels would each make room for the other, which few values of a growing curve
bring about: it keeps the last margins, and the chart is whole.
"""
JUMPED = ["TimeoutError"]
"""A page whose clock jumps gives up answers on their way: Playwright's clock drives `AbortSignal.timeout` too."""
LIVE_MS = 60_000
RUN_MS = 120_000
STEPS = 20_000
"""Steps of an endless run: at eight steps a second it outlasts every test."""


@dataclass
class Troubles:
    """What a browser complained about; `expected` holds parts of messages that a test causes on purpose."""

    found: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=lambda: [*OVERTAKEN, *SETTLED])

    def watch(self, page: Page) -> None:
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.found.append(f"{page.url}: {error}"))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning", "trace"}:  # the chart library warns with console.trace
            self.found.append(f"{message.location.get('url', '')}: {message.type}: {message.text}")

    @property
    def unexpected(self) -> list[str]:
        return [text for text in self.found if not any(part in text for part in self.expected)]


def endless(wait_ms: int = 120) -> dict[str, Any]:
    """A spec that runs until it is cancelled, with steps slow enough to be watched one by one. It takes two devices and
    mostly waits for its data, `wait_ms` a step, which leaves the processor to the browser and the yard.
    """
    return {
        **tiny(STEPS, pp=2, schedule="naive"),
        "trace": {"trace_every": 5},
        "inject": [{"kind": "slow_data", "ms": wait_ms}],
    }


UNSTUCK = """() => {
  for (const bar of document.querySelectorAll(".feasibility > .form-actions")) bar.style.position = "static";
}"""
"""A bar that stays in sight covers whatever has been scrolled to its place; axe would take that for too small."""


def violations(page: Page) -> list[str]:
    """Violations of WCAG A and AA that axe-core finds, one line per node."""
    page.evaluate("() => Promise.all(document.getAnimations().map((a) => a.playState === 'running' && a.finish?.()))")
    page.evaluate(UNSTUCK)
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    options = {"runOnly": WCAG, "resultTypes": ["violations"]}
    found = page.evaluate("(options) => axe.run(options).then((answer) => answer.violations)", options)
    return [
        f"{rule['id']} ({rule['impact']}): {node['target']} {node['failureSummary']}"
        for rule in found
        for node in rule["nodes"]
    ]


def overflow(page: Page) -> list[str]:
    """Elements that reach beyond the right edge of the window, and the page's own horizontal scrolling; [] without
    any.
    """
    return list(
        page.evaluate(
            """() => {
              const width = document.documentElement.clientWidth;
              if (document.documentElement.scrollWidth <= width) return [];
              const out = [...document.querySelectorAll('body *')].filter((e) => {
                for (let p = e.parentElement; p; p = p.parentElement)
                  if (/auto|scroll|hidden|clip/.test(getComputedStyle(p).overflowX)) return false;
                return e.getBoundingClientRect().right > width + 1;
              });
              return [`page ${document.documentElement.scrollWidth} > ${width}`,
                      ...out.slice(0, 8).map((e) => `${e.tagName}.${e.className} ${e.textContent.slice(0, 40)}`)];
            }"""
        )
    )


def until(page: Page, expression: str, arg: Any = None) -> None:
    """Waits until the expression is true in the page. Polled from outside: a poll inside the page needs `eval`, which
    our Content Security Policy forbids.
    """
    wait_for(expression, lambda: page.evaluate(expression, arg), LIVE_MS / 1e3)


def sign_in(page: Page, name: str, password: str) -> None:
    """Fills in the page's form, and waits for the next page."""
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(password)
    with page.expect_navigation():  # until the scripts of the page have run, which what is typed there needs
        page.get_by_role("button", name="Sign in").click()


def settle(page: Page) -> None:
    """Waits until all charts near the viewport are drawn or reported as empty."""
    page.wait_for_load_state("load")
    until(
        page,
        """() => [...document.querySelectorAll('.chart-box')].every((box) => {
          const at = box.getBoundingClientRect();
          return at.top > innerHeight || !at.height || !box.querySelector('.skeleton');
        })""",
    )


TELL = """__import__("dashboard.live.announce", fromlist=["x"]).publish({run}, {study}, ["{what}"])"""
"""For a yard's `query`: announces news of a run."""
SETTLE = """__import__("dashboard.runs.models", fromlist=["x"]).Run.objects.filter(study={study}).update(
    ended_at=__import__("datetime").datetime(2026, 1, 1, tzinfo=__import__("datetime").UTC))"""
"""For a yard's `query`: makes the runs of a study ones that ended long ago."""
LOST = ["ERR_", "Failed to fetch", "status of 50"]
"""Parts of a browser's messages about a server that does not answer."""


def look(page: Page, seen: bool) -> None:
    """Makes the page believe that its tab became visible or, without `seen`, hidden."""
    page.evaluate(
        """(hidden) => {
          Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        not seen,
    )


def mark(page: Page) -> None:
    """Sets a variable in the page that a reload would erase."""
    page.evaluate("() => { window.notReloaded = true }")


def same_page(page: Page) -> bool:
    return bool(page.evaluate("() => window.notReloaded === true"))


def late_htmx(page: Page) -> Callable[[], None]:
    """Holds htmx back, as a slow connection does; returns what lets it come."""
    held: list[Route] = []
    page.route(re.compile(r"/htmx[^/]*\.js"), lambda route: held.append(route))  # Playwright sets an attribute on it

    def come() -> None:
        for route in held:
            route.continue_()

    return come


def drawn(page: Page, keys: Iterable[str]) -> None:
    """Scrolls to each chart and waits until Plotly has drawn it."""
    for key in keys:
        page.locator(f'.chart[data-chart="{key}"]').scroll_into_view_if_needed()
        page.locator(f'.chart[data-chart="{key}"] svg.main-svg').first.wait_for(timeout=LIVE_MS)


def chart_points(page: Page, key: str) -> list[float]:
    """The x values of the first trace of a drawn chart, as Plotly holds them."""
    return list(
        page.evaluate(
            """(key) => {
              const box = document.querySelector(`.chart[data-chart="${key}"] .chart-box`);
              const x = box?.data?.[0]?.x ?? [];
              return Array.from(x, Number);
            }""",
            key,
        )
    )
