"""Pages in colours of the reader's own, as Windows' contrast themes force them on every page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

FILLS = """() => new Set([...document.querySelectorAll('.chart-box .trace .point > path')].map((bar) =>
  getComputedStyle(bar).fill)).size"""
SWATCHES = """() => new Set([...document.querySelectorAll('.legend li')].map((item) => {
  const swatch = getComputedStyle(item, '::before');
  return swatch.backgroundColor + swatch.backgroundImage;
})).size"""


def test_phases_differ_where_the_reader_forces_colours(window: Callable[..., Page], session: Any) -> None:
    """Every bar was the same black, and the legend had no colours at all."""
    page = window(storage_state=session, forced_colors="active")
    page.goto("/schedules/")
    page.locator(".chart-box .trace .point > path").first.wait_for()
    assert page.evaluate("() => matchMedia('(forced-colors: active)').matches")
    assert page.evaluate(FILLS) >= 3
    assert page.evaluate(SWATCHES) == page.locator(".legend li").count() > 3
