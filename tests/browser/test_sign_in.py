"""Who gets in, and what each role may do: strangers see only the sign-in page, viewers read and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.observed_page import LOST, PHONE, Troubles, look, sign_in
from tests.yard_process import YardProcess

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

ASKED = "/runs/?q=alpha"
CLOSED = ("/", "/studies/", "/runs/", "/runs/1/", "/runs/new/", "/compare/", "/fleet/", "/api/v1/runs", "/live/stream")
VIEWER, SECRET = "vera", "only-looks-9"
MAKE_VIEWER = f"""__import__("django.contrib.auth", fromlist=["x"]).get_user_model().objects.create_user(
    {VIEWER!r}, password={SECRET!r}).pk"""


def post(page: Page, path: str) -> None:
    """Posts an empty form to `path` as the user of this window, with the CSRF token of the current page."""
    with page.expect_navigation():
        page.evaluate(
            """(path) => {
              const form = Object.assign(document.createElement("form"), { method: "post", action: path });
              form.append(document.querySelector("input[name=csrfmiddlewaretoken]").cloneNode());
              document.body.append(form);
              form.submit();
            }""",
            path,
        )


def test_a_stranger_sees_nothing_but_the_sign_in(window: Callable[..., Page]) -> None:
    page = window()
    for path in CLOSED:
        answer = page.request.get(path, max_redirects=0)
        assert answer.status == 401 or "/accounts/login/" in answer.headers["location"], path
    page.goto("/fleet/")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.get_by_role("navigation")).to_have_count(0)
    page.set_viewport_size(PHONE)
    named = page.locator(".brand span").bounding_box()
    assert named and named["width"] > 40, "without links there is room for the name, which nothing else says"


def test_a_wrong_password_is_said_and_the_right_one_leads_on(
    window: Callable[..., Page], yard: YardProcess, stocked: dict[str, Any], troubles: Troubles
) -> None:
    troubles.expected += ["401"]  # a refresh of the list that was under way at the sign-out
    page = window()
    page.goto(ASKED)
    sign_in(page, "admin", "wrong-password")
    expect(page.get_by_role("alert")).to_contain_text("Name or password is wrong")
    expect(page.get_by_label("Name")).to_have_value("admin")
    expect(page.get_by_label("Password")).to_be_focused()
    sign_in(page, "admin", yard.password)
    page.wait_for_url(f"**{ASKED}")
    expect(page.get_by_role("link", name="Small DP")).to_be_visible()
    page.locator("summary", has_text="admin").click()
    page.get_by_role("button", name="Sign out").click()
    page.goto("/runs/")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_what_was_typed_outlives_a_session_that_had_ended(
    window: Callable[..., Page], yard: YardProcess, troubles: Troubles
) -> None:
    """Nothing is queued when the form is sent without a session, and after the sign-in the form is filled in as
    before.
    """
    troubles.expected += ["401"]  # a validation request that was under way
    page = window()
    page.goto("/runs/new/")
    sign_in(page, "admin", yard.password)
    page.get_by_label("Name", exact=True).fill("typed <b>before</b>")
    page.get_by_label("Layers", exact=True).fill("6")
    page.get_by_label("Pipeline stages").fill("2")
    page.get_by_label("Pipeline schedule").select_option("gpipe")
    page.context.clear_cookies(name="sessionid")
    page.get_by_role("button", name="Queue run").click()
    expect(page.get_by_role("status")).to_contain_text("You were signed out, so this was not taken")
    sign_in(page, "admin", yard.password)
    expect(page.get_by_role("status").filter(has_text="What you had typed is back")).to_be_visible()
    expect(page.locator("nav.presets [aria-current]")).to_have_count(0)
    expect(page.get_by_text("What stands below is not this preset any more.")).to_be_visible()
    expect(page.get_by_label("Name", exact=True)).to_have_value("typed <b>before</b>")
    expect(page.get_by_label("Layers", exact=True)).to_have_value("6")
    expect(page.get_by_label("Pipeline schedule")).to_have_value("gpipe")
    expect(page.locator("#feasibility")).to_contain_text("PP-GPipe")  # the restored form is validated, not an empty one
    page.goto("/runs/?q=typed")
    expect(page.get_by_text("No run matches")).to_be_visible()
    page.goto("/runs/new/")
    expect(page.get_by_label("Name", exact=True)).to_have_value("")


@pytest.mark.full
def test_a_page_that_outlives_its_session_stays_and_goes_on(
    window: Callable[..., Page], yard: YardProcess, troubles: Troubles
) -> None:
    """The sign-in page is never swapped into the form that is being filled in; after a sign-in in another tab, the form
    is validated and can be sent.
    """
    troubles.expected += ["401", "422"]
    page = window()
    page.goto("/runs/new/")
    sign_in(page, "admin", yard.password)
    page.get_by_label("Name", exact=True).fill("typed all along")
    page.context.clear_cookies(name="sessionid")
    page.get_by_label("Layers", exact=True).fill("6")
    note = page.get_by_role("status").filter(has_text="You are signed out")
    expect(note).to_be_visible()
    expect(page.get_by_label("Password")).to_have_count(0)
    with page.context.expect_page() as opened:
        note.get_by_role("link").click()
    sign_in(opened.value, "admin", yard.password)
    expect(opened.value.get_by_role("heading", name="Studies")).to_be_visible()
    page.get_by_label("Layers", exact=True).fill("many")
    expect(page.locator("#error-model__layers")).not_to_be_empty()
    expect(note).to_have_count(0)
    page.get_by_role("button", name="Queue run").click()
    expect(page.get_by_role("alert")).to_contain_text("everything you typed is still there")
    expect(page.get_by_label("Name", exact=True)).to_have_value("typed all along")


@pytest.mark.full
def test_a_live_page_that_is_looked_at_after_the_session_has_ended_says_so(
    window: Callable[..., Page], yard: YardProcess, stocked: dict[str, Any], troubles: Troubles
) -> None:
    troubles.expected.append("401")
    page = window()
    page.goto("/runs/?q=small")
    sign_in(page, "admin", yard.password)
    expect(page.get_by_role("link", name="Small DP")).to_be_visible()
    look(page, seen=False)
    page.context.clear_cookies(name="sessionid")
    look(page, seen=True)
    note = page.get_by_role("status").filter(has_text="You are signed out, so nothing here is live any more")
    expect(note).to_be_visible()
    note.get_by_role("link", name="Sign in again").click()
    sign_in(page, "admin", yard.password)
    page.wait_for_url("**/runs/?q=small")


@pytest.mark.full
def test_a_live_page_that_lost_the_server_and_then_the_session_stops_trying(
    window: Callable[..., Page], yard: YardProcess, stocked: dict[str, Any], troubles: Troubles
) -> None:
    troubles.expected += ["401", *LOST]
    page = window()
    page.goto("/runs/?q=small")
    with page.expect_response(lambda answer: "/live/stream" in answer.url and answer.ok):  # its scripts are all there
        sign_in(page, "admin", yard.password)
    expect(page.get_by_role("link", name="Small DP")).to_be_visible()
    page.context.set_offline(True)
    lost = page.get_by_text("Live updates are interrupted")
    expect(lost).to_be_visible()
    page.context.clear_cookies(name="sessionid")
    page.context.set_offline(False)
    expect(page.get_by_text("You are signed out, so nothing here is live any more")).to_be_visible()
    expect(lost).to_have_count(0)


@pytest.mark.full
def test_of_several_forms_at_one_address_the_one_that_was_filled_in_is_back(
    window: Callable[..., Page], yard: YardProcess, troubles: Troubles
) -> None:
    troubles.expected += ["401"]
    page = window()
    page.goto("/studies/new/?kind=fit")
    sign_in(page, "admin", yard.password)
    page.wait_for_url("**/studies/new/?kind=fit")
    page.get_by_label("Name", exact=True).fill("how many layers")
    page.context.clear_cookies(name="sessionid")
    page.locator("#study-form button[type=submit]").last.click()
    sign_in(page, "admin", yard.password)
    page.wait_for_url("**/studies/new/?kind=fit")
    expect(page.get_by_label("Name", exact=True)).to_have_value("how many layers")


def test_a_viewer_looks_and_changes_nothing(
    window: Callable[..., Page], yard: YardProcess, stocked: dict[str, Any], troubles: Troubles
) -> None:
    troubles.expected.append("status of 403")
    assert yard.query(MAKE_VIEWER)
    page, run, study = window(), stocked["dp"], stocked["study"]
    page.goto("/studies/")
    sign_in(page, VIEWER, SECRET)
    expect(page.get_by_role("navigation", name="Main")).to_be_visible()
    for path in ("/studies/", f"/studies/{study}/", "/runs/", "/runs/?q=nothing-like-this", f"/runs/{run}/", "/fleet/"):
        page.goto(path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        changing = page.get_by_role("main").locator("form[method=post], a[href$='/new/'], a[href$='/add/']")
        expect(changing).to_have_count(0)
        named = page.get_by_role("main").get_by_text("Cancel", exact=True).or_(page.get_by_text("Clone", exact=True))
        expect(named).to_have_count(0)
    refused = ("/runs/new/", "/studies/new/", f"/runs/{run}/cancel", f"/runs/{run}/edit", f"/studies/{study}/baseline/")
    for path in (*refused, f"/studies/{study}/add/", "/fleet/1/drain"):
        page.goto("/runs/")
        post(page, path)
        expect(page.get_by_role("heading", name="Not allowed")).to_be_visible()
        expect(page.get_by_role("link", name="Go to the studies")).to_be_visible()
