"""Runs list, Compare and fleet: the address holds the state of the view, and a click says beforehand what it does."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, Request, Response, Route, expect

from tests.browser.observed_page import PHONE, RUN_MS, TELL, Troubles, endless, mark, overflow, same_page, settle
from tests.yard_process import YardProcess, tiny, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def names(page: Page) -> Any:
    return page.locator("#results tbody th a")


def column(page: Page, title: str) -> Any:
    return page.locator("th a.sort", has_text=re.compile(f"^{title}$"))


def test_filters_and_order_stand_in_the_address_and_go_back(page: Page, stocked: dict[str, Any]) -> None:
    page.goto("/runs/")
    mark(page)
    search, tag = page.get_by_label("Search"), page.get_by_label("Tag")
    search.press_sequentially("small")
    page.wait_for_url(re.compile(r"[?&]q=small"))
    expect(names(page)).to_have_text(["Small DP", "Small single"])
    tag.select_option("pair")
    page.wait_for_url(re.compile(r"tag=pair"))
    expect(names(page)).to_have_text(["Small DP"])
    assert same_page(page)
    with page.expect_event("load"):  # only a page whose scripts have run reacts to the next step in the history
        page.go_back()
    expect(names(page)).to_have_text(["Small DP", "Small single"])
    expect(tag).to_have_value("")
    expect(search).to_have_value("small")
    with page.expect_event("load"):
        page.go_forward()
    expect(names(page)).to_have_text(["Small DP"])
    expect(tag).to_have_value("pair")
    page.reload()
    expect(names(page)).to_have_text(["Small DP"])
    expect(search).to_have_value("small")


def test_filters_that_leave_no_run_are_cleared_where_it_is_said(page: Page, stocked: dict[str, Any]) -> None:
    page.goto("/runs/?q=small&tag=pair")
    expect(names(page)).to_have_text(["Small DP"])
    with page.expect_navigation():
        page.get_by_role("link", name="Clear").click()
    page.get_by_role("checkbox", name="Failed").check()
    page.wait_for_url(re.compile(r"state=failed"))
    expect(names(page)).to_have_text(["Too large"])
    page.get_by_label("Owner").select_option("admin")
    page.get_by_label("Strategy").select_option("DP")
    page.wait_for_url(re.compile(r"(?=.*owner=admin)(?=.*strategy=DP)(?=.*state=failed)"))
    expect(page.get_by_role("heading", name="No run matches")).to_be_visible()
    page.get_by_role("link", name="Clear the filters").click()
    expect(names(page).filter(has_text="Small DP")).to_be_visible()


def test_a_tag_of_the_address_that_the_filter_does_not_list_stays_while_another_is_changed(page: Page) -> None:
    """As of a run that got its tag since the filters were listed."""
    page.goto("/runs/?tag=of-no-run-yet")
    tag = page.get_by_label("Tag")
    expect(tag).to_have_value("of-no-run-yet")
    page.get_by_role("checkbox", name="Failed").check()
    page.wait_for_url(re.compile(r"(?=.*state=failed)(?=.*tag=of-no-run-yet)"))
    tag.select_option("")
    page.wait_for_url(re.compile(r"state=failed$"))


def test_every_column_sorts_and_a_filter_keeps_the_order(page: Page, stocked: dict[str, Any]) -> None:
    page.goto("/runs/?tag=alpha")
    down, up = ["Small DP", "Small single"], ["Small single", "Small DP"]
    for title, sort, order in (("Devices", "-devices", down), ("Devices", "devices", up), ("Name", "name", down)):
        column(page, title).click()
        page.wait_for_url(re.compile(rf"sort={sort}($|&)"))
        expect(names(page)).to_have_text(order)
    column(page, "#").click()
    page.wait_for_url(re.compile(r"tag=alpha$"))
    column(page, "#").click()
    page.wait_for_url(re.compile(r"sort=id"))
    expect(page.locator("th[aria-sort=ascending]")).to_have_text("#")
    page.get_by_label("Search").press_sequentially("small")
    page.wait_for_url(re.compile(r"(?=.*q=small)(?=.*sort=id)"))
    expect(names(page)).to_have_text(["Small single", "Small DP"])


def by_news(request: Request) -> bool:
    """Whether the list sent the request because of news, not because a user filtered or sorted it."""
    return "hx-request" in request.headers and "hx-current-url" not in request.headers


def hold_refresh(page: Page) -> list[Route]:
    """Holds the next request that the list sends by itself; the test continues it."""
    held: list[Route] = []

    def one(route: Route) -> None:
        if held or not by_news(route.request):
            route.continue_()
        else:
            held.append(route)

    page.route("**/runs/**", one)
    return held


def test_an_answer_of_the_list_as_it_was_is_not_put_under_a_filter(page: Page, stocked: dict[str, Any]) -> None:
    held = hold_refresh(page)
    with page.expect_request(by_news):
        page.goto("/runs/?tag=alpha")
    page.get_by_label("Search").press_sequentially("single")
    page.wait_for_url(re.compile("q=single"))
    expect(names(page)).to_have_text(["Small single"])

    def filtered(answer: Response) -> bool:
        return by_news(answer.request) and "q=single" in answer.url

    with page.expect_response(filtered):  # the request is repeated for the filtered list
        held[0].continue_()
    expect(names(page)).to_have_text(["Small single"])
    expect(page.locator("#list-changed")).to_be_hidden()


def test_the_new_list_comes_when_it_is_asked_for_and_the_keyboard_goes_on_in_it(
    page: Page, yard: YardProcess, client: httpx.Client, stocked: dict[str, Any]
) -> None:
    page.goto("/runs/")
    expect(names(page).first).to_be_visible()
    newest = yard.submit(client, tiny(), name="Newcomer")
    said = page.get_by_role("status").filter(has_text="The list has changed")
    expect(said).to_be_visible()
    yard.wait_state(client, newest, "succeeded")
    held = hold_refresh(page)
    yard.query(TELL.format(run=newest, study=None, what="state"))
    # the end of the run may have sent a request just before: one is held, whichever it is
    wait_for("a request of the list", lambda: bool(held), each=lambda: page.wait_for_timeout(100))
    said.get_by_role("button").press("Enter")  # while another request is in progress
    held[0].continue_()
    expect(names(page).first).to_have_text("Newcomer")
    expect(said).to_be_hidden()
    expect(page.get_by_role("region", name="Runs")).to_be_focused()


def test_the_first_run_appears_by_itself_in_a_list_that_was_empty(
    page: Page, yard: YardProcess, client: httpx.Client
) -> None:
    with page.expect_response(lambda answer: by_news(answer.request)):
        page.goto("/runs/?q=First+of+its+name")
    expect(page.get_by_role("heading", name="No run matches")).to_be_visible()
    mark(page)
    run = yard.submit(client, tiny(), name="First of its name")
    expect(names(page)).to_have_text(["First of its name"])
    expect(page.locator("#list-changed")).to_be_hidden()
    assert same_page(page)
    yard.wait_state(client, run, "succeeded")


def test_the_focus_stays_on_the_column_by_which_the_list_is_sorted(page: Page, stocked: dict[str, Any]) -> None:
    page.goto("/runs/?tag=alpha")
    for order in ("ascending", "descending"):
        column(page, "Name").press("Enter")
        expect(page.locator(f"th[aria-sort={order}]")).to_have_text("Name")
        expect(column(page, "Name")).to_be_focused()


def test_a_link_of_a_new_list_works_in_place_from_its_first_moment(page: Page, stocked: dict[str, Any]) -> None:
    page.goto("/runs/?tag=alpha")
    mark(page)
    page.evaluate(
        """() => document.body.addEventListener("htmx:afterSwap", () => setTimeout(() => {
          [...document.querySelectorAll("th a.sort")].find((a) => a.textContent.trim().startsWith("Name")).click();
        }), { once: true })"""
    )
    column(page, "Name").press("Enter")
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Name")
    expect(column(page, "Name")).to_be_focused()
    assert same_page(page)


def test_selected_runs_are_compared(page: Page, stocked: dict[str, Any]) -> None:
    page.goto("/runs/?tag=alpha")
    compare = page.locator("[data-compare]")
    expect(compare).to_be_disabled()
    for name in ("Small single", "Small DP"):
        page.get_by_role("checkbox", name=re.compile(f", {name}$")).check()
    expect(compare).to_have_text("Compare 2 selected")
    compare.click()
    page.wait_for_url(re.compile(r"/compare/\?runs="))
    said = page.locator("#verdict")
    expect(said).to_contain_text(re.compile(r"is \d+\.\d\dx"))
    expect(page.get_by_role("region", name="Fields of the specs that differ")).to_contain_text("Data parallel")
    first = said.inner_text()
    page.get_by_role("link", name="Swap baseline").click()
    expect(said).not_to_have_text(first)
    expect(page.locator(".chip.on")).to_contain_text("baseline")


@pytest.mark.full
def test_a_run_that_has_left_a_filtered_list_is_not_said_to_run(
    page: Page, yard: YardProcess, client: httpx.Client, cancel_after: Callable[[int], int]
) -> None:
    run = cancel_after(yard.submit(client, endless(), name="Leaves the list"))
    row = page.locator(f"#run-{run}")
    page.goto("/runs/?q=Leaves&state=queued&state=starting&state=running&state=cancelling")
    expect(row).to_contain_text("Running")
    client.post(f"/api/v1/runs/{run}/cancel")
    yard.wait_state(client, run, "cancelled")
    expect(row).to_contain_text("not in the new list")
    expect(row).not_to_contain_text("Running")
    page.get_by_role("button", name="Show the new list").click()
    expect(page.get_by_role("heading", name="No run matches")).to_be_visible()


def test_the_list_follows_a_run_in_place(
    page: Page, yard: YardProcess, client: httpx.Client, cancel_after: Callable[[int], int]
) -> None:
    in_front = cancel_after(yard.submit(client, endless(), name="In front of it"))
    run = yard.submit(client, tiny(), name="Followed")
    page.goto("/runs/?q=Followed")
    mark(page)
    expect(page.locator(f"#run-{run}")).to_contain_text("Queued")
    client.post(f"/api/v1/runs/{in_front}/cancel")
    expect(page.locator(f"#run-{run}")).to_contain_text("Succeeded", timeout=RUN_MS)
    assert same_page(page)


@pytest.mark.full
def test_a_failed_answer_is_asked_for_again(
    page: Page, yard: YardProcess, stocked: dict[str, Any], troubles: Troubles
) -> None:
    troubles.expected += ["503"]
    with page.expect_response(lambda answer: by_news(answer.request)):
        page.goto("/runs/?q=small")
    page.route("**/runs/**", lambda route: route.fulfill(status=503), times=1)
    with page.expect_response(lambda answer: by_news(answer.request) and answer.ok):
        yard.query(TELL.format(run=stocked["single"], study=None, what="state"))


OF_COLOUR = """async ([picture, colour]) => {
  const image = new Image();
  image.src = picture;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const { data } = context.getImageData(0, 0, image.width, image.height);
  const [red, green, blue] = colour.match(/\\d+/g).map(Number);
  let count = 0;
  for (let i = 0; i < data.length; i += 4) count += data[i] === red && data[i + 1] === green && data[i + 2] === blue;
  return count;
}"""
"""How many pixels of a picture (its address) have the colour."""


def test_who_held_which_device_is_saved_as_a_picture(page: Page, stocked: dict[str, Any], tmp_path: Path) -> None:
    page.goto("/fleet/")
    held = page.locator("[data-chart=devices]")
    held.locator("#held-numbers > summary").click()
    with page.expect_download() as saved:
        held.get_by_role("button", name="Save the picture as PNG").click()
    assert saved.value.suggested_filename == "Fleet devices.png"
    saved.value.save_as(tmp_path / "picture.png")
    picture = f"data:image/png;base64,{base64.b64encode((tmp_path / 'picture.png').read_bytes()).decode()}"
    lane = held.locator(".lane-bars").first.evaluate("lane => getComputedStyle(lane).backgroundColor")
    assert page.evaluate(OF_COLOUR, [picture, lane]) > 10_000, "the lanes are painted, whose bars may be a pixel wide"


def test_the_dot_of_a_host_whose_heartbeat_stops_changes_by_itself(page: Page, yard: YardProcess) -> None:
    page.clock.install()
    page.goto("/fleet/")
    mark(page)
    dot, worker = page.locator(".beat"), yard.part("-m workers")
    expect(dot).to_have_attribute("data-level", "fresh")
    worker.suspend()
    try:
        page.clock.fast_forward(7_000)  # more than a lease; a heartbeat that was on its way puts it off by one
        expect(dot).to_have_attribute("data-level", "silent")
    finally:
        worker.resume()
    expect(dot).to_have_attribute("data-level", "fresh")
    assert same_page(page)


@pytest.fixture
def enabled_after(yard: YardProcess) -> Iterator[None]:
    """All workers take runs again after the test, whatever happened in it."""
    yield
    yard.query('__import__("dashboard.fleet.models", fromlist=["x"]).Worker.objects.update(draining=False)')


@pytest.mark.usefixtures("enabled_after")
@pytest.mark.full
def test_draining_is_said_before_and_keeps_new_runs_away(
    page: Page, yard: YardProcess, client: httpx.Client, cancel_after: Callable[[int], int]
) -> None:
    held = cancel_after(yard.submit(client, endless(), name="On the host"))
    page.goto("/fleet/")
    host = page.locator(".host")
    expect(host).to_contain_text("Draining lets “On the host” finish; no new run starts here.")
    host.get_by_role("button", name=re.compile("^Drain ")).click()
    expect(page.get_by_text("takes no new run; what runs on it finishes")).to_be_visible()
    expect(host).to_contain_text("draining")
    expect(host).to_contain_text("It takes runs again at once.")
    waits = cancel_after(yard.submit(client, tiny(), name="Kept away"))
    client.post(f"/api/v1/runs/{held}/cancel")
    mark(page)
    queue = page.locator(".queue")
    expect(queue).to_contain_text("Kept away")
    expect(queue).to_contain_text(re.compile(r"Waits for a worker: \S+ is draining"))
    yard.wait_state(client, held, "cancelled")
    assert yard.run_of(client, waits)["state"] == "queued"
    assert same_page(page)
    host.get_by_role("button", name=re.compile("^Enable ")).click()
    expect(page.get_by_text("takes runs again.")).to_be_visible()
    yard.wait_state(client, waits, "succeeded")


@pytest.mark.usefixtures("stocked")
def test_on_a_phone_the_filters_open_below_the_search(window: Callable[..., Page], session: Any) -> None:
    """They took the first screen of the list, which began below it."""
    page = window(storage_state=session, viewport=PHONE)
    page.goto("/runs/")
    more, owner = page.get_by_role("button", name="Filters"), page.get_by_label("Owner")
    expect(page.get_by_label("Search")).to_be_visible()
    expect(owner).to_be_hidden()
    more.click()
    expect(owner).to_be_visible()
    expect(more).to_have_attribute("aria-expanded", "true")
    owner.select_option("admin")
    page.wait_for_url(re.compile("owner=admin"))
    page.reload()
    expect(owner, "one that is in use is in sight").to_be_visible()
    more.click()
    expect(owner).to_be_hidden()
    page.set_viewport_size({"width": 1440, "height": 900})
    expect(owner).to_be_visible()
    expect(more).to_be_hidden()


@pytest.mark.full
def test_no_page_of_a_live_run_scrolls_sideways_on_a_phone(
    window: Callable[..., Page],
    session: Any,
    yard: YardProcess,
    client: httpx.Client,
    cancel_after: Callable[[int], int],
) -> None:
    run = cancel_after(yard.submit(client, endless(), name="Under way on a phone"))
    queued = cancel_after(yard.submit(client, tiny(), name="z" * 100))
    page = window(storage_state=session, viewport=PHONE)
    page.goto(f"/runs/{run}/")
    expect(page.locator("#verdict")).to_contain_text(re.compile(r"\d of .* steps, "), timeout=RUN_MS)
    tabs = [f"/runs/{run}/?tab={tab}" for tab in ("timeline", "metrics", "ranks", "logs", "events")]
    for path in (*tabs, f"/runs/{queued}/", f"/runs/{queued}/?tab=logs", "/runs/", "/fleet/", "/studies/"):
        page.goto(path)
        settle(page)
        assert overflow(page) == [], path


def test_a_column_appears_with_the_first_value_in_it_and_every_cell_stays_in_its_own(
    page: Page, yard: YardProcess, client: httpx.Client, stocked: dict[str, Any]
) -> None:
    """The held-out loss is a column only where a run of the page has one."""
    with page.expect_response(lambda answer: by_news(answer.request)):
        page.goto("/runs/?q=small")
    expect(names(page)).to_have_text(["Small DP", "Small single"])
    expect(column(page, "Held out")).to_have_count(0)
    run = int(page.locator("tr[data-run]").first.get_attribute("data-run") or 0)
    try:
        yard.query(f"Run.objects.filter(pk={run}).update(held_out=2.5)")
        client.patch(f"/api/v1/runs/{run}", json={"notes": "evaluated"})  # tells open lists
        expect(column(page, "Held out")).to_be_visible()
        row = page.locator(f"#run-{run}")
        expect(row.locator("[data-title='Held out']")).to_have_text("2.50")
        assert row.locator("td, th").count() == page.locator(".runs-table thead th").count()
        page.set_viewport_size({"width": 1440, "height": 900})
        assert page.eval_on_selector(".runs-table", "table => table.offsetWidth <= table.parentElement.clientWidth")
    finally:
        yard.query(f"Run.objects.filter(pk={run}).update(held_out=None, notes='')")
