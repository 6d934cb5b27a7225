"""What a page shows in a table is saved as CSV with one click."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
FORMULAS = """(table) => {
  const texts = ["=1+1", "+3.1 %", "@SUM(A1)", "-2+3", 'a "b", c'];
  const [first, ...cells] = table.tBodies[0].rows[0].cells;
  texts.forEach((text, i) => (cells[i].textContent = text));
  first.innerHTML = 'DP<br><span class="small">within noise</span><button>Run</button>';
}"""


def saved(button: Locator, path: Path) -> tuple[str, list[list[str]]]:
    """The name of the file that a click on the button saves, and its rows."""
    with button.page.expect_download() as found:
        button.click()
    found.value.save_as(path)
    return found.value.suggested_filename, list(csv.reader(io.StringIO(path.read_bytes().decode("utf-8-sig"))))


def cells(table: Locator) -> list[list[str]]:
    """The texts of a table's cells, row by row."""
    rows = table.evaluate("(table) => [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent))")
    return [[" ".join(text.split()) for text in row] for row in rows]


def test_a_table_is_saved_as_it_stands_on_the_page(page: Page, stocked: dict[str, Any], tmp_path: Path) -> None:
    page.goto(f"/runs/{stocked['dp']}/?tab=accounts")
    part = page.locator("#details")
    table, button = part.get_by_role("table").first, part.get_by_role("button", name="Save as CSV").first
    name, rows = saved(button, tmp_path / "accounts.csv")
    assert name == "Accounts of Small DP Step breakdown by rank.csv"
    assert rows == cells(table) and len(rows) == 3 and rows[1][0] == "0"
    table.evaluate(FORMULAS)
    _, (_, row, _) = saved(button, tmp_path / "changed.csv")
    assert row[:6] == ["DP; within noise", "'=1+1", "+3.1 %", "'@SUM(A1)", "'-2+3", 'a "b", c']


def test_the_numbers_of_a_chart_are_saved(page: Page, stocked: dict[str, Any], tmp_path: Path) -> None:
    page.goto(f"/studies/{stocked['study']}/")
    chart = page.locator("#chart-speedup")
    chart.locator("summary").click()
    name, rows = saved(chart.get_by_role("button", name="Save the numbers as CSV"), tmp_path / "speedup.csv")
    assert name.endswith(" speedup.csv")
    assert rows == cells(chart.locator("table")) and len(rows) == 3
