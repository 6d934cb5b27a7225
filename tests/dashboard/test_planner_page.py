"""The Planner page: its sentences follow from the numbers, its state is in its address, and bad values are reported."""

from __future__ import annotations

import csv
import html
import io
import re
from typing import Any

import pytest
from django.test import Client

from dashboard.plans.forms import PlannerForm
from parallel_core.analysis.quantities import large_text, rate_text
from parallel_core.plan.cluster.hardware import GIB
from parallel_core.plan.cluster.plan_parser import read
from parallel_core.plan.cluster.verdict import time_sentence
from tests.dashboard import factory
from tests.dashboard.plain import plain

PAGE = "/planner/"


def test_the_page_is_for_people_who_signed_in() -> None:
    assert Client().get(PAGE).status_code == 302


def test_the_first_sentence_is_the_bottleneck_and_what_to_try(reader: Client) -> None:
    page = reader.get(PAGE, {"model": "gpt-22b", "cluster": "a100-40", "devices": "64", "batch": "256"})
    first = page.context["verdict"][0]
    assert re.match(r"\S+ (ms )?of \S+ m?s \(", first)
    assert first.endswith(".")
    assert page.context["judged"].fits
    assert {"plans", "step", "memory"} == set(page.context["charts"])
    assert sum(page.context["judged"].times.values()) == pytest.approx(page.context["judged"].seconds)


def test_ranked_plans_lead_to_themselves(reader: Client) -> None:
    first = reader.get(PAGE)
    rows, layouts = first.context["ranked"], first.context["layouts"]
    assert [row.seconds for row in rows] == sorted(row.seconds for row in rows)
    assert layouts > len(rows) == 12 and f"12 of {layouts} layouts." in plain(first.content.decode())
    page = reader.get(PAGE + rows[3].address)
    assert page.context["judged"].plan.label() == rows[3].label
    assert [row.chosen for row in page.context["ranked"]].index(True) == 3


def test_a_plan_that_does_not_fit_is_explained_and_mended(reader: Client) -> None:
    asked = {"model": "gpt-200b", "cluster": "a100-40", "batch": "1024", "plan": "TP 8 x PP 16 x DP 8, ZeRO-1"}
    page = reader.get(PAGE, asked)
    text = plain(page.content.decode())
    assert "This plan cannot run. 41 GiB on the first rank, of 38 GiB" in text
    assert "Days, if it fitted" in text and "Memory, if" not in text
    assert "Cheapest change: sequence parallel" in text
    (led,) = re.findall(r'<a href="([^"]*)">Look at the plan with ', page.content.decode())
    assert led.count("plan=") == 1, "the plan that it leads from stood in the address, too"
    assert reader.get(PAGE + html.unescape(led)).context["judged"].fits


def test_why_replicas_alone_never_hold_it(reader: Client) -> None:
    page = reader.get(PAGE, {"model": "gpt-200b", "cluster": "a100-40", "batch": "1024"})
    rows = {row["word"]: row for row in page.context["alone"]}
    assert set(rows) == {"DP", "ZeRO", "TP", "PP", "Together"}
    assert rows["DP"]["sentence"] == "Every rank holds the whole state, 3.2 TiB; no number of GPUs helps."
    assert rows["ZeRO"]["fits"]
    assert "the time of the best combination" in rows["ZeRO"]["sentence"]
    first = plain(page.content.decode()).partition('class="tiles"')[0]
    assert "On their own DP (3.2 TiB of 38 GiB), TP (65 of 38 GiB) and PP (62 of 38 GiB) do not fit." in first


def test_nothing_fits_is_a_designed_state(reader: Client) -> None:
    page = reader.get(PAGE, {"model": "gpt-1t", "cluster": "l4", "devices": "8", "batch": "8"})
    assert page.status_code == 200
    assert page.context["verdict"][0].startswith("0 of ")
    assert "the smallest plan needs" in page.context["verdict"][0]
    assert page.context["verdict"][1] == "Use more devices or allow offload."
    allowed = {"model": "gpt-175b", "cluster": "b200", "devices": "8", "batch": "64", "offload": "yes"}
    why, advice = reader.get(PAGE, allowed).context["verdict"]
    assert "but the host needs" in why and advice == "Use more devices."


