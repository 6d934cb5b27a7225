"""What was typed into a long form is kept until an answer has succeeded."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.observed_page import LOST, Troubles
from tests.yard_process import YardProcess

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def page_of(yard: YardProcess, name: str) -> str:
    return str(yard.query(f"__import__('django.template.loader', fromlist=['x']).render_to_string({name!r})"))


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
    body = page_of(yard, error)

    def broken(route: Route) -> None:
        if route.request.method == "POST":
            route.fulfill(status=500 if error == "500.html" else 503, content_type="text/html", body=body)
        else:
            route.fallback()

    page.route("**/runs/new/", broken)
    page.get_by_role("button", name="Queue run").click()
    said = page.get_by_role("status")
    expect(said).to_contain_text(f"{fate} What you typed is kept in this tab")
    page.goto("/runs/")  # to look there first
    page.goto("/runs/new/?preset=pp2")
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
    page.evaluate("() => history.back()")
    page.wait_for_url("**/runs/new/?preset=pp2")
    expect(page.get_by_label("Name", exact=True)).to_have_value("sent to nobody")
