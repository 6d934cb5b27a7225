"""What was typed into a long form is kept until an answer has succeeded."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.observed_page import LOST, Troubles
from tests.yard_process import YardProcess, tiny

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def page_of(yard: YardProcess, name: str) -> str:
    return str(yard.query(f"__import__('django.template.loader', fromlist=['x']).render_to_string({name!r})"))


def refuse(page: Page, address: str, status: int, body: str, method: str = "POST") -> None:
    """Answers requests of `method` with that page; previews, which htmx sends, are answered by the yard."""

    def answer(route: Route) -> None:
        if route.request.method == method and "hx-request" not in route.request.headers:
            route.fulfill(status=status, content_type="text/html", body=body)
        else:
            route.fallback()

    page.route(address, answer)


@pytest.fixture
def refused(page: Page, yard: YardProcess, troubles: Troubles) -> Callable[[str], None]:
    """Makes the yard refuse what is sent to an address, as if its disk were full."""
    troubles.expected += ["status of 503"]
    return lambda address: refuse(page, address, 503, page_of(yard, "disk_full.html"))


def open_again(page: Page) -> None:
    page.get_by_role("link", name="open the form again").click()


def back(page: Page) -> Locator:
    return page.get_by_role("status").filter(has_text="What you had typed is back")


@pytest.mark.parametrize(
    ("error", "fate"),
    [
        ("disk_full.html", "This was not taken when you sent it."),
        ("500.html", "This may not have been taken when you sent it; look at Runs first."),
        ("503.html", "This may not have been taken when you sent it; look at Runs first."),
    ],
)
def test_what_was_typed_outlives_an_answer_that_is_an_error(
    page: Page, yard: YardProcess, troubles: Troubles, error: str, fate: str
) -> None:
    troubles.expected += ["status of 50"]
    page.goto("/runs/new/?preset=pp2")
    page.get_by_label("Name", exact=True).fill("typed before it broke")
    refuse(page, "**/runs/new/", 500 if error == "500.html" else 503, page_of(yard, error))
    page.get_by_role("button", name="Queue run").click()
    said = page.get_by_role("status")
    expect(said).to_contain_text(f"{fate} What you typed is kept in this tab")
    page.goto("/runs/")  # to look there first
    with page.expect_request(lambda asked: asked.method == "POST"):
        page.goto("/runs/new/?preset=pp2")  # what depends on the values is asked for anew
    expect(said.filter(has_text=f"{fate} What you had typed is back")).to_be_visible()
    expect(page.get_by_label("Name", exact=True)).to_have_value("typed before it broke")
    page.goto("/runs/new/?preset=pp2")
    expect(page.get_by_label("Name", exact=True)).not_to_have_value("typed before it broke")


def test_what_was_typed_is_back_when_the_yard_could_not_be_reached(page: Page, troubles: Troubles) -> None:
    troubles.expected += LOST
    page.goto("/runs/new/?preset=pp2")
    page.get_by_label("Name", exact=True).fill("sent to nobody")
    page.context.set_offline(True)
    page.get_by_role("button", name="Queue run").click()
    page.wait_for_timeout(1_000)  # the browser's own page
    page.context.set_offline(False)
    page.evaluate("() => void setTimeout(() => history.back())")  # not go_back(): it waits for a load
    page.wait_for_url("**/runs/new/?preset=pp2")
    expect(page.get_by_label("Name", exact=True)).to_have_value("sent to nobody")


def test_a_refused_run_of_a_loaded_spec_opens_in_the_form_again(page: Page, refused: Callable[[str], None]) -> None:
    """The address that the spec was sent to takes no GET."""
    refused("**/runs/new/")
    page.goto("/runs/new/")
    page.get_by_text("Load a spec", exact=True).click()
    page.locator("#spec-form textarea").fill(json.dumps(tiny(7, pp=2)))
    page.get_by_role("button", name="Fill the form").click()
    page.wait_for_url("**/runs/new/spec")
    name, steps = page.get_by_label("Name", exact=True), page.locator("#f-train__steps")
    expect(steps).to_have_value("7")
    name.fill("from a file")
    page.get_by_role("button", name="Queue run").click()
    open_again(page)
    expect(back(page)).to_be_visible()
    expect(name).to_have_value("from a file")
    expect(steps).to_have_value("7")
    expect(page.locator("#f-parallel__pp")).to_have_value("2")
    page.goto("/runs/new/")
    expect(steps).not_to_have_value("7")


@pytest.mark.full
def test_a_form_whose_page_fails_does_not_keep_new_run_closed(
    page: Page,
    yard: YardProcess,
    client: httpx.Client,
    refused: Callable[[str], None],
    troubles: Troubles,
) -> None:
    """As that of a clone whose run has been deleted."""
    troubles.expected += ["status of 404", "status of 500"]
    refused("**/runs/new/")
    run = yard.submit(client, tiny(), name="Soon deleted")
    yard.wait_state(client, run, "succeeded")
    clone, new_run = f"/runs/{run}/clone", page.get_by_role("heading", name="New run", exact=True)
    page.goto(clone)
    page.get_by_label("Name", exact=True).fill("its copy")
    page.get_by_role("button", name="Queue run").click()
    expect(page.get_by_role("link", name="open the form again")).to_be_visible()
    refuse(page, f"**{clone}", 500, page_of(yard, "500.html"), "GET")
    page.goto("/runs/new/", wait_until="commit")
    page.wait_for_url(f"**{clone}")
    expect(page.get_by_role("heading", name="Something broke")).to_be_visible()
    page.goto("/runs/new/")
    expect(new_run).to_be_visible()
    page.unroute(f"**{clone}")
    yard.query(f"Run.objects.filter(pk={run}).delete()")
    page.goto(clone)
    expect(page.get_by_role("heading", name="Not here")).to_be_visible()
    assert page.evaluate("sessionStorage.getItem('trainyard-draft')") is None
    page.goto("/runs/new/")
    expect(new_run).to_be_visible()
    expect(page.get_by_label("Name", exact=True)).not_to_have_value("its copy")


def test_a_form_that_stood_at_a_fragment_opens_again(page: Page, refused: Callable[[str], None]) -> None:
    """A link that only adds a fragment would stay on the page of the error."""
    refused("**/runs/new/")
    page.goto("/runs/new/#f-train__steps")
    page.get_by_label("Name", exact=True).fill("below the fold")
    page.get_by_role("button", name="Queue run").click()
    open_again(page)
    expect(back(page)).to_be_visible()
    expect(page.get_by_label("Name", exact=True)).to_have_value("below the fold")


def test_a_study_with_wrong_fields_that_is_then_refused_opens_as_its_kind(
    page: Page, refused: Callable[[str], None], troubles: Troubles
) -> None:
    troubles.expected += ["status of 422"]
    page.goto("/studies/new/?kind=sweep")
    values, send = page.get_by_label("Values", exact=True), page.locator("#study-form button[type=submit]").last
    page.get_by_label("Name", exact=True).fill("Two micro-batches")
    values.fill("")
    send.click()
    expect(page.get_by_role("alert").filter(has_text="Not queued.")).to_be_visible()
    refused("**/studies/new/**")
    values.fill("1, 2")
    send.click()
    open_again(page)
    expect(back(page)).to_be_visible()
    expect(page.get_by_label("Name", exact=True)).to_have_value("Two micro-batches")
    expect(values).to_have_value("1, 2")
