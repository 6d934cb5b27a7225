"""Studies of runs that begin from Llama weights: every run does, or is left out with the reason."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from dashboard.fleet.models import Worker
from dashboard.runs import services
from dashboard.runs.models import Run, State
from dashboard.studies.models import Study
from tests.dashboard.new_study import NEW, preview
from tests.dashboard.test_weights import spec_of, tiny, two

__all__ = ["tiny", "two"]  # fixtures
pytestmark = pytest.mark.django_db


def asked(member: Client, run: Run, kind: str = "sweep", **more: str) -> dict[str, str]:
    """The form of a study that varies the run, as its page shows it, with `more`."""
    form = member.get(NEW, {"kind": kind, "run": str(run.pk)}).context["form"]
    shown = {name: form[name].value() for name in form.fields}
    sent = {name: str(value) for name, value in shown.items() if value not in (None, False)}
    return {**sent, "kind": kind, **more}


def test_a_sweep_of_a_run_keeps_the_weights_that_it_begins_from(
    member: Client, tiny: dict[str, Any], two: Worker, alice: Any
) -> None:
    run = services.submit(owner=alice, spec=spec_of(tiny))
    sent = asked(member, run, field="train.seed", values="1, 2")
    assert member.post(NEW, sent).status_code == 302
    made = Run.objects.exclude(pk=run.pk)
    assert [one.spec["train"]["weights"] for one in made] == ["tiny", "tiny"]
    study = Study.objects.get()
    again = member.get(NEW, {"clone": study.pk}).context["form"]
    assert again["train__weights"].value() == "tiny"
    assert "tiny" in [value for value, _ in again.fields["train__weights"].widget.choices]

    Worker.objects.filter(name="yard-b").update(weights=[])
    refused = member.post(NEW, sent)
    assert refused.status_code == 422
    assert refused.context["form"].errors["train__weights"][0].startswith("No worker that reports has the weights tiny")


def test_values_that_differ_from_the_weights_are_left_out_with_the_reason(
    member: Client, tiny: dict[str, Any], two: Worker, alice: Any
) -> None:
    run = services.submit(owner=alice, spec=spec_of(tiny))
    sent = asked(member, run, field="model.layers", values="2, 3")
    said = preview(member, {**sent, "begun_for": "model.layers"})
    assert "The weights tiny have Layers = 2; this run has Layers = 3." in said, said
    assert member.post(NEW, sent).status_code == 302
    assert [one.spec["model"]["layers"] for one in Run.objects.exclude(pk=run.pk)] == [2]


def test_the_search_for_the_most_layers_begins_from_no_weights(
    member: Client, tiny: dict[str, Any], two: Worker, alice: Any
) -> None:
    run = services.submit(owner=alice, spec=spec_of(tiny))
    form = member.get(NEW, {"kind": "fit", "run": str(run.pk)}).context["form"]
    assert "train__weights" not in form.fields and not form.errors


def test_a_run_is_not_queued_again_once_its_weights_are_gone(
    member: Client, tiny: dict[str, Any], two: Worker, alice: Any
) -> None:
    """Any worker would get it, and refuse it."""
    run = services.submit(owner=alice, spec=spec_of(tiny))
    assert member.post(NEW, asked(member, run, field="train.seed", values="1, 2")).status_code == 302
    study = Study.objects.get()
    study.runs.update(state=State.CANCELLED)
    Worker.objects.filter(name="yard-b").update(weights=[])
    said = member.post(f"/studies/{study.pk}/again/", {"which": "cancelled"}, follow=True).content.decode()
    assert "No worker that reports has the weights tiny" in said
    assert not study.runs.filter(state=State.QUEUED).exists()
