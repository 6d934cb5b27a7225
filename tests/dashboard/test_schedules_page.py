"""The Schedules page: numbers given in the papers, two schedules on one axis, and messages for impossible input."""

from __future__ import annotations

import re
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from django.test import Client

from dashboard.charts import schedule as schedule_chart
from dashboard.schedules import searched, words
from dashboard.schedules.forms import MAX_OPERATIONS, ScheduleForm
from dashboard.schedules.lessons import EXAMPLE, LESSONS
from parallel_core.analysis.quantities import percent_text
from parallel_core.schedule import compute_only, names
from parallel_core.schedule.check import check
from parallel_core.schedule.passes.communicate import communicate
from parallel_core.schedule.passes.reduce import reduce_and_step
from parallel_core.schedule.peaks import peak_in_flight
from parallel_core.schedule.table import from_csv, from_json
from parallel_core.simulate.schedule_preview import UNIT, preview
from parallel_core.spec import RunSpec
from tests.dashboard.plain import plain


def form(**given: Any) -> ScheduleForm:
    made = ScheduleForm({name: str(value) for name, value in given.items()})
    made.is_valid()
    return made


def page(client: Client, query: str = "", **headers: str) -> str:
    answer = client.get(f"/schedules/{query}", headers=headers)
    assert answer.status_code == 200
    return re.sub(r"\s+", " ", plain(answer.content.decode()))


@pytest.mark.parametrize("name", [*names(), *words.EARLY_ONES])
def test_every_schedule_is_shown_whole(name: str) -> None:
    made = preview(name, 4, 8)
    assert made.busy == 4 * 8 * 3 * UNIT
    assert made.fraction == pytest.approx(1 - made.working / made.devices)
    for device in made.spans:
        _, forward, weights = made.held(device)
        assert forward.max() == peak_in_flight(made.schedule)[device]
        assert forward.min() >= 0
        assert weights[-1] == 0
        assert forward[-1] == 0 or made.schedule.sync != "flush"
        assert (forward + weights).max() <= made.kept[device] * made.chunks


def test_numbers_of_gpipe_and_1f1b() -> None:
    """Huang et al. 2019: overhead (p - 1) / m. Narayanan et al. 2021b: 1F1B keeps p micro-batches, GPipe m."""
    gpipe, one = preview("gpipe", 4, 8), preview("1f1b", 4, 8)
    assert gpipe.overhead == one.overhead == pytest.approx(3 / 8)
    assert (max(gpipe.kept), max(one.kept)) == (8, 4)
    assert words.comparison([one, gpipe]) == (
        "33 units: 1F1B and GPipe take equally long. 1F1B keeps 4 micro-batches at most, GPipe 8."
    )


def test_sentences_change_with_the_numbers() -> None:
    zero, one = preview("zb-h1", 4, 8), preview("1f1b", 4, 8)
    assert words.comparison([one, zero]) == (
        "ZB-H1 is 1.22 times as fast as 1F1B: 3.56 of 4 devices busy, not 2.91. Both keep 4 micro-batches at most."
    )
    early = preview("1f1b-early", 4, 8)
    assert words.comparison([early, one]) == (
        "1F1B, early gradients is 1.1 times as fast as 1F1B: 3.2 of 4 devices busy, not 2.91. "
        "Both keep 4 micro-batches at most."
    )
    close = words.comparison([preview("1f1b", 2, 120), preview("interleaved", 2, 120)])
    assert close.startswith("Interleaved is less than 1 % faster than 1F1B. "), "not 1 times as fast"
    close = words.comparison([preview("1f1b", 2, 133), preview("zb-h1", 2, 133)])
    assert close.startswith("ZB-H1 is less than 1 % faster than 1F1B. "), "1.005 is written as 1"
    assert words.comparison([preview("naive", 4, 1)]) == "1 of 4 devices are busy on average in Naive layer-wise."
    assert words.comparison([preview("naive", 1, 1)]) == "1 of 1 device is busy on average in Naive layer-wise."
    assert words.finding(preview("naive", 2, 1)).endswith("1 micro-batch kept at most.")


def test_costs_and_messages_lengthen_the_step() -> None:
    free, slow = preview("1f1b", 4, 8), preview("1f1b", 4, 8, message=0.5)
    assert slow.length > free.length
    assert preview("1f1b", 2, 2, costs=(2, 3, 1)).busy == 2 * 2 * 6 * UNIT


def test_the_charts_share_their_axes() -> None:
    made = [preview("1f1b", 4, 8), preview("zb-v", 4, 8)]
    charts = schedule_chart.charts(made, ["a", "b"])
    for axis in ("xaxis", "yaxis2"):
        assert charts[0].figure["layout"][axis]["range"] == charts[1].figure["layout"][axis]["range"]
    marks = charts[0].figure["layout"]["meta"]["marks"]
    assert marks == sorted(marks)
    assert marks[-1] == made[0].length / UNIT


