"""A study from its form to its report: what will run is shown before the click, the page fills in live, and the address
holds the baseline.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.observed_page import PHONE, RUN_MS, Troubles, endless, late_htmx, mark, same_page
from tests.yard_process import YardProcess, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
SMALL = {"model__layers": "2", "model__hidden": "32", "model__heads": "2", "model__seq": "32"}
SMALL |= {"train__global_batch": "8", "timed_steps": "10"}


def plan(page: Page) -> Any:
    return page.get_by_role("region", name="What will run")


def tick(page: Page, group: str, *wanted: str) -> None:
    """Ticks exactly these boxes of the group."""
    for box in page.get_by_role("group", name=group, exact=True).locator("label").all():
        box.get_by_role("checkbox").set_checked(box.inner_text().strip() in wanted)


def row(page: Page, name: str) -> Any:
    return page.locator("#table tbody tr").filter(has=page.get_by_role("link", name=name, exact=True))


def known(page: Page) -> bool:
    """Reloads the form and returns whether it can say how long the runs would take."""
    page.goto("/studies/new/")
    return "time unknown" not in plan(page).inner_text()


def test_the_form_says_what_will_run_and_the_page_fills_by_itself(
    page: Page, yard: YardProcess, client: httpx.Client, cancel_after: Callable[[int], int]
) -> None:
    wait_for("a calibrated worker", lambda: known(page))
    expect(plan(page)).to_contain_text(re.compile(r"14 runs\s+on up to 2 devices,\s+(about \d+ min|under a minute)"))
    for name, value in {**SMALL, "name": "Two by two"}.items():
        page.locator(f"#f-{name}").fill(value)
    tick(page, "Strategies", "Single", "DP")
    expect(plan(page)).to_contain_text("4 runs on up to 2 devices, under a minute")
    tick(page, "Activation recomputation (AR)", "without")
    expect(plan(page)).to_contain_text("2 runs on up to 2 devices")
    page.locator("#f-repeats").fill("2")
    expect(page.get_by_role("button", name="Queue 4 runs")).to_be_enabled()
    page.locator("#f-repeats").fill("1")
    in_front = cancel_after(yard.submit(client, endless(), name="In front of the study"))
    page.get_by_role("button", name="Queue 2 runs").click()
    page.wait_for_url(re.compile(r"/studies/\d+/$"))
    mark(page)
    expect(page.locator("#progress")).to_contain_text("0 of 2 runs done")
    client.post(f"/api/v1/runs/{in_front}/cancel")
    expect(page.locator("#progress")).to_be_empty(timeout=RUN_MS)
    expect(page.locator("#verdict")).to_contain_text(re.compile(r"fastest|within noise"))
    for name in ("Single", "DP"):
        expect(row(page, name)).to_contain_text("Succeeded")
    expect(row(page, "DP").locator("td").nth(2)).to_have_text(re.compile(r"^\d+\.\d\dx"))
    assert same_page(page)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        # the message quotes the hidden size, which depends on the host's calibration
        ("model__heads", "5", "Attention heads = 5 does not divide Hidden size = "),
        ("train__lr", "-1", re.compile("than (or equal to )?0")),
        ("devices", "3", "has 2 CPU devices; choose at most"),
        ("micro_batches", "2, x", "Write whole numbers"),
        ("timed_steps", "9", "10"),
    ],
)
def test_what_is_wrong_is_said_at_its_field(page: Page, name: str, value: str, message: Any) -> None:
    page.goto("/studies/new/")
    page.locator(f"#f-{name}").fill(value)
    expect(page.locator(f"#error-{name}")).to_contain_text(message)
    expect(page.locator(f"#f-{name}")).to_have_attribute("aria-invalid", "true")
    expect(plan(page)).to_contain_text("Correct the marked fields")


@pytest.mark.full
def test_a_list_field_that_is_chosen_begins_with_lists_and_what_is_typed_stays(page: Page) -> None:
    page.goto("/studies/new/?kind=sweep")
    values, field = page.get_by_label("Values", exact=True), page.get_by_label("Field to sweep")
    field.select_option("parallel.recompute_layers")
    expect(values).to_have_value("0; 0, 2")
    values.fill("1; 0, 1")
    with page.expect_response(lambda answer: answer.request.method == "POST"):
        field.select_option("parallel.cuts")
    expect(values).to_have_value("1; 0, 1")
    field.select_option("parallel.recompute_layers")
    expect(page.locator("[name=begun_for]")).to_have_value("parallel.recompute_layers")
    values.fill("1, 2, 4, 8")  # and waits before the semicolon
    expect(page.locator("#error-values")).to_contain_text("write a semicolon behind it")
    expect(values).to_have_value("1, 2, 4, 8")


@pytest.mark.full
def test_a_run_is_swept_over_two_fields_from_its_page(page: Page, stocked: dict[str, Any]) -> None:
    page.goto(f"/runs/{stocked['dp']}/")
    page.get_by_role("link", name="Sweep…").click()
    expect(page.get_by_label("Data parallel")).to_have_value("2")
    page.get_by_label("Field to sweep").select_option("train.lr")
    page.get_by_label("Values", exact=True).fill("0.001, 0.01")
    page.get_by_label("Crossed with").select_option("train.seed")
    second = page.get_by_label("Its values")
    expect(second).to_have_value("1, 2, 4, 8")
    second.fill("1, 2")
    expect(plan(page)).to_contain_text("4 runs on up to 2 devices")
    samples, every = page.get_by_label("Held-out samples"), page.get_by_label("Evaluate held-out loss every")
    page.get_by_text("Optimizer, held-out loss and checkpoints").click()
    expect(samples).to_be_hidden()
    every.fill("5")
    every.press("Tab")
    expect(samples).to_be_visible()


def test_what_was_chosen_before_the_scripts_had_come_counts(page: Page) -> None:
    """On a slow connection the form can be read and filled before anything listens to it."""
    come = late_htmx(page)
    page.goto("/studies/new/?kind=sweep", wait_until="commit")
    page.get_by_label("Crossed with").select_option("train.seed")
    expect(page.get_by_label("Its values")).to_have_value("")
    come()
    expect(page.get_by_label("Its values")).to_have_value("1, 2, 4, 8")


@pytest.mark.full
def test_own_schedules_are_read_into_their_field_one_behind_the_other(page: Page, tmp_path: Path) -> None:
    program = "0F0,0F1,0B0,0B1\n,1F0,1B0,1F1,1B1"
    page.goto("/studies/new/")
    file = page.get_by_label("Schedule file")
    for name in ("early", "late"):
        (tmp_path / f"{name}.csv").write_text(f"{program}\n")
        file.set_input_files(tmp_path / f"{name}.csv")
        expect(page.locator("#help-schedule_file")).to_have_text(f"{name}.csv was read into the field.")
    both = f"# early\n{program}\n# late\n{program}\n"
    expect(page.get_by_label("Own schedules")).to_have_value(both)
    expect(plan(page)).to_contain_text("PP-Custom, early")
    expect(plan(page)).to_contain_text("PP-Custom, late is already in the study.")
    (tmp_path / "none.csv").touch()
    with page.expect_response("**/studies/new/"):
        file.set_input_files(tmp_path / "none.csv")
    expect(page.locator("#error-schedule_file")).to_have_text("none.csv is empty.")
    expect(page.get_by_label("Own schedules")).to_have_value(both)


def test_a_refused_study_begins_at_what_is_wrong(page: Page, troubles: Troubles) -> None:
    troubles.expected.append("422")
    page.goto("/studies/new/")
    page.locator("#f-timed_steps").fill("3")
    page.locator("#queue").click()
    refused = page.get_by_role("alert")
    expect(refused).to_be_focused()
    expect(refused).to_contain_text("Not queued. Put right Timed steps; everything you typed is still there.")
    refused.get_by_role("link", name="Timed steps").click()
    expect(page.locator("#f-timed_steps")).to_be_focused()
    expect(page.locator("#f-timed_steps")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#queue")).to_be_in_viewport(ratio=1)  # also when the focused field is far down the page


def speedup(cell: str) -> float:
    return float(cell.split("x")[0])


def test_another_baseline_stands_in_the_address_and_changes_the_speedups(page: Page, stocked: dict[str, Any]) -> None:
    page.goto(f"/studies/{stocked['study']}/")
    expect(row(page, "Single")).to_contain_text("baseline")
    expect(row(page, "Single").locator("td").nth(2)).to_contain_text("1.00x")
    before = row(page, "DP").locator("td").nth(2).inner_text()
    choice = page.get_by_label("Baseline")
    dp = choice.locator("option", has_text="DP").get_attribute("value")
    choice.select_option("DP")
    page.wait_for_url(f"**?baseline={dp}")
    expect(row(page, "DP").locator("td").nth(2)).to_contain_text("1.00x")
    after = row(page, "Single").locator("td").nth(2).inner_text()
    # A measured ratio, so it may be 1.00x by chance; but the two are always reciprocals of one another.
    assert speedup(after) * speedup(before) == pytest.approx(1, abs=0.02 * max(speedup(after), speedup(before)))
    expect(row(page, "Single")).not_to_contain_text("baseline")
    page.reload()
    expect(row(page, "DP")).to_contain_text("baseline")


@pytest.mark.full
def test_a_long_name_has_the_width_of_the_page(page: Page, stocked: dict[str, Any]) -> None:
    """Its buttons go below it; beside a short one they stay in its line."""
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"/studies/{stocked['study']}/")
    name, actions = page.locator("h1"), page.locator(".page-head .actions").first
    for text, beside in (("A short name", True), ("A name of more than a line beside its buttons, else of one", False)):
        name.evaluate("(name, text) => { name.textContent = text; }", text)
        first, second = name.bounding_box(), actions.bounding_box()
        assert first and second and (second["y"] < first["y"] + first["height"]) == beside
        assert first["height"] < 40, "in one line"


@pytest.mark.full
def test_a_run_whose_name_has_no_space_leaves_the_table_its_columns(page: Page, stocked: dict[str, Any]) -> None:
    for address in (f"/studies/{stocked['study']}/", f"/compare/?runs={stocked['runs'][0]},{stocked['runs'][1]}"):
        page.set_viewport_size({"width": 1440, "height": 900})
        page.goto(address)
        table, name = page.locator("#table table"), page.locator("#table tbody th a").first
        name.evaluate("(name) => { name.textContent = 'x'.repeat(100); }")
        assert table.evaluate("(table) => table.offsetWidth <= table.parentElement.clientWidth")
        page.set_viewport_size(PHONE)
        box, step = page.locator("#table").bounding_box(), page.locator("#table tbody td.num").first.bounding_box()
        assert box and step and step["x"] + step["width"] <= box["x"] + box["width"], "a phone shows the step time"


def test_a_heading_sorts_the_table_in_its_place(page: Page, stocked: dict[str, Any]) -> None:
    page.goto(f"/studies/{stocked['study']}/")
    mark(page)
    heading, steps = page.locator("#sort-step"), page.locator("#table tbody td.num:nth-child(3)")
    fastest = steps.all_inner_texts()
    heading.focus()
    heading.press("Enter")
    expect(page.locator("#table th[aria-sort=ascending]")).to_have_text("Step")
    heading.press("Enter")
    expect(page.locator("#table th[aria-sort=descending]")).to_have_text("Step")
    assert steps.all_inner_texts() == fastest[::-1] != fastest
    expect(heading).to_be_focused()
    assert same_page(page) and page.url.endswith("?sort=-step#numbers")
    page.reload()
    assert steps.all_inner_texts() == fastest[::-1]


@pytest.mark.full
def test_another_baseline_keeps_how_curves_are_drawn(page: Page, stocked: dict[str, Any]) -> None:
    page.goto(f"/studies/{stocked['study']}/?target=2.5")
    page.get_by_label("Over").select_option("seconds")  # written into the address by a script
    page.get_by_label("Smoothing").select_option("light (0.9)")
    choice = page.get_by_label("Baseline")
    dp = choice.locator("option", has_text="DP").get_attribute("value")
    choice.select_option("DP")
    page.wait_for_url(f"**?target=2.5&baseline={dp}&axis=seconds&smoothing=light")


def test_csv_and_report_say_what_the_page_says(page: Page, stocked: dict[str, Any]) -> None:
    page.goto(f"/studies/{stocked['study']}/?baseline={stocked['runs'][1]}")
    with page.expect_download() as waiting:
        page.get_by_role("link", name="CSV").click()
    rows = list(csv.DictReader(io.StringIO(waiting.value.path().read_text())))
    shown = page.locator("#table tbody tr").all()
    assert [line["label"] for line in rows] == [line.locator("th a").inner_text() for line in shown]
    for line, cells in zip(rows, shown, strict=True):
        assert f"{float(line['speedup']):.2f}x" in cells.locator("td").nth(2).inner_text()
    verdict = page.locator("#verdict").inner_text()
    page.get_by_role("link", name="Report").click()
    page.wait_for_url(f"**/report/?baseline={stocked['runs'][1]}")
    expect(page.get_by_text(verdict.split(".")[0]).first).to_be_visible()


def test_a_run_is_added_behind_the_others(page: Page, stocked: dict[str, Any], troubles: Troubles) -> None:
    troubles.expected += ["status of 422"]
    page.goto(f"/studies/{stocked['study']}/")
    page.get_by_role("link", name="Add run").click()
    expect(page.locator("#f-model__hidden")).to_have_value("32")
    page.locator("#f-name").fill("Pipeline of two")
    page.locator("#f-parallel__pp").fill("9")
    page.get_by_role("button", name="Queue run").click()
    expect(page.locator("#error-parallel__pp")).to_contain_text("use at most 6")
    expect(page.locator("#f-name")).to_have_value("Pipeline of two")
    page.locator("#f-parallel__pp").fill("2")
    page.get_by_role("button", name="Queue run").click()
    page.wait_for_url(f"**/studies/{stocked['study']}/")
    mark(page)
    expect(page.locator("#table tbody tr")).to_have_count(3)
    expect(page.locator("#table tbody tr").nth(2)).to_contain_text("Succeeded", timeout=RUN_MS)
    assert same_page(page)
