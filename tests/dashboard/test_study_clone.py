"""Clone, on the page of a study, leads to a form that would queue the same runs again."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.test import Client

from dashboard.studies.generating.generation_form import GenerationForm
from dashboard.studies.models import Study
from dashboard.studies.new.form_views import _bound
from dashboard.studies.new.kinds import KINDS
from dashboard.studies.new.study_form import StudyForm
from dashboard.studies.starter import create_starter
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.new_study import MATRIX, NEW, SWEEP

pytestmark = pytest.mark.usefixtures("redis_url")  # announcements need a broker

LAYERS = "parallel.recompute_layers"
OWN_SCHEDULE = "# mine\n0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1"
ASKED: dict[str, dict[str, Any]] = {
    "matrix": {**MATRIX, "recompute": ["none"], "layers": "0; 0, 1", "precisions": ["fp32", "bf16"]},
    "own schedules": {**MATRIX, "strategies": [], "schedules": OWN_SCHEDULE, "micro_batches": "2"},
    "sweep": {**SWEEP, "values": "8, 16", "model__tied": "on"},
    "sweep of lists": {**SWEEP, "field": LAYERS, "values": "0; 0, 1", "parallel__recompute": "full"},
    "stashing": {**MATRIX, "kind": "stashing", "micro_batches": "4"},
    "scaling": MATRIX
    | {"kind": "scaling", "strategies": ["dp", "1f1b"], "ways": ["strong"], "counts": "2", "micro_batches": "2"},
    "fit": {**MATRIX, "kind": "fit", "strategies": ["dp"], "recompute": ["none"], "cap": "64"},
}


def link(page: str) -> str:
    """Where Clone leads."""
    found = re.search(r'href="([^"]*clone=\d+)">(?:Clone|Make it again)</a>', page)
    assert found, "the page has no Clone"
    return unescape(found[1])


def made(client: Client, data: dict[str, Any]) -> Study:
    answer = client.post(NEW, data)
    assert answer.status_code == 302, re.findall(r'class="error"[^>]*>([^<]+)', answer.content.decode())
    return Study.objects.latest("pk")


def would_run(form: StudyForm) -> list[dict[str, Any]]:
    again = _bound(form)
    assert again.is_valid(), again.errors
    return [variant.spec.model_dump(mode="json") for variant in again.planned.variants]


def test_every_kind_is_cloned_here() -> None:
    cloned = {str(asked["kind"]) for asked in ASKED.values()} | {GenerationForm.kind}  # has such a test of its own
    assert not KINDS.keys() - cloned, "add what its form is asked to ASKED"


@pytest.mark.parametrize("asked", ASKED)
def test_the_form_would_queue_the_same_runs(yard: Client, asked: str) -> None:
    study = made(yard, ASKED[asked])
    form = yard.get(link(yard.get(f"/studies/{study.pk}/").content.decode())).context["form"]
    assert form.kind == study.kind
    queued = [RunSpec.stored(run.spec).model_dump(mode="json") for run in study.runs.order_by("position")]
    assert len(queued) and would_run(form) == queued
    assert form["name"].value() == f"{study.name} (again)"


@pytest.mark.parametrize("unsaid", [(), ("splits", "schedules", "layers")], ids=["now", "of an older version"])
def test_a_starter_is_made_again_by_the_form_of_a_matrix(yard: Client, alice: Any, unsaid: tuple[str, ...]) -> None:
    host = factory.worker()
    host.calibration = {"device": "cpu", "model": factory.BASE["model"], "global_batch": 16, "step_time": 0.1}
    host.save()
    study = create_starter(owner=alice, worker=host)
    for name in unsaid:
        assert study.settings.pop(name) == []
    study.save()
    form = yard.get(link(yard.get(f"/studies/{study.pk}/").content.decode())).context["form"]
    assert form.kind == "matrix"
    assert would_run(form) == [run.spec for run in study.runs.order_by("position")]


def test_without_runs_it_is_made_again_where_a_form_made_it(yard: Client, reader: Client, alice: Any) -> None:
    study = made(yard, ASKED["sweep"])
    study.runs.all().delete()
    address = f"/studies/{study.pk}/"
    page = yard.get(address).content.decode()
    assert "can be made again from its form" in page
    assert yard.get(link(page)).context["form"]["field"].value() == "train.global_batch"
    assert "clone=" not in reader.get(address).content.decode(), "the form refuses viewers"
    Study.objects.filter(pk=study.pk).update(kind="listed")
    page = yard.get(address).content.decode()
    assert "made again" not in page and "clone=" not in page