@pytest.mark.parametrize(
    ("given", "field", "said"),
    [
        ({"p": 999}, "p", "Devices must be a whole number from 1 to 32; got 999."),
        ({"a": "dualpipe-v", "p": 8, "m": 4}, "m", "at least 16 micro-batches"),
        ({"a": "interleaved", "v": 1}, "v", "use 2 or more"),
        ({"p": 32, "m": 256}, "m", f"use at most {MAX_OPERATIONS // 64}"),
        (
            {"a": "1f1b-early", "p": 1},
            "p",
            "sends gradients to the stage before, and Devices = 1 has none",
        ),
        ({"a": "nothing"}, "a", f"one of {len((*names(), *words.EARLY_ONES, *searched.SHAPES))} names, such as "),
        ({"forward": "nan"}, "forward", "Forward must be a number from 0.1 to 100; got nan."),
        ({"b": "found", "p": 16, "m": 128}, "m", "too many to search; use at most 62"),
        ({"b": "found-v", "keep": 0.5}, "keep", "must be a number from 1 to 256; got 0.5."),
    ],
)
def test_what_cannot_be_is_said_at_its_field(given: dict[str, Any], field: str, said: str) -> None:
    assert said in form(**given).errors[field][0]


def test_one_unit_is_not_plural() -> None:
    made = form(stages="a, 0.25, 0.75", m=1, a="1f1b", b="gpipe")
    assert words.pace(made.cleaned_data["stages"]) == "1 unit a micro-batch: a sets the pace."
    assert words.comparison(made.previews).startswith("1 unit: 1F1B and GPipe take equally long.")
    assert words.finding(made.previews[0]).startswith("1F1B: 1 unit, 0 % of them idle")


def test_typed_stages_by_hand(client: Client, bob: Any) -> None:
    """Two devices share a stage of 6 units, so a micro-batch passes every 3 units, as in the next stage of 3 units."""
    asked = {"stages": EXAMPLE, "m": 8, "a": "gpipe", "b": "1f1b-stash"}
    client.force_login(bob)
    said = page(client, f"?{urlencode(asked)}")
    assert "3 units a micro-batch: denoiser sets the pace, with decoder." in said
    assert '<td class="num">forward only</td>' in said
    full = form(**asked).previews[1]
    assert full.busy == (8 * 1 + 8 * 6 + 8 * 3) * UNIT
    assert full.length >= 8 * 3 * UNIT
    assert full.busy_of([1, 2]) == pytest.approx(8 * 6 * UNIT / 2 / full.length)
    held = words.places(form(**asked).cleaned_data["stages"])
    assert "denoiser 2 of 2" in str(schedule_chart.charts([full], ["a"], held))
    assert "Run this order" not in said
    assert form(stages="a, 1\nb, 2", a="found", b="zb-h1", m=4).found[0].length <= 4 * 6 * UNIT + 3 * UNIT


@pytest.mark.parametrize(
    ("given", "field", "said"),
    [
        ({"stages": "a, 1\n\nb, x"}, "stages", "Line 3, forward: x is no number"),
        ({"stages": "a, 1, 2, 2", "a": "interleaved"}, "a", "stages. Choose one of Naive layer-wise; GPipe; 1F1B;"),
        ({"stages": "a, 1, 2, 2", "b": "zb-h1"}, "b", "ZB-H1 cannot have these stages"),
        ({"stages": "a, 1, 2, 3", "m": 2}, "m", "3 or more are needed"),
        ({"stages": "a, 1, 2, 3", "m": 4, "a": "1f1b-stash"}, "m", "use 6"),
        ({"stages": "\n".join(f"s{i}, 1" for i in range(32)), "m": 256}, "m", "use at most 125"),
    ],
)
def test_wrong_stages_are_said_at_their_field(given: dict[str, Any], field: str, said: str) -> None:
    assert said in form(**given).errors[field][0]


def test_the_page_and_its_part(client: Client, bob: Any) -> None:
    assert client.get("/schedules/").status_code == 302
    client.force_login(bob)
    whole = page(client)
    assert "1F1B and GPipe take equally long" in whole
    assert '<a href="/schedules/" aria-current="page">Schedules</a>' in whole
    part = page(client, "?a=zb-h1&b=1f1b&p=2", **{"HX-Request": "true"})
    assert "<html" not in part
    assert "ZB-H1 is" in part
    again = client.get("/schedules/?a=zb-h1&b=1f1b&p=2", headers={"HX-Request": "true"}).content.decode()
    assert '<span class="whole">ZB-H1</span> is' in again
    wrong = page(client, "?p=0&m=<b>", **{"HX-Request": "true"})
    assert "Nothing is simulated yet" in wrong
    assert "<b>" not in wrong


