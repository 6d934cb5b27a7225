"""What was traced of a run is dropped from its page, and the page goes on to show the rest."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.observed_page import RUN_MS, drawn, overflow, settle, violations
from tests.yard_process import YardProcess, tiny, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
AGED = """Run.objects.filter(pk={run}).update(ended_at=__import__("django.utils.timezone", fromlist=["x"]).now()
    - __import__("datetime").timedelta(minutes=10))"""
"""For a yard's `query`: makes it a run all of whose data has arrived."""


@pytest.mark.full
def test_space_is_freed_from_the_page_of_a_run(page: Page, yard: YardProcess, client: httpx.Client) -> None:
    run = yard.submit(client, {**tiny(steps=40), "trace": {"trace_every": 2}}, name="Traced often")
    yard.wait_state(client, run, "succeeded", limit=RUN_MS / 1e3)
    wait_for("the last traced step", lambda: 38 in steps(client, run))
    before = steps(client, run)
    yard.query(AGED.format(run=run))
    page.goto(f"/runs/{run}/")
    page.get_by_role("link", name="Delete…").click()
    card = page.get_by_role("region", name="Or free space, and keep the numbers")
    expect(card).to_contain_text(f"Of {len(before)} traced steps, the spans of ")
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert overflow(page) == [] and violations(page) == []
    card.get_by_role("button", name="Free the space").click()
    expect(page.get_by_text("The space of 1 run is being freed; the numbers stay.")).to_be_visible()
    expect(page.locator("[data-thinned]")).to_contain_text("by admin, to free space")
    wait_for("the older steps to go", lambda: len(steps(client, run)) < len(before))
    left = steps(client, run)
    page.reload()
    settle(page)
    drawn(page, ["gantt"])
    assert left[-1] == before[-1] and set(left) < set(before)
    assert {int(step) for step in page.locator("#step option").all_text_contents()[1:]} >= set(left)


def steps(client: httpx.Client, run: int) -> list[int]:
    """The traced steps of which the yard has spans."""
    answer = client.get(f"/api/v1/runs/{run}/spans")
    return list(answer.json()["data"]["traced_steps"]) if answer.status_code == 200 else []
