"""Scenarios that break a run: queued from their card, run, and explained in a postmortem with its proof."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from django.test import Client
from django.urls import reverse

from dashboard.runs.models import MemoryRecord, Run, SeriesChunk
from dashboard.runs.standing import standing
from dashboard.studies import breakages, postmortem
from dashboard.studies.breakages import BREAKAGES, NAMES
from dashboard.studies.models import Study
from dashboard.studies.overview import answer_cache, figures
from dashboard.studies.selectors import overview
from parallel_core.observe.records import POINT
from tests.dashboard import factory
from tests.dashboard.plain import plain

pytestmark = pytest.mark.django_db


NOT_FOR_VIEWERS = "Your account may look but not submit; ask an admin for the role of a member."


@pytest.fixture(autouse=True)
def _broker(redis_url: str) -> None:
    """Announcements need a broker."""


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda one: one.key)
def test_each_has_a_run_before_a_broken_one_and_a_proof(breakage: Any) -> None:
    plan = breakages.plan(breakage)
    assert not plan.skipped and [v.name.split(":")[0] for v in plan.variants] == list(NAMES)
    before, broken, proof = (v.spec for v in plan.variants)
    assert before.model == broken.model == proof.model
    assert before.train.global_batch == broken.train.global_batch == proof.train.global_batch
    assert not before.inject and not proof.inject and broken.parallel.world == proof.parallel.world == 2
    assert broken.inject or broken.parallel.schedule == "naive"


def test_a_card_queues_its_study(client: Client, alice: Any, bob: Any) -> None:
    client.force_login(alice)
    page = client.get(reverse("plans:scenarios")).content.decode()
    assert all(breakage.title in page for breakage in BREAKAGES) and "Reproduce it here" in page
    factory.worker(devices=1)
    page = client.get(reverse("plans:scenarios")).content.decode()
    assert "Reproduce it here" not in page and page.count("This fleet cannot run it. Broken") == len(BREAKAGES)
    refused = client.post("/studies/break/naive", follow=True).content.decode()
    assert "Broken" in refused and not Study.objects.exists()
    factory.worker("yard-b", devices=2)
    answer = client.post("/studies/break/doubled")
    study = Study.objects.get()
    assert answer.headers["Location"] == f"/studies/{study.pk}/" and study.kind == "postmortem"
    assert [bool(run.injected) for run in study.runs.order_by("position")] == [False, True, False]
    address = f"/studies/{study.pk}/findings/"
    waits = client.get(address).content.decode()
    assert "Postmortem" in waits and "has not ended yet" in waits and f'data-live-src="{address}"' in waits
    assert client.post("/studies/break/warp").status_code == 404
    client.force_login(bob)
    assert client.post("/studies/break/naive").status_code == 403
    to_viewers = client.get(reverse("plans:scenarios")).content.decode()
    assert "Reproduce it here" not in to_viewers and NOT_FOR_VIEWERS in to_viewers and NOT_FOR_VIEWERS not in page


def ended(owner: Any, key: str) -> Study:
    """The scenario's study with all its runs finished, as the factory simulates them."""
    made = Study.objects.create(name=key, owner=owner, kind="postmortem", base=factory.BASE, settings={"scenario": key})
    for i, variant in enumerate(breakages.plan(breakages.BY_KEY[key]).variants):
        split = variant.spec.parallel.model_dump(mode="json")
        factory.finished(owner, split, study=made, position=i, name=variant.name)
    made.baseline = made.runs.order_by("position").first()
    made.save()
    MemoryRecord.objects.all().delete()  # the rules about memory are not what these scenarios are about
    return made


