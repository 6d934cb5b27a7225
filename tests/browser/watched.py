"""A browser page that is watched: what goes wrong on it unseen (console, page errors, answers) is kept and judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import ConsoleMessage, Page

from tests.yard_process import wait_for

WIDE = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 844}
WCAG = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
LOOKS = {
    "type": "rule",
    "values": ["color-contrast", "link-in-text-block", "scrollable-region-focusable", "target-size"],
}
"""Those of the rules behind WCAG whose outcome colours and width can change."""
HOSTILE = "<img src=x onerror=\"window.hacked='yes'\"><b>bold</b>"
"""A name that would run a script wherever it were taken for HTML, and be set in bold where only scripts are refused."""
OVERTAKEN = ["htmx:sendAbort", "htmx:afterRequest"]
"""A check that is under way when the form is sent, or typed into again, is given up; htmx says so."""
LIVE_MS = 60_000
RUN_MS = 120_000
STEPS = 20_000
"""Of an endless run: at eight a second it outlasts every test."""


@dataclass
class Troubles:
    """What a browser complained of; `expected` holds parts of messages that a test causes on purpose."""

    found: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=OVERTAKEN.copy)

    def watch(self, page: Page) -> None:
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.found.append(f"{page.url}: {error}"))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning", "trace"}:  # the chart library warns with a trace
            self.found.append(f"{message.location.get('url', '')}: {message.type}: {message.text}")

    @property
    def unexpected(self) -> list[str]:
        return [text for text in self.found if not any(part in text for part in self.expected)]


def endless() -> dict[str, Any]:
    """A spec that goes on until it is cancelled, with steps that can be watched one by one. It holds two devices and
    mostly waits for its data, so that the browser and the yard have the processor.
    """
    return {
        "model": {"layers": 4, "hidden": 64, "heads": 4, "seq": 64},
        "train": {"steps": STEPS, "global_batch": 16},
        "trace": {"trace_every": 5},
        "parallel": {"pp": 2, "schedule": "naive"},
        "inject": [{"kind": "slow_data", "ms": 120}],
    }


def violations(page: Page, rules: Mapping[str, Any] = WCAG) -> list[str]:
    """What axe-core finds against `rules` (WCAG A and AA), one line a node."""
    page.evaluate("() => Promise.all(document.getAnimations().map((a) => a.playState === 'running' && a.finish?.()))")
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    options = {"runOnly": rules, "resultTypes": ["violations"]}
    found = page.evaluate("(options) => axe.run(options).then((answer) => answer.violations)", options)
    return [
        f"{rule['id']} ({rule['impact']}): {node['target']} {node['failureSummary']}"
        for rule in found
        for node in rule["nodes"]
    ]


def overflow(page: Page) -> list[str]:
    """Elements that stick out of the window to the right, and the page's own sideways scroll; [] when none does."""
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
    """Waits until it is true in the page. Asked from outside: a poll inside the page would need the `eval` that the
    policy of our pages forbids, unless its first answer is true."""
    wait_for(expression, lambda: page.evaluate(expression, arg), LIVE_MS / 1e3)


def mark(page: Page) -> None:
    """Leaves something in the page that a reload would wipe away."""
    page.evaluate("() => { window.notReloaded = true }")


def same_page(page: Page) -> bool:
    return bool(page.evaluate("() => window.notReloaded === true"))


def drawn(page: Page, keys: Iterable[str]) -> None:
    """Brings each chart to the screen and waits until Plotly has drawn it."""
    for key in keys:
        page.locator(f'.chart[data-chart="{key}"]').scroll_into_view_if_needed()
        page.locator(f'.chart[data-chart="{key}"] svg.main-svg').first.wait_for(timeout=LIVE_MS)


def chart_points(page: Page, key: str) -> list[float]:
    """The x values of the first trace of a drawn chart, as Plotly has them."""
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
