"""A run's page, live: it updates without a reload, no point is missing after a lost connection, and Cancel leaves no
process.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from dashboard.analyst.child import NICENESS
from parallel_core import processes
from tests.browser.observed_page import (
    JUMPED,
    LOST,
    RUN_MS,
    Troubles,
    chart_points,
    drawn,
    endless,
    mark,
    same_page,
    until,
)
from tests.yard_process import YardProcess, tiny, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
POINTS = ("step", "time", "value")


@pytest.fixture(scope="module")
def under_way(yard: YardProcess, client: httpx.Client) -> Iterator[int]:
    """A run that continues for as long as these tests need it."""
    run = yard.submit(client, endless(), name="Under way")
    yield run
    client.post(f"/api/v1/runs/{run}/cancel")
    yard.wait_state(client, run, "succeeded", "cancelled")


def state(page: Page) -> Any:
    return page.locator("#head")


def tile(page: Page, title: str) -> Any:
    return page.locator("#tiles > div", has_text=title).locator("dd").first


def done(yard: YardProcess, client: httpx.Client, run: int) -> int:
    """The number of steps whose loss the server has stored."""
    return len(client.get(f"/api/v1/runs/{run}/series").json()["data"]["step"])


def wait_for_point(page: Page, step: int) -> list[float]:
    """The steps that the loss chart shows, once `step` is among them."""
    until(
        page,
        "(step) => document.querySelector('.chart[data-chart=loss] .chart-box')?.data?.[0]?.x?.at(-1) >= step",
        step,
    )
    return chart_points(page, "loss")


def test_a_queued_run_says_what_it_waits_for_and_its_log_outlives_it(
    page: Page, yard: YardProcess, client: httpx.Client, cancel_after: Callable[[int], int]
) -> None:
    first = cancel_after(yard.submit(client, endless(), name="In front"))
    behind = yard.submit(client, tiny(dp=2), name="Behind")
    page.goto(f"/runs/{behind}/?tab=logs")
    mark(page)
    expect(page.locator("#verdict")).to_contain_text(re.compile(r"Waits for 2 CPU devices|1 run ahead"))
    expect(page.locator("#log-empty")).to_contain_text("No process has started.")
    client.post(f"/api/v1/runs/{first}/cancel")
    expect(state(page)).to_have_attribute("data-state", "succeeded", timeout=RUN_MS)
    log = page.get_by_role("log", name="Log of rank 0")
    expect(log).not_to_be_empty()
    expect(page.locator("#log-empty")).to_be_hidden()
    assert same_page(page)
    page.get_by_role("link", name="rank 1", exact=True).click()
    page.wait_for_url("**rank=1#details")
    expect(page.get_by_role("log", name="Log of rank 1")).not_to_be_empty()


def test_everything_on_the_page_moves_without_a_reload(page: Page, under_way: int) -> None:
    page.goto(f"/runs/{under_way}/")
    mark(page)
    verdict = page.locator("#verdict")
    expect(state(page)).to_have_attribute("data-state", "running", timeout=RUN_MS)
    expect(verdict).to_contain_text(re.compile(r"\d+ of 20\D000 steps, .* left; .* pipeline bubble \(planned 50 %\)"))
    drawn(page, ["gantt"])
    step, loss, time = verdict.inner_text(), tile(page, "Loss").inner_text(), tile(page, "Step time").inner_text()
    gantt = "() => JSON.stringify(document.querySelector('.chart[data-chart=gantt] .chart-box').data.map((t) => t.x))"
    before = page.evaluate(gantt)
    expect(verdict).not_to_have_text(step)
    expect(tile(page, "Loss")).not_to_have_text(loss)
    expect(tile(page, "Step time")).not_to_have_text(time)
    until(page, f"(before) => ({gantt})() !== before", before)
    expect(tile(page, "Memory, worst rank")).to_contain_text("MiB")
    assert same_page(page)


@pytest.mark.full
def test_the_choice_of_steps_grows_but_not_while_it_is_in_use(page: Page, under_way: int) -> None:
    page.goto(f"/runs/{under_way}/")
    mark(page)
    select, options = page.locator("#step"), page.locator("#step option")
    expect(select).to_have_value("", timeout=RUN_MS)
    before = options.count()
    until(page, "(before) => document.querySelectorAll('#step option').length > before", before)
    select.select_option(index=1)
    select.focus()
    chosen, offered = select.input_value(), options.all_inner_texts()
    page.wait_for_timeout(3_000)
    assert options.all_inner_texts() == offered
    select.blur()
    until(page, "(before) => document.querySelectorAll('#step option').length > before", len(offered))
    expect(select).to_have_value(chosen)  # not sent yet
    assert chosen and same_page(page)


def test_tabs_stand_in_the_address(page: Page, under_way: int) -> None:
    page.goto(f"/runs/{under_way}/")
    tabs = page.get_by_role("navigation", name="Details of the run")
    for name in ("Memory", "Ranks", "Spec", "Events"):
        tabs.get_by_role("link", name=name).click()
        page.wait_for_url(f"**/?tab={name.lower()}#details")
        expect(tabs.locator("[aria-current=page]")).to_have_text(name)
        expect(page.locator("#tab")).to_have_attribute("data-tab", name.lower())
    page.go_back()
    expect(page.locator("#tab")).to_have_attribute("data-tab", "spec")


def watch_metrics(page: Page, yard: YardProcess, client: httpx.Client, run: int) -> None:
    """Opens the metrics of a running run and waits for its loss curve."""
    yard.wait_state(client, run, "running")
    page.goto(f"/runs/{run}/?tab=metrics")
    mark(page)
    drawn(page, ["loss"])


def test_a_lost_connection_is_said_and_leaves_no_gap(
    page: Page, yard: YardProcess, client: httpx.Client, under_way: int, troubles: Troubles
) -> None:
    troubles.expected += LOST
    watch_metrics(page, yard, client, under_way)
    said = page.get_by_text("Live updates are interrupted")
    page.context.set_offline(True)
    expect(said).to_be_visible()
    missed = done(yard, client, under_way) + 4
    wait_for("steps that the page misses", lambda: done(yard, client, under_way) > missed)
    assert max(chart_points(page, "loss")) < missed
    page.context.set_offline(False)
    seen = wait_for_point(page, missed)
    assert seen == list(range(len(seen)))
    expect(said).to_be_hidden()
    assert same_page(page)


def test_kill_9_of_the_web_process_leaves_no_gap(
    page: Page, yard: YardProcess, client: httpx.Client, under_way: int, troubles: Troubles
) -> None:
    troubles.expected += LOST
    watch_metrics(page, yard, client, under_way)
    web = yard.part("gunicorn")
    for process in (*web.children(), web):
        process.send_signal(signal.SIGKILL)
    wait_for("another web process", lambda: yard.part("gunicorn").pid != web.pid)
    missed = len(chart_points(page, "loss")) + 10
    seen = wait_for_point(page, missed)
    assert seen == list(range(len(seen)))
    expect(page.get_by_text("Live updates are interrupted")).to_be_hidden()
    assert same_page(page)


@pytest.mark.full
def test_series_that_arrive_unevenly_leave_no_gap(
    page: Page, yard: YardProcess, client: httpx.Client, under_way: int
) -> None:
    def uneven(route: Route) -> None:
        """The response as it would be if a point arrived after the loss was read and before the other series were."""
        answer = route.fetch()
        found = answer.json()
        if len(found["series"].get("loss", {}).get("step", ())) > 1:
            found["series"]["loss"] = {k: v[:-1] if k in POINTS else v for k, v in found["series"]["loss"].items()}
        else:
            found["series"].pop("loss", None)
        route.fulfill(response=answer, json=found)

    yard.wait_state(client, under_way, "running")
    page.goto(f"/runs/{under_way}/?tab=metrics")
    drawn(page, ["loss"])
    page.route("**/data/points.json*", uneven)
    seen = wait_for_point(page, len(chart_points(page, "loss")) + 6)
    page.unroute_all(behavior="wait")
    assert seen == list(range(len(seen)))


@pytest.mark.full
def test_a_press_that_an_update_overtakes_is_still_a_click(page: Page, under_way: int) -> None:
    page.goto(f"/runs/{under_way}/")
    verdict, button = page.locator("#verdict"), page.locator("#cancel")
    expect(verdict).to_contain_text(re.compile(r"\d of .* steps, "), timeout=RUN_MS)
    before = verdict.inner_text()
    button.hover()
    page.mouse.down()
    expect(verdict).not_to_have_text(before)
    page.mouse.up()
    expect(page.get_by_role("dialog", name="Cancel “Under way”?")).to_be_visible()
    page.keyboard.press("Escape")


@pytest.mark.full
def test_the_line_below_the_actions_is_as_wide_as_the_page_and_its_age_counts(
    page: Page, under_way: int, troubles: Troubles
) -> None:
    troubles.expected += JUMPED
    page.clock.install()
    page.goto(f"/runs/{under_way}/")
    line, actions, head = (page.locator(what).bounding_box() for what in (".state-line", ".actions", ".page-head"))
    assert line and actions and head
    assert line["y"] >= actions["y"] + actions["height"] and line["width"] == head["width"]
    expect(state(page).locator("time")).not_to_have_text(re.compile("h$"))
    page.clock.fast_forward("03:00:00")
    expect(state(page).locator("time")).to_have_text("3 h")


@pytest.mark.full
def test_after_back_an_age_counts_from_the_clock_of_the_last_page_that_was_loaded(page: Page, under_way: int) -> None:
    """The browser's cached page has the server's time of when it was made."""
    page.goto(f"/runs/{under_way}/")
    page.goto("/fleet/")
    key = "trainyard-clock-ahead"
    page.evaluate("(key) => sessionStorage.setItem(key, Number(sessionStorage.getItem(key)) - 3 * 3600 * 1000)", key)
    page.go_back()
    expect(state(page).locator("time")).to_have_text("3 h")


def test_cancel_asks_once_and_leaves_no_process(page: Page, under_way: int) -> None:
    page.goto(f"/runs/{under_way}/?tab=ranks")
    mark(page)
    pids = page.locator("#tab tbody td:nth-child(8)")
    expect(pids).to_have_text([re.compile(r"\d+")] * 2)
    ranks = [int(text) for text in pids.all_inner_texts()]
    assert all(processes.alive(pid) for pid in ranks)
    button, dialog = page.locator("#cancel"), page.get_by_role("dialog", name="Cancel “Under way”?")
    button.click()
    expect(dialog).to_contain_text("All its processes are stopped within 5 seconds.")
    for _ in range(2):
        dialog.get_by_role("button", name="Keep it").click()
        expect(dialog).to_be_hidden()
        expect(state(page)).to_have_attribute("data-state", "running")
        button.click()
    dialog.get_by_role("button", name="Cancel the run").click()
    expect(state(page)).to_have_attribute("data-state", "cancelled")
    expect(page.locator("#verdict")).to_contain_text(re.compile(r"Cancelled after \d+ steps?\. No process is left\."))
    expect(page.locator("#cancel")).to_have_count(0)
    assert not [pid for pid in ranks if processes.alive(pid)]


def test_what_analyses_gives_way_to_ranks_and_pages(yard: YardProcess) -> None:
    """The niceness values that the kernel reports for the processes of a running yard: only the analyst has a lower
    priority.
    """
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert yard.part("manage.py", "analyst").nice() == max(own, NICENESS)
    assert {yard.part(*words).nice() for words in (("gunicorn",), ("manage.py", "controller"), ("-m workers",))} == {
        own
    }


def test_tiles_are_one_column_beside_the_timeline(page: Page, stocked: dict[str, Any]) -> None:
    """Two by two they left half of the column empty, with curves as wide as a thumb."""
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"/runs/{stocked['single']}/")
    boxes = [one.bounding_box() for one in page.locator("#tiles > div").all()]
    curve = page.locator("#tiles svg").first.bounding_box()
    assert len({box["x"] for box in boxes if box}) == 1 and len(boxes) == 4
    assert curve and curve["width"] > 300


def test_tabs_that_go_on_beyond_the_edge_fade_there(page: Page, stocked: dict[str, Any]) -> None:
    """The last of them was out of sight on a screen of 1 024 px, and nothing said that there is one."""
    page.set_viewport_size({"width": 1024, "height": 768})
    page.goto(f"/runs/{stocked['single']}/")
    tabs = page.get_by_role("navigation", name="Details of the run")
    assert tabs.evaluate("(row) => row.scrollWidth > row.clientWidth")
    assert tabs.evaluate("(row) => getComputedStyle(row).maskImage") != "none"