@pytest.mark.parametrize(
    ("asked", "field", "words"),
    [
        ({"network": "0"}, "network", "Must be from 0.000001 to 100\xa0000 GB/s; got 0."),
        ({"memory": "-4"}, "memory", "Must be from 0.000001 to 4\xa0096 GiB; got -4."),
        ({"devices": "1000000"}, "devices", "1 to 100"),
        ({"devices": "1001"}, "devices", "try 1000 or 1008"),
        ({"heads": "7"}, "heads", "does not divide hidden=12288"),
        ({"batch": "0"}, "batch", "Batch must be a whole number of at least 1; got 0."),
        ({"plan": "TP 8 and magic"}, "plan", "is not understood"),
        ({"model": "gpt-9"}, "model", "one of 16 names, such as "),
        ({"link": "nan"}, "link", "number"),
    ],
)
def test_what_cannot_be_is_told_at_its_field(reader: Client, asked: dict[str, str], field: str, words: str) -> None:
    page = reader.get(PAGE, asked)
    assert page.status_code == 200
    assert words in " ".join(page.context["form"].errors[field])
    assert "These values cannot be planned" in page.content.decode()


def test_own_values_replace_those_of_the_preset() -> None:
    form = PlannerForm({"model": "gpt-22b", "hidden": "8192", "memory": "40", "devices": "4"})
    assert form.is_valid(), form.errors
    assert (form.setup.job.model.hidden, form.setup.job.model.ffn) == (8192, 4 * 8192)
    assert form.setup.cluster.device.memory == 40 * GIB
    assert form.setup.cluster.per_host == 4


def test_days_and_price_follow_from_the_step(reader: Client) -> None:
    page = reader.get(PAGE, {"tokens": "300", "price": "3"})
    tiles = {name: value for name, value, _ in page.context["tiles"]}
    assert all(more.startswith("in your currency: ") for name, _, more in page.context["tiles"] if name == "Price")
    judged, (job, cluster) = page.context["judged"], page.context["view"].setup
    seconds = judged.seconds
    days = 300e9 / job.tokens * seconds / 86400
    assert float(tiles["Days"]) == pytest.approx(days, rel=0.01)
    assert tiles["Price"] == large_text(round(days * 24 * 1024 * 3)), "predicted, so not to the last coin"
    assert tiles["Tokens a second"] == large_text(round(job.tokens / seconds))
    assert f", {rate_text(job.tokens / seconds)}, " in time_sentence(job, cluster, judged)


def test_answers_and_timeline_come_on_their_own(reader: Client) -> None:
    text = reader.get(PAGE + "questions").content.decode()
    for question in ("What fits?", "Fewest GPUs?", "Free communication?", "Faster links?", "The next GPU?"):
        assert question in text
    chart = reader.get(PAGE + "timeline.json", {"plan": "TP 8 x PP 8 x DP 16, 1f1b"}).json()
    assert "idle on the busiest stage" in chart["title"]
    assert " of bubble, by formula, and " in chart["source"] and "there" not in chart["source"]
    other = reader.get(PAGE + "timeline.json", {"plan": "TP 8 x PP 8 x DP 16, 1f1b-2bw"}).json()
    assert "stays full from step to step" in other["source"]
    assert len(chart["figure"]["data"]) >= 3
    assert reader.get(PAGE + "timeline.json", {"plan": "PP 96 x DP 8", "batch": "64"}).status_code in (404, 422)
    none = reader.get(PAGE + "timeline.json", {"plan": "TP 7 x PP 8 x DP 16"})
    assert none.status_code == 404 and "heads" in none.json()["detail"]