def test_an_order_is_found_and_taken_away(client: Client, bob: Any) -> None:
    client.force_login(bob)
    said = page(client, "?a=found&b=zb-h1&grad=1.2&weight=0.6&message=0.1&keep=6")
    assert "Found order is 1.07 times as fast as ZB-H1" in said
    near = r"The order found is at most \d(\.\d)? % from the shortest: none with one stage a device takes less than "
    assert re.search(near + r"[\d.]+ units", said)
    assert "Proven: no order laid as a V within this limit is shorter" in page(client, "?a=found-v")
    lone = page(client, "?a=found&b=zb-v")
    assert "ZB-V is 1.06 times as fast as Found order" in lone
    assert "Proven: no order with one stage a device within this limit is shorter" in lone
    made = from_csv(client.get("/schedules/order-a.csv?a=found&p=2&m=3").content.decode())
    assert (made.pipeline_ranks, made.micro_batches) == (2, 3)
    check(reduce_and_step(communicate(made)))
    whole = client.get("/schedules/order-b.json?a=found&b=1f1b&p=2&m=3").content.decode()
    assert from_json(whole) == compute_only("1f1b", 2, 3)
    assert client.get("/schedules/order-b.csv?b=").status_code == 404


def test_stages_with_their_own_replicas_have_no_csv(client: Client, bob: Any) -> None:
    client.force_login(bob)
    query = urlencode({"a": "1f1b", "b": "", "m": 4, "stages": "a, 1, 2, 2\nb, 1, 2, 1"})
    assert client.get(f"/schedules/order-a.csv?{query}").status_code == 404
    assert client.get(f"/schedules/order-a.json?{query}").status_code == 200


def test_a_found_order_fills_in_a_run(client: Client, alice: Any) -> None:
    address = searched.address(form(a="found", p=2, m=3, weight=0.5).previews[0].schedule)
    spec = RunSpec.model_validate_json(parse_qs(urlsplit(address).query)["spec"][0])
    assert (spec.parallel.schedule, spec.parallel.pp, spec.parallel.micro_batches) == ("custom", 2, 3)
    assert searched.address(preview("1f1b-stash", 2, 3).schedule) == ""
    client.force_login(alice)
    assert "Custom" in client.get(address).content.decode()


def test_every_lesson_works(client: Client, bob: Any) -> None:
    client.force_login(bob)
    for number, lesson in enumerate(LESSONS, 1):
        said = page(client, lesson.address)
        assert f'aria-current="true">{number}. {lesson.title}</a>' in said and said.count('aria-current="true"') == 1
        assert lesson.point in unescape(said) and len(lesson.point.split()) <= 25
        assert (f"Next: {number + 1}. " in said) == (number < len(LESSONS))
        assert "Nothing is simulated" not in said


def test_a_lesson_that_was_changed_is_none_any_more(client: Client, bob: Any) -> None:
    client.force_login(bob)
    assert 'id="lesson"' not in page(client)
    stages = urlencode({"a": "gpipe", "b": "1f1b", "stages": EXAMPLE.replace("\n", "\r\n"), "p": 4, "t": 3})
    assert f"<strong>9. {LESSONS[8].title}.</strong>" in page(client, f"?{stages}")
    part = page(client, "?a=naive&b=gpipe&p=8", **{"HX-Request": "true"})
    assert '<div id="lessons" class="stack" hx-swap-oob="true">' in part and 'id="lesson"' not in part


def test_what_lessons_say_is_so() -> None:
    """The numbers and comparisons in the texts of the lessons."""
    made = {lesson.title: form(**lesson.asked).previews for lesson in LESSONS}
    naive, gpipe = made["Why micro-batches"]
    assert naive.working == 1 < gpipe.working
    gpipe, one = made["The same bubble, less memory"]
    assert gpipe.length == one.length and max(gpipe.kept) > max(one.kept)
    stash = made["No flush, older weights"][1]
    assert stash.fraction < 0.005 and words.versions(stash) == 4
    one, chunks, slow_one, slow_chunks = *made["Smaller chunks, smaller bubble"], *made["What slow messages cost"]
    assert slow_one.length / slow_chunks.length - 1 < (one.length / chunks.length - 1) / 2
    assert [percent_text(preview.fraction) for preview in made["No bubble at the same memory"]] == ["11 %", "6 %"]
    zero, found = made["A search beats the book"]
    assert found.length < zero.length and (max(found.kept), max(zero.kept)) == (6, 4)
    typed = made["Uneven stages, one with replicas"][0]
    assert typed.busy_of([0]) < 0.5
