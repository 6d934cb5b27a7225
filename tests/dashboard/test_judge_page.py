"""Judge and Scenarios: the verdict first, reasons that name bytes, and cases that open with the form filled in."""

from __future__ import annotations

import html
import re
from urllib.parse import parse_qsl, urlsplit

import pytest
from django.test import Client

from dashboard.plans.judge_forms import query, read_forms
from dashboard.plans.scenarios import SCENARIOS, cards

PAGE = "/planner/judge/"


def setups(**given: str) -> dict[str, str]:
    return {name.replace("_", "-", 1): value for name, value in given.items()}


def test_which_plan_trains_200_billion_on_40_gib_and_why_the_other_cannot(reader: Client) -> None:
    page = reader.get(PAGE)
    assert page.context["verdict"] == [
        "B works: 21 of 38 GiB.",
        "A cannot: every rank holds the whole state, 3.2 TiB; no number of GPUs helps.",
    ]
    text = page.content.decode()
    assert '<span class="whole">3.2 TiB;</span>' in text.partition("<dl")[2], "in the reason, too"
    assert text.index("B works") < text.index('id="judge-form"')
    assert "Parameters and optimizer" in text, "2.5 TiB is the whole state, which includes the gradients"
    bars = page.context["chart"].figure["data"]
    assert {"parameters", "gradients", "optimizer state", "activations"} <= {trace.get("name") for trace in bars}


def test_of_two_that_work_the_faster_is_named(reader: Client) -> None:
    asked = setups(a_plan="TP 8 x PP 8 x DP 16, SP, ZeRO-1", b_plan="TP 8 x PP 8 x DP 16, SP, ZeRO-1, full recompute")
    asked |= setups(a_model="gpt-175b", b_model="gpt-175b")
    verdict = reader.get(PAGE, asked).context["verdict"]
    assert [sentence[:7] for sentence in verdict[:2]] == ["A works", "B works"]
    assert verdict[2].startswith("A trains 1.")


def test_devices_that_a_plan_leaves_idle_stand_beside_its_share_of_the_peak(reader: Client) -> None:
    """The share is of the devices in use: half of the cluster had the share of all of it, and nothing said so."""
    asked = setups(a_model="gpt-175b", b_model="gpt-175b", a_cluster="selene", b_cluster="selene")
    asked |= setups(a_devices="1024", b_devices="1024")
    asked |= setups(a_plan="TP 8 x PP 8 x DP 8, SP, ZeRO-1", b_plan="TP 8 x PP 8 x DP 16, SP, ZeRO-1")
    half, whole = (case.speed for case, _ in reader.get(PAGE, asked).context["cases"])
    assert half.endswith(" % of the peak of 512 devices; 512 are idle.") and whole.endswith(" % of the peak.")


def test_what_fits_into_memory_is_not_said_to_work_where_it_cannot(reader: Client) -> None:
    """Both cannot: the first takes more devices than there are, the second does not fit."""
    asked = setups(a_model="gpt-175b", a_plan="TP 8 x PP 192, SP", b_model="gpt-175b", b_plan="DP 8")
    page = reader.get(PAGE, asked)
    assert [sentence[:9] for sentence in page.context["verdict"]] == ["A cannot:", "B cannot:"]
    assert page.context["chart"].title == "1 of 2 set-ups fits into the memory of its devices."


def test_the_cheapest_change_opens_judge_with_it(reader: Client) -> None:
    case, _ = reader.get(PAGE).context["cases"][0]
    assert not case.judged.fits
    mended = reader.get(PAGE + case.fixed)
    assert mended.context["cases"][0][0].judged.fits
    assert mended.context["cases"][1][0].judged.plan == reader.get(PAGE).context["cases"][1][0].judged.plan


def test_a_set_up_more_or_less_keeps_what_was_typed_since(reader: Client) -> None:
    """An answer to htmx replaces the two links as well: those of the page had the set-ups as it was opened."""
    asked = {"n": "3", **setups(a_plan="TP 4, SP", a_cluster="l4")}
    part = reader.get(PAGE, asked, headers={"HX-Request": "true"}).content.decode()
    links = part.partition('id="set-ups" class="row" hx-swap-oob="true"')[2].partition("</span>")[0]
    queries = [dict(parse_qsl(urlsplit(html.unescape(one)).query)) for one in re.findall(r'href="([^"]*)"', links)]
    assert [(one["n"], one["a-plan"], one["a-cluster"]) for one in queries] == [
        ("4", "TP 4, SP", "l4"),
        ("2", "TP 4, SP", "l4"),
    ]
    assert reader.get(PAGE, asked).content.decode().count('id="set-ups"') == 1


def test_a_set_up_opens_in_the_planner(reader: Client) -> None:
    case, _ = reader.get(PAGE).context["cases"][1]
    page = reader.get(f"/planner/?{case.planned}")
    assert page.context["judged"].plan == case.judged.plan
    assert page.context["judged"].seconds == pytest.approx(case.judged.seconds)


def test_a_third_set_up_begins_as_the_second(reader: Client) -> None:
    more = reader.get(PAGE).context["more"]
    page = reader.get(PAGE + more)
    forms = page.context["forms"]
    assert len(forms) == 3
    assert forms[2]["plan"].value() == forms[1]["plan"].value()
    assert reader.get(PAGE + page.context["fewer"]).context["count"] == 2