def test_the_postmortem_has_cause_evidence_change_and_proof(client: Client, alice: Any) -> None:
    study = ended(alice, "naive")
    odd = study.runs.get(position=breakages.BROKEN)
    parts = odd.summary["breakdown"]
    parts |= {"bubble": parts["bubble"] // 2, "other": parts["other"] + parts["bubble"] // 2}
    odd.save()  # the one step that the charts show, which is not the median of all
    client.force_login(alice)
    part = client.get(f"/studies/{study.pk}/findings/").content.decode()
    found = postmortem.of_study(study, overview(study.runs.all(), study.baseline))
    assert found and found.findings[0].rule == "few_micro_batches", (
        "the cause comes before the loss of scaling that it leads to"
    )
    assert [cause.rule for cause in found.causes] == ["few_micro_batches"]
    assert 'data-rule="few_micro_batches"' in part and "Set “Pipeline schedule” to 1F1B." in part
    share = found.causes[0].title.partition(" of the step is bubble")[0]
    predicted = re.search(r"a replay of the broken step predicts ([\d.]+) ms \(([+−]\d+\.\d) %\); ", found.proof)
    assert predicted, "how far the replay was off is said where both are known"
    took = found.proof_run.entry.traced_median or 0.0
    error = float(predicted[2].replace("−", "-")) / 100
    assert float(predicted[1]) / 1e3 == pytest.approx(took * (1 + error), rel=0.01)
    assert f" instead of {share}; " in found.proof.partition("bubble ")[2], "evidence and proof are of one measure"
    page = client.get(f"/studies/{study.pk}/").content.decode()
    assert page.count('id="findings"') == 1 and page.index('id="findings"') < page.index('id="verdict"'), (
        "the findings precede the verdict"
    )
    listed = answer_cache.verdicts([study])[study.pk]
    assert listed.startswith(f"{found.causes[0].title} "), "in the list, too, the cause comes before times"
    assert "fastest" in listed
    lines = figures.losses(overview(study.runs.all(), study.baseline))
    looks = {trace["line"]["color"] + trace["line"]["dash"] for trace in lines.figure["data"]}
    assert looks == {"var(--line-single)solid", "var(--bad)dot", "var(--good)dash"}, (
        "each line has its own colour and dash"
    )
    assert "dotted = broken, dashed = proof" in lines.subtitle
    assert "the speed of the broken run" in found.proof and found.proof in plain(part).replace("&#x27;", "'")
    assert breakages.BY_KEY["naive"].symptom in client.get(f"/studies/{study.pk}/report/").content.decode()


def test_the_proof_of_replicas_is_about_communication_and_no_pipeline(alice: Any) -> None:
    study = ended(alice, "doubled")
    found = postmortem.of_study(study, overview(study.runs.all(), study.baseline))
    assert (
        found
        and "communication not hidden" in found.proof
        and "replay" not in found.proof
        and "bubble" not in found.proof
    )


@pytest.mark.parametrize("position", [breakages.BEFORE, breakages.BROKEN, breakages.PROOF])
def test_busy_devices_are_a_caution_and_not_the_cause(client: Client, alice: Any, position: int) -> None:
    """Whichever of the three runs was disturbed, because their times are compared with each other."""
    study = ended(alice, "naive")
    noisy = study.runs.get(position=position)
    noisy.summary = {**noisy.summary, "cpu_others": 0.5}
    noisy.save()
    client.force_login(alice)
    found = postmortem.of_study(study, overview(study.runs.all(), study.baseline))
    assert found and [cause.rule for cause in found.causes] == ["few_micro_batches"]
    assert "disturbed" not in [finding.rule for finding in found.findings] and found.disturbed.startswith("50 %")
    assert "scaling" in [finding.rule for finding in found.besides], (
        "the loss of scaling is reported although other processes ran"
    )
    left_out = found.proof.endswith("the rules find nothing, but most that judge times were left out.")
    assert left_out is (position == breakages.PROOF), found.proof
    assert "Read the times with care" in client.get(f"/studies/{study.pk}/findings/").content.decode()


def test_of_several_disturbed_runs_the_most_is_said_to_be_the_most(alice: Any) -> None:
    study = ended(alice, "naive")
    for run in study.runs.filter(position__in=(breakages.BROKEN, breakages.PROOF)):
        run.summary = {**run.summary, "cpu_others": 0.3 + run.position / 10}
        run.save()
    found = postmortem.of_study(study, overview(study.runs.all(), study.baseline))
    assert found and found.disturbed == (
        f"Up to {30 + 10 * breakages.PROOF} % of the time of one device went to other processes, in 2 of 3 runs."
    )


def test_what_was_found_stays_while_a_disturbed_run_is_repeated(alice: Any) -> None:
    study = ended(alice, "naive")
    broken = study.runs.get(position=breakages.BROKEN)
    again = factory.queued(alice, {"pp": 2, "schedule": "naive"}, study=study, position=breakages.BROKEN)
    Run.objects.filter(pk=again.pk).update(repeats=broken)
    stand = standing(study.runs.all())
    assert again in stand and broken in stand
    found = postmortem.of_study(study, overview(stand, study.baseline))
    assert found and found.broken.run == broken and found.findings and not found.waits


def test_the_loss_comes_first_and_a_missing_run_tells_nothing(alice: Any) -> None:
    study = ended(alice, "nan")
    broken = study.runs.get(position=breakages.BROKEN)
    chunk = SeriesChunk.objects.filter(attempt__run=broken, name="loss").latest("pk")
    rows = np.frombuffer(bytes(chunk.data), POINT).copy()
    rows["value"][-5:] = np.nan
    chunk.data = rows.tobytes()
    chunk.save()
    found = postmortem.of_study(study, overview(study.runs.all(), study.baseline))
    assert found and found.findings[0].rule == "divergence" and "not a number" in found.findings[0].title
    Run.objects.filter(pk=broken.pk).delete()
    assert postmortem.of_study(study, overview(study.runs.all())) is None
