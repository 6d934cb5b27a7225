"""How long a study of text generation will take, and what the form says that this rests on."""

from __future__ import annotations

import re
from dataclasses import astuple
from typing import Any

import pytest
from django.test import Client

from dashboard.fleet.models import Worker
from dashboard.runs.generation.generating import ONE, Split
from dashboard.runs.models import Run
from dashboard.studies.generating import generation_estimate
from dashboard.studies.generating.generation import plan
from dashboard.studies.generating.generation_estimate import Evidence, Known, Times, evidence
from dashboard.studies.models import Study
from dashboard.studies.new.estimate import EFFICIENCY, METERED_STEPS, START_S, step_seconds
from dashboard.studies.new.variants import Variant
from parallel_core.analysis.quantities import seconds_text
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.new_study import NEW, preview
from tests.dashboard.plain import plain
from tests.dashboard.text_studies import MIB, asked, finish, run_of

pytestmark = pytest.mark.django_db
FIRST = "the first run shows how long a token takes"
REQUEST = {"prompt": list(b"def "), "new": 8, "samples": 2}


def variants(source: Run, *splits: Split, **change: Any) -> list[Variant]:
    return list(plan(source, 20, REQUEST | change, splits).variants)


def test_other_splits_and_more_texts_are_estimated_on_the_slow_side(source: Run) -> None:
    known = Known(ONE, texts=2, prompt=4, prefill=0.01, token=1e-3, source="measured")
    single, tensor, staged, copies = variants(source, Split(2), Split(pp=2), Split(dp=2))
    width = 2 * EFFICIENCY["tp"]
    assert known.of(single) == known.of(staged) == Times(0.01, 1e-3), "one stage works at a time"
    assert known.of(copies) == Times(0.01, 1e-3), "fewer texts on a replica are not counted as quicker"
    wide = known.of(tensor)
    assert wide is not None
    assert astuple(wide) == (pytest.approx(0.01 / width), pytest.approx(1e-3 / width), False)
    (more,) = variants(source, samples=6, prompt=list(b"def f(x)"))
    longer = known.of(more)
    assert longer is not None
    assert astuple(longer) == (pytest.approx(0.06), pytest.approx(3e-3), False)


def test_the_run_most_like_a_split_is_what_its_time_rests_on(source: Run) -> None:
    own = Known(Split(2), texts=2, prompt=4, prefill=0.02, token=5e-3, source="B")
    found = Evidence([Known(ONE, texts=2, prompt=4, prefill=0.01, token=1e-3, source="A"), own])
    single, tensor, staged = variants(source, Split(2), Split(pp=2))
    assert found.times(tensor) == Times(0.02, 5e-3)
    assert found.times(single) == found.times(staged) == Times(0.01, 1e-3)
    assert found.seconds(tensor) == pytest.approx(START_S + METERED_STEPS * 0.02 + 8 * 5e-3)
    assert found.source([single, tensor, staged]) == "Times are A and B."
    assert Evidence([]).seconds(single) is None and Evidence([]).source([single]) == ""


def test_earlier_runs_there_are_the_best_evidence(client: Client, source: Run, study: Study) -> None:
    def shown() -> str:
        return plain(
            client.post(NEW, {**asked(source), "preview": "1"}, headers={"HX-Request": "true"}).content.decode()
        )

    assert f"time unknown: {FIRST}" in shown()
    single, tensor = run_of(study, "Single"), run_of(study, "TP 2")
    finish(single, 2e-3, 9 * MIB, others=0.0)
    finish(tensor, 1e-3, 6 * MIB, others=0.5)
    page = shown()
    assert "<strong>under a minute</strong>" in page
    assert f"Times are those of run {single.pk} (Single, 2 texts at a time)." in page, "the other one was disturbed"
    times = dict(re.findall(r"<li>([^<]+?) <span[^>]*>[^<]*; (prefill [^<]+)</span>", page))
    assert times["Single"] == "prefill 10 ms, a token 2 ms" and times["TP 2"] == "prefill 11.1 ms, a token 2.22 ms"


def test_runs_of_another_model_or_host_are_none(client: Client, source: Run, study: Study) -> None:
    finish(run_of(study, "Single"), 2e-3, 9 * MIB, others=0.0)
    one = RunSpec.model_validate(run_of(study, "Single").spec)
    assert len(evidence(source, one, ["yard-a"], None).known) == 1
    assert not evidence(source, one, ["yard-b"], None).known
    other = one.model_copy(update={"model": one.model.model_copy(update={"layers": one.model.layers + 1})})
    assert not evidence(source, other, ["yard-a"], None).known


def test_before_a_run_a_profile_or_the_calibration_bounds_the_time(client: Client, source: Run, alice: Any) -> None:
    (single, tensor) = variants(source, Split(2))
    one, seq = single.spec, single.spec.model.seq
    calibration = {"device": "cpu", "model": source.spec["model"], "global_batch": 1, "step_time": 0.3}
    worker = Worker.objects.get(name="yard-a")
    worker.calibration = calibration
    worker.save()
    page = plain(preview(client, asked(source)))
    assert f"Times are at most a forward pass of {seq} tokens by the calibration there." in page
    assert page.count("a token at most 100 ms") == 3 and "; prefill 1" not in page, "no time of tensor ranks"
    each = START_S + (METERED_STEPS + 8) * 0.1
    assert f"time unknown: {FIRST}; 3 of the runs take at most {seconds_text(3 * each)} in all" in page
    assert f"1 dev, at most {each:.0f} s, " in page
    alone = plain(preview(client, asked(source, degrees="1x2x1", repeats="20")))
    assert f'at most <strong class="whole">{40 * each / 60:.0f} min</strong>' in alone and "about <strong" not in alone
    assert step_seconds(one, calibration) == pytest.approx(0.3)
    profile = factory.profiled(alice, worker, RunSpec.stored(source.spec))
    found = evidence(source, one, ["yard-a"], calibration)
    row = next(row for row in profile.table["layers"] if (row["tp"], row["recompute"], row["busy"]) == (1, "none", 1))
    times = found.times(single)
    assert times is not None and times.bound and times.token == pytest.approx(row["whole"]["forward"] / row["samples"])
    assert found.source([single]) == f"Times are at most a forward pass of {seq} tokens in the profile of yard-a."
    assert found.bound and found.times(tensor) is None and found.seconds(tensor) is None, "it has no collectives"


def test_a_deterministic_run_generates_with_the_usual_kernels(source: Run, alice: Any) -> None:
    """So a profile of those bounds the time, not one of the kernels with which it was trained."""
    train = {**source.spec["train"], "device": "cuda"}
    worker, one = Worker.objects.get(name="yard-a"), variants(source, Split())[0].spec
    for deterministic in (False, True):
        source.spec = {**source.spec, "train": {**train, "deterministic": deterministic}}
        if not deterministic:
            factory.profiled(alice, worker, RunSpec.stored(source.spec))
        assert generation_estimate._by_table(source, one, ["yard-a"]) is not None
