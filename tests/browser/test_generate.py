"""From a run with a checkpoint to generated text: the form, the queue, and a page that fills in as tokens arrive."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import DONE_S
from tests.browser.observed_page import overflow, violations
from tests.yard_process import YardProcess, tiny

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.fixture
def saved(yard: YardProcess, client: httpx.Client) -> Any:
    """A run of two data-parallel replicas with a checkpoint."""
    spec = tiny(dp=2)
    run = yard.submit(client, {**spec, "train": {**spec["train"], "checkpoint_every": 12}}, name="Has a checkpoint")
    yard.wait_state(client, run, "succeeded", limit=DONE_S)
    return run


@pytest.mark.parametrize(
    ("width", "split"),
    [(1440, "Tensor parallel"), pytest.param(390, "Pipeline stages", marks=pytest.mark.full)],
)
def test_text_is_generated_from_a_run(page: Page, saved: Any, width: int, split: str) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"/runs/{saved}/")
    page.get_by_role("link", name="Generate text…").click()
    assert violations(page) == [] and overflow(page) == []
    page.get_by_label("Prompt").fill("def ")
    page.get_by_label("Tokens to generate").fill("8")
    page.get_by_label(split).fill("2")
    expect(page.locator("#feasibility")).to_contain_text("keys and values")
    assert violations(page) == [] and overflow(page) == []
    page.get_by_role("button", name="Queue it").click()
    page.wait_for_url(re.compile(r"/runs/\d+/$"))
    expect(page.locator("#head[data-state=succeeded]")).to_be_attached(timeout=DONE_S * 1000)
    expect(page.locator("#verdict")).to_contain_text("8 tokens: the first after")
    expect(page.locator("pre.generated")).to_contain_text("def ")
    expect(page.locator("#text")).to_contain_text("8 of 8 tokens")
    expect(page.locator("#text")).to_contain_text("measured; ")
    assert violations(page) == [] and overflow(page) == []


def test_a_schedule_is_read_into_its_field(page: Page, tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    own.write_text("0F0,0F1,0B0,0B1\n,1F0,1B0,1F1,1B1\n")
    page.goto("/runs/new/")
    page.get_by_label("Pipeline stages").fill("2")
    page.get_by_label("Micro-batches").fill("2")
    page.get_by_label("Pipeline schedule").select_option("custom")
    page.get_by_label("Schedule file").set_input_files(own)
    expect(page.get_by_label("Own schedule")).to_have_value(own.read_text())
    expect(page.locator("#help-program_file")).to_have_text("own.csv was read into the field.")
    expect(page.locator("#feasibility")).to_contain_text("PP-Custom")
    (tmp_path / "none.csv").touch()
    page.get_by_label("Schedule file").set_input_files(tmp_path / "none.csv")
    expect(page.locator("#error-program_file")).to_have_text("none.csv is empty.")
    expect(page.get_by_label("Own schedule")).to_have_value(own.read_text())


@pytest.mark.full
@pytest.mark.parametrize("width", [1440, 390])
def test_splits_are_compared_by_what_they_generate(page: Page, saved: Any, width: int) -> None:
    """Two splits and a single device generate the same text, and the page says which is fastest."""
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"/runs/{saved}/")
    page.get_by_role("link", name="Compare splits…").click()
    assert violations(page) == [] and overflow(page) == []
    page.get_by_label("Tokens to generate").fill("8")
    page.get_by_label("Splits").fill("2x1x1, 1x1x2, 3x1x1")
    expect(page.locator("#preview")).to_contain_text("1 left out")
    page.get_by_role("button", name="Queue 3 runs").click()
    page.wait_for_url(re.compile(r"/studies/\d+/$"))
    assert violations(page) == [] and overflow(page) == []
    expect(page.locator("#verdict")).to_contain_text("All 3 splits generate the same text.", timeout=3 * DONE_S * 1000)
    for said in ("tokens/s", re.compile("the single device|not disturbed"), re.compile("worst ranks?")):
        expect(page.locator("#verdict")).to_contain_text(said)
    expect(page.locator("#generation-table tbody tr")).to_have_count(3)
    assert violations(page) == [] and overflow(page) == []
