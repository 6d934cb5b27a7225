"""The page of a study while its runs go on: what is asked for again, how often, and what stays."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.observed_page import RUN_MS, SETTLE, TELL, Troubles, drawn, mark, same_page, until
from tests.yard_process import YardProcess, paced, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


ENDED_NOW = """Run.objects.filter(pk={run}).update(
    ended_at=__import__("django.utils.timezone", fromlist=["x"]).now())"""


@pytest.mark.full
def test_a_dear_page_asks_seldom_while_runs_go_on_and_soon_when_one_has_ended(
    page: Page, yard: YardProcess, stocked: dict[str, Any]
) -> None:
    asked: list[str] = []
    every, about = "**/changes.json*", {"run": stocked["runs"][0], "study": stocked["study"]}

    def dear(route: Route) -> None:
        answer = route.fetch()
        asked.append(route.request.url)
        route.fulfill(response=answer, headers={**answer.headers, "x-cost-ms": "60000"})

    page.route(every, dear)
    yard.query(ENDED_NOW.format(**about))  # a page of what ended long ago asks for nothing when its stream opens
    with page.expect_response(every):
        page.goto(f"/studies/{stocked['study']}/")
    yard.query(TELL.format(**about, what="points"))
    page.wait_for_timeout(3_000)
    assert len(asked) == 1, "it requested the page again for a mere step"
    with page.expect_response(every):
        yard.query(TELL.format(**about, what="summary"))
    assert len(asked) == 2


@pytest.mark.full
def test_findings_and_questions_are_not_fetched_for_each_run_of_a_busy_study(
    page: Page, yard: YardProcess, stocked: dict[str, Any]
) -> None:
    asked: list[str] = []
    answered: list[str] = []

    def dear(route: Route) -> None:
        asked.append(route.request.url)
        answer = route.fetch()
        route.fulfill(response=answer, headers={**answer.headers, "x-cost-ms": "60000"})
        answered.append(route.request.url)

    for part in ("findings", "questions"):
        page.route(f"**/{part}/*", dear)
    page.clock.install()
    with page.expect_request(STREAM) as stream:
        page.goto(f"/studies/{stocked['study']}/")
    page.evaluate(NOTE_NEWS, [stream.value.url, f"study:{stocked['study']}"])
    until(page, "() => window.connected")  # and with that each part is asked for, maybe a second time
    before = -1
    while before < 2 or before != len(asked) or before != len(answered):
        before = len(asked)
        page.wait_for_timeout(2_000)
    page.clock.pause_at(page.evaluate("() => Date.now()") / 1e3 + 1)
    for what in ("state", "summary"):
        yard.query(TELL.format(run=stocked["runs"][0], study=stocked["study"], what=what))
        until(page, "(what) => window.news.includes(what)", what)
        with page.expect_response("**/changes.json*"):
            page.clock.run_for(2_000)  # less than a part waits, however long all this takes
    page.wait_for_timeout(500)
    assert len(asked) == before


STREAM = re.compile(r"/js/stream\.[^/]*$")
NOTE_NEWS = """async ([stream, topic]) => {
  const { onConnection, subscribe } = await import(stream);
  window.news = [];
  subscribe(topic, (what) => window.news.push(...what));
  onConnection((connected) => (window.connected = connected));
}"""


@pytest.mark.full
def test_a_failed_answer_is_asked_for_again(
    page: Page, yard: YardProcess, stocked: dict[str, Any], troubles: Troubles
) -> None:
    troubles.expected += ["503"]
    every = "**/changes.json*"
    with page.expect_response(every):
        page.goto(f"/studies/{stocked['study']}/")
    page.route(every, lambda route: route.fulfill(status=503), times=1)
    with page.expect_response(lambda answer: "changes.json" in answer.url and answer.ok):
        yard.query(TELL.format(run=stocked["runs"][0], study=stocked["study"], what="summary"))


@pytest.mark.full
def test_findings_and_answers_keep_the_focus_when_they_are_made_again(
    page: Page, yard: YardProcess, stocked: dict[str, Any]
) -> None:
    page.goto(f"/studies/{stocked['study']}/")
    expect(page.locator("#asked dl")).to_be_visible()
    expect(page.locator("#findings")).not_to_contain_text("Judging")
    page.wait_for_timeout(3_000)  # for the fetches that the opened stream causes
    link = page.locator("#asked a").first
    link.focus()
    with page.expect_response("**/questions/*"), page.expect_response("**/findings/*"):
        yard.query(TELL.format(run=stocked["runs"][0], study=stocked["study"], what="state"))
    page.wait_for_timeout(500)
    expect(link).to_be_focused()


@pytest.mark.full
def test_other_runs_are_drawn_each_time_they_are_chosen(page: Page, stocked: dict[str, Any]) -> None:
    page.goto(f"/studies/{stocked['study']}/")
    for run in stocked["runs"]:
        page.get_by_text("Choose which runs are drawn").click()
        for box in page.locator("form[data-numbers] input").all():
            box.set_checked(box.get_attribute("value") == str(run))
        page.get_by_role("button", name="Draw these").click()
        page.wait_for_url(f"**/?show={run}#timeline")
        expect(page.locator("form[data-numbers] input:checked")).to_have_count(1)
        expect(page.locator(f"form[data-numbers] input[value='{run}']")).to_be_checked()


COUNT_DRAWN = """
window.drawn = {};
document.addEventListener("chartdrawn", ({ target: { dataset: { chart } } }) => {
  window.drawn[chart] = (window.drawn[chart] ?? 0) + 1;
});"""


def test_each_chart_of_an_ended_study_is_drawn_once(page: Page, yard: YardProcess, stocked: dict[str, Any]) -> None:
    yard.query(SETTLE.format(study=stocked["study"]))
    page.add_init_script(COUNT_DRAWN)
    page.goto(f"/studies/{stocked['study']}/")
    drawn(page, ["speedup", "breakdown"])
    page.wait_for_timeout(3_000)
    assert set(page.evaluate("() => Object.values(window.drawn)")) == {1}
    page.locator("[data-theme-toggle]").first.evaluate("(toggle) => toggle.click()")
    page.wait_for_timeout(2_000)
    assert page.evaluate("() => window.drawn.speedup") == 2


@pytest.mark.full
def test_a_comparison_draws_the_waterfall_as_soon_as_both_runs_have_ended(
    page: Page, yard: YardProcess, client: httpx.Client, stocked: dict[str, Any]
) -> None:
    other = yard.submit(client, paced(40, micro_batches=4), name="Compared while it runs")
    page.goto(f"/compare/?runs={stocked['single']},{other}")
    mark(page)
    expect(page.locator("#times .chart")).to_have_attribute("data-chart", "speedup")
    bars = page.locator("#times .chart[data-chart=waterfall] svg.main-svg").first
    expect(bars).to_be_visible(timeout=RUN_MS)
    expect(page.locator("#times .chart")).to_have_count(1)
    assert same_page(page)


RELOAD = """async () => {
  const { reload } = await import(document.querySelector("script[src*='js/charts.js']").src);
  return reload("gantt").then(() => "", ({ message }) => message);
}"""
GANTT, BOX = "**/gantt.json*", ".chart[data-chart=gantt] .chart-box"


@pytest.mark.full
def test_a_drawn_timeline_stays_when_newer_numbers_cannot_be_fetched(
    page: Page, stocked: dict[str, Any], troubles: Troubles
) -> None:
    troubles.expected += ["503", "401", "ERR_FAILED", "Failed to fetch"]
    page.goto(f"/studies/{stocked['study']}/")
    drawn(page, ["gantt"])
    canvases, said = page.locator(f"{BOX} canvas.bars"), page.locator(".chart[data-chart=gantt] .chart-note")
    bars = canvases.count()
    for route, sentence in (
        (lambda route: route.fulfill(status=503), "The server answered 503."),
        (lambda route: route.abort(), "The server could not be reached."),
        (lambda route: route.fulfill(body="<!doctype html>"), "The answer of the server was cut off."),
    ):
        page.route(GANTT, route)
        assert page.evaluate(RELOAD) == sentence
        expect(said).to_have_text(f"The newest numbers are not shown. {sentence} What is drawn is from before.")
        expect(canvases).to_have_count(bars)
        page.unroute_all(behavior="wait")
    assert page.evaluate(RELOAD) == ""
    expect(said).to_have_count(0)
    expect(canvases).to_have_count(bars)
    page.context.clear_cookies(name="sessionid")
    assert page.evaluate(RELOAD) == "You are signed out."
    expect(said).to_contain_text("You are signed out.")


@pytest.mark.full
def test_a_timeline_that_could_not_be_fetched_is_asked_for_again_and_drawn(
    page: Page, yard: YardProcess, stocked: dict[str, Any], troubles: Troubles
) -> None:
    troubles.expected.append("503")
    asked: list[str] = []

    def refuse(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(status=503)

    page.route(GANTT, refuse)
    page.goto(f"/studies/{stocked['study']}/")
    page.locator(BOX).scroll_into_view_if_needed()
    expect(page.locator(BOX)).to_have_text(
        "This chart could not be shown. The server answered 503. Reload the page to try again."
    )
    expect(page.locator(BOX)).not_to_have_attribute("role", "img")  # which would hide the text from a screen reader
    expect(page.locator(".chart[data-chart=gantt] figcaption")).to_have_text("Chart not shown")
    before = len(asked)
    yard.query(TELL.format(run=stocked["runs"][0], study=stocked["study"], what="summary"))
    wait_for("another attempt", lambda: len(asked) > before, each=lambda: page.wait_for_timeout(50))
    page.unroute_all(behavior="wait")
    expect(page.locator(f"{BOX} svg.main-svg").first).to_be_visible()  # without further news
    expect(page.locator(BOX)).to_have_role("img")
    title = page.locator(".chart[data-chart=gantt] figcaption").inner_text()
    assert title != "Chart not shown"
    expect(page.locator(BOX)).to_have_attribute("aria-label", title)


PULSES = """document.addEventListener("DOMContentLoaded", () => {
  window.pulses = 0;
  document.addEventListener("animationstart", ({ animationName }) => (window.pulses += animationName === "pulse"));
})"""


def test_a_list_of_studies_in_which_nothing_has_changed_does_not_pulse_when_it_is_opened(
    page: Page, stocked: dict[str, Any]
) -> None:
    page.add_init_script(PULSES)
    with page.expect_response("**/studies/changes.json*"):
        page.goto("/studies/")
    page.wait_for_timeout(300)
    assert page.evaluate("window.pulses") == 0
