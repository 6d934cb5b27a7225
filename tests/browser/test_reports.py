"""Reports as files: they open without a network, and print without anything being cut off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
SHEETS = {"A4": 688, "Letter": 710}
"""Width of the text in CSS pixels: the sheet minus the margins that the report asks for."""


@pytest.fixture(params=["study", "run"])
def saved(request: pytest.FixtureRequest, page: Page, stocked: dict[str, Any], tmp_path: Path) -> Path:
    """The downloaded report file."""
    address = {"study": f"/studies/{stocked['study']}/", "run": f"/runs/{stocked['dp']}/"}[request.param]
    file = tmp_path / "report.html"
    file.write_text(page.request.get(f"{address}report/?download=1").text())
    return file


def test_a_kept_report_opens_offline_and_prints_whole(browser: Browser, saved: Path) -> None:
    context = browser.new_context(offline=True, color_scheme="dark")
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(saved.as_uri())
    assert asked == [saved.as_uri()], "the file loads nothing from outside"
    assert page.locator("svg.figure").count() >= 3
    page.emulate_media(media="print")
    for sheet, width in SHEETS.items():
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"nothing is cut off on {sheet}"
        assert page.pdf(format=sheet).startswith(b"%PDF")
    style = "node => getComputedStyle(node)"
    assert page.locator("thead").first.evaluate(f"{style.replace('(node)', '(node).display')}") == "table-header-group"
    assert page.locator("body").evaluate(style.replace("(node)", "(node).backgroundColor")) == "rgb(255, 255, 255)"
    assert page.locator(".no-print").first.is_hidden()
    tables = page.locator("section:has(table)").first
    assert tables.evaluate(style.replace("(node)", "(node).breakInside")) == "auto", (
        "tables may break across pages, so that no page is left half empty"
    )
    assert page.locator("div.whole").first.evaluate(style.replace("(node)", "(node).breakInside")) == "avoid"
    context.close()
