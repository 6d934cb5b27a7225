"""Requests that fail or hang: the page says that what stands there is no answer, and asks again."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.observed_page import LOST, TELL, Troubles, mark, same_page, until
from tests.yard_process import YardProcess, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
NOTE = "[data-unanswered]"
FAILED = [*LOST, "htmx:", "Response Status Error Code"]
CHECK = "**/runs/new/check"


@pytest.mark.full
def test_a_check_of_a_new_run_that_fails_is_said_above_the_answer_before(page: Page, troubles: Troubles) -> None:
    troubles.expected += FAILED
    page.goto("/runs/new/?preset=pp2")
    panel, verdict = page.locator("#feasibility"), page.locator("#panel-verdict")
    expect(verdict).to_contain_text("Yes.")
    layers = page.get_by_label("Layers", exact=True)
    for fail, why in (
        (lambda route: route.abort(), "the yard could not be reached"),
        (lambda route: route.fulfill(status=503), "the yard answered 503"),
    ):
        page.route(CHECK, fail)
        layers.fill("6")
        said = panel.locator(NOTE)
        expect(said).to_contain_text(f"This change got no answer: {why}. Below stands the answer before.")
        expect(said).to_have_attribute("role", "alert")
        expect(panel).not_to_have_attribute("aria-busy", "true")
        page.unroute_all(behavior="wait")
        layers.fill("many")  # the repeated request has the values of now
        expect(page.locator("#error-model__layers")).not_to_be_empty()
        expect(said).to_have_count(0)


TYPE = """(input, value) => {
  input.value = value;
  input.dispatchEvent(new Event("input", { bubbles: true }));
}"""
"""Without the change that follows when the field is left, which would be another request."""


def test_try_again_asks_with_the_values_of_the_form_and_the_part_is_busy_meanwhile(
    page: Page, troubles: Troubles
) -> None:
    troubles.expected += FAILED
    page.goto("/runs/new/?preset=pp2")
    panel, held = page.locator("#feasibility"), list[Route]()
    page.route(CHECK, lambda route: route.abort())
    page.get_by_label("Layers", exact=True).evaluate(TYPE, "many")
    again = panel.locator(NOTE).get_by_role("button")
    expect(again).to_have_text("Try again")
    page.unroute_all(behavior="wait")
    page.route(CHECK, lambda route: held.append(route))
    again.click()
    expect(again).to_have_text("Trying again…")
    expect(panel).to_have_attribute("aria-busy", "true")
    wait_for("the request", lambda: held, each=lambda: page.wait_for_timeout(50))
    held[0].continue_()
    expect(panel.locator("#panel-verdict")).to_contain_text("Not like this")
    expect(panel.locator(NOTE)).to_have_count(0)
    expect(panel).not_to_have_attribute("aria-busy", "true")


@pytest.mark.full
def test_a_part_that_was_never_answered_says_so_in_place_of_its_waiting_words(page: Page, troubles: Troubles) -> None:
    troubles.expected += FAILED
    page.route("**/planner/questions*", lambda route: route.fulfill(status=500))
    page.goto("/planner/")
    waits = page.get_by_text("Searching for the answers…")
    waits.evaluate("words => words.parentElement.scrollIntoView()")
    said = page.locator(f"{NOTE}[data-unanswered=first]")
    expect(said).to_contain_text("No answer came: the yard answered 500.")
    expect(waits).to_be_hidden()
    page.unroute_all(behavior="wait")
    said.get_by_role("button", name="Try again").click()
    expect(said).to_have_count(0)
    expect(waits).to_have_count(0)


@pytest.mark.full
def test_a_filter_of_the_list_whose_answer_hangs_is_given_up_and_said(
    page: Page, stocked: dict[str, Any], troubles: Troubles
) -> None:
    troubles.expected += FAILED
    page.goto("/runs/")
    assert page.evaluate("() => htmx.config.timeout") == 60_000
    page.evaluate("() => { htmx.config.timeout = 500; }")
    page.route("**/runs/?q=*", lambda _: None)
    page.get_by_label("Search").fill("hostile")
    said = page.locator(f"#results > {NOTE}")
    expect(said).to_contain_text("This change got no answer: the yard took too long.")
    expect(page.get_by_role("link", name="Small DP")).to_be_visible()
    page.unroute_all(behavior="ignoreErrors")
    page.evaluate("() => { htmx.config.timeout = 60000; }")
    page.get_by_label("Search").fill("nothing-like-this")
    expect(page.get_by_text("No run matches")).to_be_visible()
    expect(said).to_have_count(0)


SHORT = "const limit = AbortSignal.timeout.bind(AbortSignal); AbortSignal.timeout = (ms) => limit(ms / 20);"
"""Fetches are given up after a twentieth of the time: 1.5 s in place of 30."""


def test_a_live_part_whose_answer_hangs_is_asked_for_again(
    page: Page, yard: YardProcess, stocked: dict[str, Any], troubles: Troubles
) -> None:
    troubles.expected += ["TimeoutError", "AbortError"]
    run, held = stocked["single"], list[Route]()
    page.add_init_script(SHORT)
    page.goto(f"/runs/{run}/")
    mark(page)
    page.wait_for_timeout(1_000)  # the stream opens
    page.route("**/part/head", lambda route: held.append(route), times=1)
    with page.expect_response(lambda answer: answer.url.endswith("/part/head") and answer.ok):
        yard.query(TELL.format(run=run, study=None, what="state"))
    assert held and same_page(page)


MAKE_PROFILE = """(lambda factory, users, fleet: factory.profiled(
    users.get_user_model().objects.get(username="admin"), fleet.Worker.objects.order_by("pk").first(),
    factory.PROFILED).pk)(*(
    __import__(name, fromlist=["x"]) for name in (
        "tests.dashboard.factory", "django.contrib.auth", "dashboard.fleet.models")))"""
UNMAKE = """__import__("dashboard.ledger.models", fromlist=["x"]).Profile.objects.filter(pk={pk}).delete()[0]"""


@pytest.fixture
def profile(yard: YardProcess, client: Any) -> Any:
    pk = yard.query(MAKE_PROFILE)
    yield pk
    yard.query(UNMAKE.format(pk=pk))


def test_what_is_typed_while_plans_for_this_fleet_are_asked_for_stays(page: Page, profile: int) -> None:
    page.goto("/partition/fleet/")
    mark(page)
    held: list[Route] = []
    page.route("**/partition/fleet/?*devices=0*", lambda route: held.append(route))
    page.get_by_label("Devices", exact=True).fill("0")
    page.get_by_label("Devices", exact=True).press("Tab")
    memory = page.get_by_label("Memory a device, MiB")
    expect(memory).to_be_focused()
    page.keyboard.type("40")
    until(page, "() => document.querySelector('#result').getAttribute('aria-busy') === 'true'")
    wait_for("the request", lambda: held, each=lambda: page.wait_for_timeout(50))
    held[0].continue_()
    expect(page.locator("#error-devices")).to_contain_text("Devices must be a whole number")
    expect(page.locator("#result")).to_contain_text("This cannot be planned")
    expect(memory).to_be_focused()
    expect(memory).to_have_value("40")
    assert same_page(page)
