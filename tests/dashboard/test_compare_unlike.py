"""Runs of other kinds, precisions or limits are compared only in what they have in common."""

from __future__ import annotations

import json
import re
from typing import Any

from django.test import Client

from dashboard.runs.models import Run, State
from dashboard.studies import selectors
from dashboard.studies.overview import figures
from dashboard.studies.overview.overviews import NO_SPEEDUP
from parallel_core.spec import RunSpec
from tests.dashboard import factory


def said_once(page: Any, sentence: str) -> bool:
    return page.content.decode().count(sentence) == 1


def test_another_kind_of_model_has_no_ratio_over_the_baseline(reader: Client, alice: Any) -> None:
    a, b, c = (factory.finished(alice, {"dp": dp}) for dp in (1, 2, 1))
    mlp = RunSpec.model_validate({"model": {"kind": "mlp"}, "train": {"corpus": "digits"}})
    Run.objects.filter(pk=c.pk).update(spec=mlp.model_dump(mode="json"))
    two = reader.get(f"/compare/?runs={a.pk},{c.pk}")
    verdict = " ".join(two.context["verdict"])
    assert "A step takes: " in verdict and said_once(two, NO_SPEEDUP)
    assert not re.search(r"\dx\b", verdict) and "saved" not in verdict
    assert "waterfall" not in two.context["charts"]
    assert not any(two.context["charts"][key] for key in ("speedup", "tradeoff"))
    assert all(said in two.content.decode() for said in ("No speedup</h2>", "No time against memory</h2>"))
    three = reader.get(f"/compare/?runs={a.pk},{b.pk},{c.pk}")
    rows = {row.run.pk: row.entry.label for row in three.context["rows"]}
    chart = three.context["charts"]["speedup"]
    assert {row[0]: row[1] == figures.OTHER for row in chart.rows} == {rows[a.pk]: False, rows[b.pk]: False} | {
        rows[c.pk]: True
    }
    ticks = [three.context["charts"][key].figure["layout"]["yaxis"]["ticktext"] for key in ("speedup", "breakdown")]
    assert ticks[0] == ticks[1], "the rows of both charts are the same"
    bars = json.dumps(chart.figure["data"], default=str)
    assert rows[b.pk] in bars and rows[c.pk] not in bars
    assert said_once(three, NO_SPEEDUP)
    changes = reader.get(f"/compare/changes.json?runs={a.pk},{c.pk}")
    assert changes.status_code == 200


def test_beside_a_failed_run_of_its_kind_another_kind_of_model_is_no_rival(reader: Client, alice: Any) -> None:
    """The failed run gives no result to compare with the baseline, so no speedup chart is drawn."""
    a, failed, c = factory.finished(alice), factory.queued(alice), factory.finished(alice)
    factory.end(failed, State.FAILED, "Rank 0 ran out of memory.")
    mlp = RunSpec.model_validate({"model": {"kind": "mlp"}, "train": {"corpus": "digits"}})
    Run.objects.filter(pk=c.pk).update(spec=mlp.model_dump(mode="json"))
    page = reader.get(f"/compare/?runs={a.pk},{failed.pk},{c.pk}")
    verdict = " ".join(page.context["verdict"])
    assert "A step takes: " in verdict and "only finished" not in verdict
    assert "Single, MLP: " in verdict and f"Single, GPT #{a.pk}: " in verdict and verdict.count("; ") >= 1
    assert page.context["charts"]["speedup"] is None and "No speedup</h2>" in page.content.decode()
    assert "a lower loss is not a better one" in page.context["charts"]["loss"].subtitle


def test_the_cap_of_one_run_is_no_limit_of_another(reader: Client, alice: Any) -> None:
    a, b, failed = factory.finished(alice), factory.finished(alice, {"dp": 2}), factory.queued(alice)
    capped = {**failed.spec, "trace": {**failed.spec["trace"], "memory_cap": 4_000_000}}
    Run.objects.filter(pk=failed.pk).update(spec=capped)
    factory.end(failed, State.FAILED, "Rank 0 ran out of memory.")
    memory = reader.get(f"/compare/?runs={a.pk},{b.pk},{failed.pk}").context["charts"]["memory"]
    assert "limit 4 GiB" in memory.subtitle and "above the limit" not in memory.title
    Run.objects.filter(pk=b.pk).update(spec={**b.spec, "trace": capped["trace"]})
    assert "limit 4 GiB" in reader.get(f"/compare/?runs={a.pk},{b.pk}").context["charts"]["memory"].subtitle
    Run.objects.filter(pk=a.pk).update(spec={**a.spec, "trace": capped["trace"]})
    assert "limit 3.81 MiB" in reader.get(f"/compare/?runs={a.pk},{b.pk}").context["charts"]["memory"].subtitle


def test_what_trains_nothing_is_left_out_and_said_so(reader: Client, alice: Any) -> None:
    a, b, text = factory.finished(alice), factory.finished(alice, {"dp": 2}), factory.finished(alice, name="Generate")
    Run.objects.filter(pk=text.pk).update(task={"prompt": "def "})
    page = reader.get(f"/compare/?runs={text.pk},{a.pk},{b.pk}")
    assert [row.run.pk for row in page.context["rows"]] == [a.pk, b.pk]
    assert "Left out, as they train nothing: Generate." in page.content.decode()
    alone = reader.get(f"/compare/?runs={text.pk}").content.decode()
    assert "None of these runs trains" in alone and "has no result yet" not in alone


def test_runs_of_one_name_are_told_apart_by_their_precision(alice: Any) -> None:
    runs = [factory.queued(alice, train={"precision": precision}) for precision in ("fp32", "bf16")]
    labels = [row.entry.label for row in selectors.overview(runs).rows]
    assert labels == ["Single, fp32", "Single, bf16"]


def test_the_losses_of_two_precisions_are_judged_by_the_coarser_one(alice: Any) -> None:
    fine, rough, off = (
        factory.finished(alice, split, train={"precision": precision}, loss_shift=shift)
        for split, precision, shift in (({}, "fp32", 0.0), ({"dp": 2}, "bf16", 0.01), ({"tp": 2}, "fp32", 0.001))
    )
    for first, other in ((fine, rough), (rough, fine)):
        said = selectors.overview([first, other], first).parity_sentence
        assert " equals " in said and " within 3." in said and said.endswith("e-03 in every loss."), said
    said = selectors.overview([fine, rough, off], fine).parity_sentence
    assert said.startswith("1 of 2 differ from Single: TP by "), "not the one that differs more, as it may"
