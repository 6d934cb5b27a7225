"""Traces as users handle them: uploaded, read by the analyst, looked at, saved as a picture, deleted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import FilePayload, Page, expect

from tests.browser.observed_page import PHONE, RUN_MS, WIDE, Troubles, overflow, settle, until, violations

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
PNG = b"\x89PNG\r\n\x1a\n"


def trace(rank: int) -> bytes:
    """The trace of a rank whose step computes, all-reduces and updates, with events as the PyTorch profiler writes
    them.
    """

    def event(kind: str, name: str, start: float, length: float) -> dict[str, Any]:
        return {"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length}

    events = [
        event("user_annotation", "ProfilerStep#3", 0, 2000),
        event("user_annotation", "PP:0F0", 50, 400),
        event("cpu_op", "aten::addmm", 60, 380),
        event("user_annotation", "PP:0B0", 500, 600 + 100 * rank),
        event("cpu_op", "AddmmBackward0", 510, 580 + 100 * rank),
        event("user_annotation", "gloo:all_reduce", 1300, 300),
        event("user_annotation", "Optimizer.step#SGD.step", 1700, 200),
    ]
    return json.dumps({"distributedInfo": {"rank": rank}, "traceEvents": events}).encode()


BOX = "document.querySelector('.chart[data-chart=gantt] .chart-box')"


def upload(page: Page, name: str) -> None:
    """Uploads two ranks through the form and waits until the trace has been read."""
    page.goto("/traces/")
    page.get_by_role("link", name="Upload a trace").click()
    files: list[FilePayload] = [
        {"name": f"rank{r}.json", "mimeType": "application/json", "buffer": trace(r)} for r in (0, 1)
    ]
    page.get_by_label("Files").set_input_files(files)
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Upload", exact=True).click()
    expect(page.locator("#verdict")).to_contain_text(" a step", timeout=RUN_MS)


def the_picture_has_an_edge_and_its_words(page: Page, path: Path) -> None:
    """Saves the timeline as PNG to `path` and checks the margins and the text around the chart."""
    gantt = page.locator(".chart[data-chart=gantt]")
    gantt.locator("summary").click()
    with page.expect_download() as saved:
        gantt.get_by_role("button", name="Save the picture as PNG").click()
    saved.value.save_as(path)
    picture = path.read_bytes()
    assert picture.startswith(PNG)
    wide, high = (int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))
    assert wide == 2 * (page.evaluate(f"Math.max({BOX}.clientWidth, 640)") + 2 * 16), (
        "a margin on both sides of the chart"
    )
    assert high > 2 * page.evaluate(f"{BOX}.layout.height") + 2 * (20 + 18 + 16), "and text above and below it"
    assert saved.value.suggested_filename == "Of another job gantt.png"


def test_a_trace_is_uploaded_looked_at_and_deleted(page: Page, troubles: Troubles, tmp_path: Path) -> None:
    upload(page, "Of another job")
    expect(page.locator(".chart[data-chart=gantt] .main-svg").first).to_be_visible()
    expect(page.locator("#notes")).to_contain_text("Certain: stages")
    for size in (WIDE, PHONE):
        page.set_viewport_size(size)
        assert not violations(page)
        assert not overflow(page)
    expect(page.locator("#whatif")).to_contain_text("Replayed unchanged")
    page.evaluate(f"window.Plotly.relayout({BOX}, {{'xaxis.range': [0.5, 1.5]}})")
    page.wait_for_url("**from=0.5&to=1.5**")
    page.reload()
    until(page, f"{BOX}?.layout?.xaxis?.range?.join() === '0.5,1.5'")
    the_picture_has_an_edge_and_its_words(page, tmp_path / "picture.png")
    page.goto(f"{page.url.partition('?')[0]}?links=free#whatif")
    expect(page.locator("#operators table")).to_be_visible()
    right = """(table) => {
      table.rows[1].cells[0].textContent = "autograd::engine::evaluate_function: AddmmBackward0";
      return table.rows[1].cells[1].getBoundingClientRect().right;
    }"""
    assert page.locator("#operators table").evaluate(right) < PHONE["width"], "the other rank is in sight"
    plain = page.locator("#operators thead tr").evaluate("(row) => getComputedStyle(row).backgroundColor")
    assert plain == "rgba(0, 0, 0, 0)", "only rows that differ are marked"
    until(page, "Math.abs(document.getElementById('whatif').getBoundingClientRect().top) < 100")
    page.get_by_role("link", name="Delete").click()
    page.get_by_role("button", name="Delete the trace").click()
    page.wait_for_url(re.compile(r"/traces/$"))
    expect(page.get_by_text("Of another job")).to_have_count(0)


@pytest.mark.full
def test_what_is_no_trace_says_so(page: Page, troubles: Troubles) -> None:
    troubles.expected.append("422")
    page.goto("/traces/new/")
    page.get_by_role("button", name="Upload", exact=True).click()
    expect(page.locator("#error-files")).to_have_text("Choose at least one file.")
    nothing: FilePayload = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no trace"}
    page.get_by_label("Files").set_input_files(nothing)
    page.get_by_role("button", name="Upload", exact=True).click()
    expect(page.get_by_role("heading", name="Nothing could be read")).to_be_visible(timeout=RUN_MS)
    expect(page.get_by_text("This is no Chrome trace")).to_be_visible()


def test_break_it_shows_what_belongs_to_a_fault_that_is_switched_on(page: Page) -> None:
    page.goto("/runs/new/?preset=pp2")
    page.get_by_text("Break it", exact=True).click()
    rank = page.get_by_label("Straggler: rank")
    expect(rank).to_be_hidden()
    page.get_by_label("Straggler", exact=True).check()
    expect(rank).to_be_visible()
    rank.fill("7")
    expect(page.locator("#error-inject__straggler__rank")).to_contain_text("rank=7 is no rank", timeout=RUN_MS)


@pytest.mark.full
def test_what_if_says_when_it_gets_no_answer_and_when_its_trace_was_deleted_elsewhere(
    page: Page, troubles: Troubles
) -> None:
    troubles.expected += ["ERR_FAILED", "Failed to fetch", "404"]
    upload(page, "Deleted elsewhere")
    links = page.locator("#whatif").get_by_label("Links", exact=True)
    expect(links).to_be_visible()  # the page fetches it when it has loaded
    page.route("**/whatif/**", lambda route: route.abort())
    links.select_option("2")
    said = page.get_by_text("This change got no answer")
    expect(said).to_have_count(1)
    page.unroute("**/whatif/**")
    links.select_option("4")
    expect(said).to_have_count(0)
    expect(page.locator("#whatif-result .verdict")).to_contain_text("4 times as fast")
    other = page.context.new_page()
    other.goto(f"{page.url.partition('?')[0]}delete/")
    other.get_by_role("button", name="Delete the trace").click()
    other.wait_for_url(re.compile(r"/traces/$"))
    links.select_option("2")
    expect(page.get_by_text("It may have been deleted")).to_be_visible()


@pytest.mark.full
def test_a_name_without_a_blank_widens_no_page_of_a_phone(page: Page) -> None:
    page.set_viewport_size(PHONE)
    upload(page, "z" * 120)
    address = page.url.partition("?")[0]
    for path in ("/traces/", address, f"{address}delete/"):
        page.goto(path)
        settle(page)
        assert overflow(page) == [], path
    page.goto("/traces/")
    wide = "document.querySelector('.table tbody th').getBoundingClientRect().width"
    assert page.evaluate(wide) < PHONE["width"] / 2, "the name leaves room for the trace's state"
    page.goto("/accounts/tokens/")
    page.get_by_label("What is it for?").fill("z" * 60)
    page.get_by_role("button", name="Make token").click()
    expect(page.get_by_text("is made. Copy it now")).to_be_visible()
    assert overflow(page) == []
