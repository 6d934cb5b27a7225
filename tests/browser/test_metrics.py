"""The Metrics tab, and tabs that fill, of a running run: charts grow in place, and never show what is no longer so."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.observed_page import chart_points, drawn, endless, until
from tests.yard_process import YardProcess, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
POINTS, METRICS = "**/data/points.json*", "**/data/metrics.json*"


@pytest.fixture(scope="module")
def under_way(yard: YardProcess, client: httpx.Client) -> Iterator[int]:
    spec = endless()
    spec["parallel"] = {"pp": 2, "schedule": "1f1b-stash", "micro_batches": 4}
    spec["train"]["clip"] = "stage"
    run = yard.submit(client, spec, name="Measured")
    yard.wait_state(client, run, "running")
    yield run
    client.post(f"/api/v1/runs/{run}/cancel")
    yard.wait_state(client, run, "succeeded", "cancelled")


def change(page: Page, address: str, how: Callable[[Any], None]) -> None:
    """Answers a request for JSON as the server does, but changed."""

    def one(route: Route) -> None:
        answer = route.fetch()
        found = answer.json()
        how(found)
        route.fulfill(response=answer, json=found)

    page.route(address, one)


@pytest.mark.full
def test_a_later_attempt_takes_the_place_of_the_points_before_it(page: Page, under_way: int) -> None:
    page.goto(f"/runs/{under_way}/?tab=metrics")
    drawn(page, ["loss"])
    until(page, "() => document.querySelector('.chart[data-chart=loss] .chart-box').data[0].x.length > 6")

    def only_three(found: Any) -> None:
        figure = found["charts"]["loss"]["figure"]
        figure["layout"]["meta"]["begins"] = "2:0"
        figure["data"][0]["x"] = figure["data"][0]["x"][:3]
        figure["data"][0]["y"] = figure["data"][0]["y"][:3]
        for axis in figure["layout"]["meta"]["axes"].values():
            axis[0] = axis[0][:3]

    def later(found: Any) -> None:
        found["begins"]["loss"] = "2:0"
        found["series"].pop("loss", None)

    change(page, METRICS, only_three)
    change(page, POINTS, later)
    until(page, "() => document.querySelector('.chart[data-chart=loss] .chart-box').data[0].x.length === 3")
    assert chart_points(page, "loss") == [0, 1, 2]
    page.unroute_all(behavior="wait")


@pytest.mark.full
def test_a_smoothed_curve_grows_with_its_points(page: Page, under_way: int) -> None:
    page.goto(f"/runs/{under_way}/?tab=metrics&smoothing=light&scale=log")
    drawn(page, ["loss"])
    box = "document.querySelector('.chart[data-chart=loss] .chart-box')"
    before = len(chart_points(page, "loss"))
    until(page, f"(before) => {box}.data[0].y.length > before + 2", before)
    assert page.evaluate(f"{box}.data.map((one) => [one.x.length === {box}.data[0].x.length, one.opacity ?? 1])") == [
        [True, 0.3],
        [True, 1],
    ]


AS_DRAWN = """(least) => {
  const chart = document.querySelector(".chart[data-chart=loss]");
  const drawn = chart.querySelector(".chart-box").data[0].x.length;
  const points = chart.querySelector("tbody td").textContent;
  const source = chart.querySelector(".chart-source").textContent;
  const title = chart.querySelector("figcaption").textContent;
  return drawn > least && points === `${drawn}` && source.includes(`; ${drawn} of ${drawn} points`) &&
    title.includes(` at step ${drawn - 1}, first `);
}"""


def test_title_source_and_numbers_stay_true_while_a_curve_grows(page: Page, under_way: int) -> None:
    page.goto(f"/runs/{under_way}/?tab=metrics")
    drawn(page, ["loss"])
    until(page, AS_DRAWN, len(chart_points(page, "loss")) + 3)


LEAST = "document.querySelector('.chart[data-chart=loss] tbody').rows[0].cells[4].textContent"


@pytest.mark.full
def test_the_least_value_is_of_points_that_the_server_did_not_read_again_too(page: Page, under_way: int) -> None:
    told = ["0.25", "900"]

    def other(found: Any) -> None:
        if "loss" in found["series"] and told:
            found["series"]["loss"]["rows"][0][4] = told.pop(0)

    page.goto(f"/runs/{under_way}/?tab=metrics")
    drawn(page, ["loss"])
    before = page.evaluate(LEAST)
    change(page, POINTS, other)
    until(page, f"() => {LEAST} === '0.25'")
    wait_for("later answers", lambda: not told, 60, lambda: page.wait_for_timeout(100))
    until(page, AS_DRAWN, len(chart_points(page, "loss")))
    assert float(before) > 0.25 and page.evaluate(LEAST) == "0.25"
    page.unroute_all(behavior="wait")


@pytest.mark.full
def test_a_curve_whose_new_points_are_thinned_is_fetched_as_a_whole(page: Page, under_way: int) -> None:
    def thinned(found: Any) -> None:
        for points in found["series"].values():
            points |= {"thinned": True, "step": points["step"][-1:], "value": [1e6], "time": points["time"][-1:]}

    page.goto(f"/runs/{under_way}/?tab=metrics")
    drawn(page, ["loss"])
    change(page, POINTS, thinned)
    box = "document.querySelector('.chart[data-chart=loss] .chart-box')"
    until(page, f"(least) => {box}.data[0].y.length > least", len(chart_points(page, "loss")) + 3)
    assert page.evaluate(f"Math.max(...{box}.data[0].y)") < 1e6
    page.unroute_all(behavior="wait")


@pytest.mark.full
def test_a_curve_that_has_grown_long_is_fetched_again_thinned(page: Page, under_way: int) -> None:
    def many(found: Any) -> None:
        for points in found["series"].values():
            last = points["step"][-1]
            for name in ("time", "value"):
                points[name] = [points[name][-1]] * 5_000
            points["step"] = [last + i for i in range(5_000)]

    page.goto(f"/runs/{under_way}/?tab=metrics")
    drawn(page, ["loss"])
    change(page, POINTS, many)
    long = "document.querySelector('.chart[data-chart=loss] .chart-box').data[0].x.length"
    until(page, f"() => {long} > 4000")
    page.unroute_all(behavior="wait")
    until(page, f"() => {long} < 4000")


@pytest.mark.full
def test_a_chart_without_numbers_for_a_time_is_drawn_again(page: Page, under_way: int) -> None:
    page.goto(f"/runs/{under_way}/?tab=metrics")
    drawn(page, ["loss"])
    key = "document.querySelector('.chart[data-chart=\"loss\"] .chart-box')"
    page.evaluate(
        """async () => {
          const { update } = await import(document.querySelector("script[src*='js/charts.js']").src);
          const script = document.querySelector(".chart[data-chart=loss] script");
          const figure = JSON.parse(script.textContent);
          window.full = { figure };
          window.put = (chart) => update({ loss: chart });
          await window.put({ figure: { ...figure, data: [] } });
        }"""
    )
    box = page.locator(".chart[data-chart=loss] .chart-box")
    expect(box).to_contain_text("there are no numbers so far")
    page.evaluate("() => window.put(window.full)")
    expect(box.locator("svg.main-svg").first).to_be_visible()
    assert page.evaluate(f"() => {key}._fullLayout._paperdiv.node().isConnected")


@pytest.mark.parametrize(("tab", "filled"), [("accounts", "rank by rank"), ("operators", "Rank")])
def test_a_tab_that_waits_for_a_traced_step_fills_by_itself(page: Page, under_way: int, tab: str, filled: str) -> None:
    page.goto(f"/runs/{under_way}/?tab={tab}")
    empty = '<div class="empty small"><h2>No traced step yet</h2></div>'
    page.locator("#tab").evaluate("(tab, html) => { tab.innerHTML = html; }", empty)
    expect(page.locator("#tab")).to_contain_text(re.compile(filled))
    expect(page.locator("#tab > .empty")).to_have_count(0)


@pytest.mark.full
def test_the_lines_of_stages_grow_in_place(page: Page, under_way: int) -> None:
    fetched: list[str] = []
    page.on("request", lambda asked: fetched.append(asked.url))
    page.goto(f"/runs/{under_way}/?tab=metrics")
    drawn(page, ["staleness"])
    lines = "document.querySelector('.chart[data-chart=staleness] .chart-box').data.map((line) => line.x.length)"
    until(page, f"() => {lines}.length === 2")
    before = page.evaluate(f"() => {lines}")
    until(page, f"() => {lines}.every((count) => count > {max(before) + 6})")
    assert any("points.json" in url for url in fetched) and not any("metrics.json" in url for url in fetched)
