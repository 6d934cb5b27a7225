"""The page of a study while its runs go on: what is asked for again, how often, and what stays."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.observed_page import TELL, Troubles, drawn
from tests.yard_process import YardProcess

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


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
    with page.expect_response(every):
        page.goto(f"/studies/{stocked['study']}/")
    yard.query(TELL.format(**about, what="points"))
    page.wait_for_timeout(3_000)
    assert len(asked) == 1, "it requested the page again for a mere step"
    with page.expect_response(every):
        yard.query(TELL.format(**about, what="summary"))
    assert len(asked) == 2


def test_findings_and_questions_are_not_fetched_for_each_run_of_a_busy_study(
    page: Page, yard: YardProcess, stocked: dict[str, Any]
) -> None:
    asked: list[str] = []

    def dear(route: Route) -> None:
        answer = route.fetch()
        asked.append(route.request.url)
        route.fulfill(response=answer, headers={**answer.headers, "x-cost-ms": "60000"})

    for part in ("findings", "questions"):
        page.route(f"**/{part}/*", dear)
    page.goto(f"/studies/{stocked['study']}/")
    page.wait_for_timeout(4_000)  # for the fetches that the opened stream causes
    before = len(asked)
    assert before >= 2
    for what in ("state", "summary"):
        with page.expect_response("**/changes.json*"):
            yard.query(TELL.format(run=stocked["runs"][0], study=stocked["study"], what=what))
    page.wait_for_timeout(2_000)
    assert len(asked) == before


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


SETTLE = """__import__("dashboard.runs.models", fromlist=["x"]).Run.objects.filter(study={study}).update(
    ended_at=__import__("datetime").datetime(2026, 1, 1, tzinfo=__import__("datetime").UTC))"""


def test_a_timeline_whose_fetch_failed_once_is_drawn_at_the_next_news(
    page: Page, stocked: dict[str, Any], troubles: Troubles
) -> None:
    troubles.expected += ["503"]
    page.goto(f"/studies/{stocked['study']}/")
    drawn(page, ["gantt"])
    bars = page.locator(".chart[data-chart=gantt] .chart-box canvas.bars").count()
    page.route("**/gantt.json*", lambda route: route.fulfill(status=503))
    reload = """async () => {
      const { reload } = await import(document.querySelector("script[src*='js/charts.js']").src);
      await reload("gantt");
    }"""
    page.evaluate(reload)
    box = page.locator(".chart[data-chart=gantt] .chart-box")
    expect(box).to_contain_text("This chart could not be shown")
    page.unroute_all(behavior="wait")
    page.evaluate(reload)
    expect(box.locator("svg.main-svg").first).to_be_visible()
    expect(box.locator("canvas.bars")).to_have_count(bars)