def test_the_address_holds_every_set_up() -> None:
    asked = setups(a_plan="PP 8", b_plan="TP 4", b_memory="24", n="2")
    forms = read_forms(asked)
    again = read_forms(dict(parse_qsl(query(forms))))
    assert [form["plan"].value() for form in again] == ["PP 8", "TP 4"]
    assert again[1]["memory"].value() == "24"


@pytest.mark.parametrize("n", ["0", "99", "x", "-3", "10000000000"])
def test_the_number_of_set_ups_is_bounded(n: str) -> None:
    assert 2 <= len(read_forms({"n": n})) <= 4


def test_wrong_values_are_told_at_their_field(reader: Client) -> None:
    page = reader.get(PAGE, setups(a_plan="TP eight", b_network="0"))
    a, b = page.context["forms"]
    assert "is not understood" in a.errors["plan"][0]
    assert b.errors["network"] == ["Must be from 0.000001 to 100\xa0000 GB/s; got 0."]
    assert "cannot be judged" in page.content.decode()


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("TP 8 x TP 4", "TP is given twice: 8 and 4."),
        ("TP 8, 1f1b, gpipe", "Schedule is given twice: 1f1b and gpipe."),
        ("micro-batch 2, mb 4", "Micro-batch is given twice: 2 and 4."),
        ("ZeRO-1, zero 3", "ZeRO is given twice: 1 and 3."),
        ("interleaved 0", "The chunks of interleaved must be from 1 to 64; got 0."),
        ("micro-batch 0", "Micro-batch must be from 1 to 100\xa0000; got 0."),
        ("x" * 300, "A plan has at most 200 characters; these are 300."),
    ],
)
def test_a_plan_that_cannot_be_meant_is_refused(reader: Client, plan: str, words: str) -> None:
    assert reader.get(PAGE, setups(a_plan=plan)).context["forms"][0].errors["plan"] == [words]
    assert reader.get("/planner/", {"plan": plan}).context["form"].errors["plan"] == [words]


@pytest.mark.parametrize("part", [f"{PAGE}common", "/planner/layout"])
def test_a_refusal_in_plain_text_names_its_encoding(reader: Client, part: str) -> None:
    answer = reader.get(part, {**setups(a_plan="??"), "batch": "many"}, headers={"HX-Request": "true"})
    assert (answer.status_code, answer["Content-Type"]) == (422, "text/plain; charset=utf-8"), "it quotes with “ and ”"


def test_what_is_missing_is_said_in_words(reader: Client) -> None:
    a, b = reader.get(PAGE, setups(a_plan="", b_batch="")).context["forms"]
    assert a.errors["plan"] == ["Plan must name a split, such as TP 8 x DP 4; got nothing."]
    assert b.errors["batch"][0].endswith("; got nothing."), "an emptied field is not another number in silence"
    assert set(reader.get("/planner/", {"batch": "", "devices": ""}).context["form"].errors) == {"batch"}
    assert "there is one." in reader.get(PAGE, setups(a_plan="TP 8", a_devices="1")).content.decode()
    assert "got nothing." in reader.get(PAGE, {"n": ""}).content.decode()


def test_one_plan_for_two_clusters_has_its_price(reader: Client) -> None:
    case = next(scenario for scenario in SCENARIOS if scenario.key == "two")
    common = reader.get(f"{PAGE}common?{case.query()}").context["common"]
    assert common.sentence.startswith("One split serves A and B: TP")
    widths = {(row.plan.tp, row.plan.pp, row.plan.micro_batch) for _, row in common.rows}
    assert len(widths) == 1
    for _, row in common.rows:
        assert row.plan.devices == row.cluster.devices
        assert row.price >= -1e-9
    alone = reader.get(f"{PAGE}common").content.decode()
    assert "the same cluster" in alone


@pytest.mark.full
def test_each_clusters_own_best_is_the_planners(reader: Client) -> None:
    case = next(one for one in SCENARIOS if one.key == "two")
    rows = reader.get(f"{PAGE}common?{case.query()}").context["common"].rows
    for own, (_, row) in zip(case.setups, rows, strict=True):
        asked = {name: value for name, value in {**case.shared, **own}.items() if name != "plan"}
        assert reader.get("/planner/", asked).context["judged"].plan == row.own


@pytest.mark.full
def test_every_scenario_has_a_verdict_and_opens_both_pages(reader: Client) -> None:
    found = cards()
    assert len(found) == 6
    for card in found:
        assert any("works" in sentence for sentence in card.verdict)
        assert [letter for letter, _ in card.setups] == list("ABCD")[: len(card.scenario.setups)]
        judge = reader.get(card.judge)
        assert judge.context["valid"], card.scenario.key
        assert judge.context["verdict"] == card.verdict
    said = {card.scenario.key: [text for _, text in card.setups] for card in found}
    assert said["200b"][0] == "DP 1024, micro-batch 1"
    assert said["refresh"][1].startswith("TP 8 x PP 8 x DP 4") and " on 256 x H100" in said["refresh"][1]
    planned = reader.get(found[0].planner)
    assert planned.context["valid"]
    assert urlsplit(found[0].planner).path == "/planner/"
    assert all(card.scenario.title in reader.get("/planner/scenarios/").content.decode() for card in found[:2])


@pytest.mark.parametrize("address", [PAGE, "/planner/", "/planner/crossover/", "/planner/inference/"])
def test_of_a_new_answer_the_verdict_alone_is_read_out(reader: Client, address: str) -> None:
    page = reader.get(address).content.decode()
    assert '<div id="result" class="stack">' in page and '<p id="verdict" class="verdict" aria-live="polite">' in page