def test_the_step_and_its_timeline_have_one_unit(reader: Client) -> None:
    """A step of ten seconds or more is in seconds in both; each is what its axis and its table say."""
    for batch, unit, per_second in (("1536", "s", 1), ("64", "ms", 1000)):
        asked = {"plan": "TP 8 x PP 8 x DP 16, 1f1b", "batch": batch}
        page = reader.get(PAGE, asked).context
        assert f"rank that ends last, {unit};" in page["charts"]["step"].subtitle
        chart = reader.get(PAGE + "timeline.json", asked).json()
        axis = chart["figure"]["layout"]["xaxis"]
        assert axis["title"]["text"] == f"{unit} from the start of the step"
        assert axis["range"][1] == pytest.approx(page["judged"].seconds * per_second, rel=0.5)
        assert f"One predicted step, {unit} from its start;" in chart["subtitle"]
        assert all(column.endswith(f", {unit}") for column in chart["columns"][1:])
        drawn = [end for one in chart["figure"]["data"] for end in map(sum, zip(one["x"], one["base"], strict=True))]
        assert max(drawn) == pytest.approx(axis["range"][1], rel=0.01)


def test_exports_name_every_field_of_the_plans(reader: Client) -> None:
    rows = reader.get(PAGE + "plans.json").json()["data"]
    lines = list(csv.DictReader(io.StringIO(reader.get(PAGE + "plans.csv").content.decode())))
    assert [line["label"] for line in lines] == [row["label"] for row in rows]
    assert {"dp", "tp", "pp", "schedule", "step_s", "peak_bytes", "mfu"} <= set(rows[0])
    for row in rows[:20]:
        assert read(row["label"]).devices == 1024
    assert reader.get(PAGE + "plans.json", {"network": "0"}).status_code == 422


def test_arguments_carry_the_plan(reader: Client) -> None:
    asked = {"plan": "TP 8 x PP 8 x DP 16, interleaved 3, ZeRO-1, SP, selective recompute", "batch": "1536"}
    context = reader.get(PAGE, asked).context
    assert "torchrun --nnodes=128 --nproc-per-node=8" in context["launcher"]
    flags = context["flags"]
    for flag in ("--tensor-model-parallel-size 8", "--num-layers-per-virtual-pipeline-stage 4", "--sequence-parallel"):
        assert flag in flags
    assert "--use-distributed-optimizer" in flags
    assert "--recompute-activations" in flags


def test_splits_by_columns_are_tried_when_asked(reader: Client) -> None:
    """The search uses them only if asked; a typed plan may use them in any case."""
    rows = [reader.get(PAGE + "plans.json", {"columns": asked}).json()["data"] for asked in ("no", "yes")]
    assert not any(row["by_columns"] for row in rows[0])
    assert len(rows[0]) == len(rows[1]) and rows[1][0]["step_s"] <= rows[0][0]["step_s"]
    typed = reader.get(PAGE, {"plan": "TP 8 x PP 16 x DP 8, ZeRO-1, by columns"})
    assert "by columns" in typed.content.decode() and typed.context["missing"]
    wrong = reader.get(PAGE, {"columns": "both"})
    assert list(wrong.context["form"].errors) == ["columns"]


def test_htmx_gets_the_result_alone(reader: Client) -> None:
    text = reader.get(PAGE, headers={"HX-Request": "true"}).content.decode()
    assert "<html" not in text
    assert 'id="verdict"' in text
    assert 'hx-swap-oob="true"' in text


def test_the_layout_of_a_plan_is_drawn_with_the_rank_and_the_split_of_the_address(reader: Client) -> None:
    asked = {"model": "gpt-22b", "cluster": "a100-40", "devices": "64", "batch": "256", "plan": "TP 8 x DP 8, ZeRO-1"}
    drawn = reader.get(f"{PAGE}layout", {**asked, "rank": "9", "split": "columns"}).content.decode()
    assert "What rank 9 holds if split by columns" in drawn and "Pairs send " in drawn
    assert "&amp;rank=9&amp;split=pairs#layout" in drawn and "&amp;rank=8&amp;split=columns#layout" in drawn
    assert "&amp;rank=9" in reader.get(PAGE, {**asked, "rank": "9"}).content.decode()
    large = reader.get(f"{PAGE}layout", {**asked, "devices": "1024", "plan": "TP 8 x DP 128"}).content.decode()
    many = "1\N{NO-BREAK SPACE}024 ranks"
    assert f"{many}: choose one" in large and f"64 of {many} drawn" in large, "numbers are formatted alike"
    assert reader.get(f"{PAGE}layout", {"devices": "x"}, headers={"HX-Request": "true"}).status_code == 422
    assert "notice" not in drawn and "notice" not in reader.get(f"{PAGE}layout", asked).content.decode()
    for rank, said in (
        ("99999", "There is no rank 99\N{NO-BREAK SPACE}999"),
        ("²", "The address names no rank"),
        ("-1", "The address"),
    ):
        text = reader.get(f"{PAGE}layout", {**asked, "rank": rank}).content.decode()
        assert "What rank 0 holds" in text and said in text and ": ranks are 0 to 63. Rank 0 is shown." in text


def test_a_best_plan_on_fewer_devices_is_named_so_and_drawn_once(reader: Client) -> None:
    """105 layers on a power of two of devices: a pipeline leaves some of them out."""
    page = reader.get(PAGE, {"model": "gpt-530b", "cluster": "h100", "devices": "1024", "batch": "1024"})
    first = page.context["ranked"][0]
    assert re.search(r", on \d+ of 1024 devices$", first.label) and first.chosen and "1024" not in first.address[-60:]
    assert "asked about" not in page.context["charts"]["plans"].source


def test_what_cannot_be_cut_is_not_said_to_be_too_large(reader: Client) -> None:
    verdict = " ".join(reader.get(PAGE, {"model": "gpt-1t", "devices": "88", "batch": "1"}).context["verdict"])
    assert "No plan cuts" in verdict and "GiB" not in verdict
    few = reader.get(PAGE, {"model": "gpt-125m", "batch": "1"}).context["ranked"][0].label
    assert re.search(r", on \d of 1024 devices$", few), "a few devices can share its layers and heads"
    small = " ".join(reader.get(PAGE, {"model": "gpt-200b", "devices": "8"}).context["verdict"])
    assert "the smallest plan needs" in small


@pytest.mark.parametrize("asked", [{"devices": "7", "model": "gpt-13b", "batch": "7"}, {"plan": "TP 8 x PP 4"}])
def test_never_more_plans_are_drawn_than_there_are(reader: Client, asked: dict[str, str]) -> None:
    source = reader.get(PAGE, asked).context["charts"]["plans"].source
    drawn, whole = (
        int(part.replace("\N{NO-BREAK SPACE}", "")) for part in re.findall(r"(\d[\d\xa0]*)(?: of| plans)", source)[-2:]
    )
    assert drawn <= whole
    assert ("asked about" in source) == ("plan" in asked)


def test_the_way_to_this_fleet_says_whether_a_model_must_be_profiled_first(reader: Client, alice: Any) -> None:
    assert "once a model is profiled" in reader.get(PAGE).content.decode()
    factory.profiled(alice, factory.worker(), factory.PROFILED)
    text = reader.get(PAGE).content.decode()
    assert "once a model is profiled" not in text and "This fleet, measured" in text


def test_one_device_and_what_does_not_fit_are_counted_alike(reader: Client) -> None:
    asked = {"model": "gpt-125m", "cluster": "l4", "devices": "1", "batch": "1"}
    assert "1 device in use" in reader.get("/planner/", asked).content.decode()
    none = {"model": "gpt-1t", "devices": "8", "batch": "8"}
    head, said = (
        re.search(
            r"0 of ([\d\s]+) plans fit", reader.get(f"/planner/{part}", none).content.decode().replace("\xa0", " ")
        )
        for part in ("", "questions")
    )
    assert head and said and head[1] == said[1]
