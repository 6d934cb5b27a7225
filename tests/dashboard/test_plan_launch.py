"""Launching a plan: New run is filled in where the fleet can run it; otherwise the page says why not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.fleet.models import Worker
from dashboard.plans.launch import launch
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.model import presets
from parallel_core.plan.cluster.plans import Plan
from parallel_core.spec import RunSpec

SMALL = replace(presets()["gpt-125m"], seq=128)
JOB = Job(SMALL, 8)


@pytest.fixture
def fleet(db: None) -> Worker:
    devices = [
        {"index": i, "kind": "cpu", "name": "core", "memory_total": 2**33, "memory_used": 0, "load": 0.0}
        for i in range(2)
    ]
    return Worker.objects.create(name="yard-a", devices=devices, heartbeat_at=timezone.now())


def test_a_plan_that_the_fleet_can_run_fills_in_a_run(fleet: Worker) -> None:
    plan = Plan(pp=2, micro_batch=2, schedule="zb-h1", recompute="full", precision="fp32")
    address, why_not = launch(JOB, plan)
    assert not why_not
    spec = RunSpec.model_validate_json(parse_qs(urlsplit(address).query)["spec"][0])
    split = spec.parallel
    assert (split.pp, split.schedule, split.micro_batches, split.recompute) == (2, "zb-h1", 4, "full")
    assert (spec.model.hidden, spec.model.layers, spec.train.global_batch, spec.train.device) == (768, 12, 8, "cpu")


@pytest.mark.parametrize(("state", "optimizer", "momentum"), [(18, "adamw", 0.9), (14, "sgd", 0.9), (10, "sgd", 0.0)])
def test_its_bytes_a_parameter_choose_the_optimizer(fleet: Worker, state: int, optimizer: str, momentum: float) -> None:
    address, why_not = launch(JOB, Plan(pp=2, precision="fp32", state=state))
    assert not why_not
    train = RunSpec.model_validate_json(parse_qs(urlsplit(address).query)["spec"][0]).train
    assert (train.optimizer, train.momentum) == (optimizer, momentum)


@pytest.mark.parametrize(
    ("plan", "field", "value"),
    [
        (Plan(pp=2, zero=1), "zero", 0),
        (Plan(pp=2, sequence_parallel=True), "sequence", False),
        (Plan(pp=2, schedule="1f1b-stash"), "schedule", "1f1b-stash"),
    ],
)
def test_what_changes_nothing_in_a_plan_does_not_keep_it_from_running(
    fleet: Worker, plan: Plan, field: str, value: Any
) -> None:
    address, why_not = launch(Job(replace(SMALL, tied=False), 8), plan)
    assert not why_not
    spec = RunSpec.model_validate_json(parse_qs(urlsplit(address).query)["spec"][0])
    assert getattr(spec.parallel, field) == value


def test_why_no_ranks_are_drawn_takes_the_place_of_the_picture(bob: Any, client: Client) -> None:
    client.force_login(bob)
    asked = {"plan": "TP 5 x PP 7"}
    alone = client.get("/planner/layout", asked)
    part = client.get("/planner/layout", asked, headers={"HX-Request": "true"})
    assert (alone.status_code, part.status_code) == (422, 200), "HTMX swaps only successful responses into the page"
    assert "no such run to draw: Tensor parallel = 5 does not divide Attention heads = 96" in part.content.decode()


def test_a_layout_that_is_opened_by_itself_is_a_page(bob: Any, client: Client) -> None:
    client.force_login(bob)
    page = client.get("/planner/layout", {"model": "gpt-125m", "devices": "8", "plan": "PP 2 x DP 4"}).content.decode()
    assert "<title>Layout of a plan" in page and 'href="/planner/?' in page and "8 ranks: choose one" in page
    refused = client.get("/planner/layout", {"batch": "many"})
    assert (refused.status_code, refused["Location"]) == (302, "/planner/?batch=many")


@pytest.mark.parametrize(
    ("job", "plan", "said"),
    [
        (JOB, Plan(tp=8, pp=16), "This yard has 2 CPU devices, the plan takes 128."),
        (JOB, Plan(dp=2, offload=True), "no offload"),
        (replace(JOB, adapters=8), Plan(dp=2), "no adapters"),
        (JOB, Plan(dp=2, schedule="1f1b-stash"), "cannot run it"),
    ],
)
def test_what_it_cannot_run_says_why(fleet: Worker, job: Job, plan: Plan, said: str) -> None:
    address, why_not = launch(job, plan)
    assert not address
    assert said in why_not


def test_devices_of_workers_that_cannot_be_joined_are_not_added(fleet: Worker) -> None:
    other = Worker.objects.create(name="yard-b", devices=fleet.devices, heartbeat_at=timezone.now())
    plan = Plan(dp=4, precision="fp32")
    assert launch(JOB, plan)[0]
    Worker.objects.filter(pk=other.pk).update(across_hosts=False)
    said = "This yard has 2 CPU devices for one run, the plan takes 4. yard-b takes no part in runs over several hosts."
    assert launch(JOB, plan) == ("", said)


def test_a_run_has_devices_of_one_kind(fleet: Worker) -> None:
    gpus = [{**device, "kind": "cuda", "name": "H100"} for device in fleet.devices[:1]]
    Worker.objects.create(name="yard-a-gpu", devices=gpus, heartbeat_at=timezone.now())

    def device_of(plan: Plan) -> str:
        address, why_not = launch(JOB, plan)
        assert not why_not
        return RunSpec.model_validate_json(parse_qs(urlsplit(address).query)["spec"][0]).train.device

    assert (device_of(Plan(precision="fp32")), device_of(Plan(dp=2, precision="fp32"))) == ("cuda", "cpu")
    assert launch(JOB, Plan(dp=3)) == ("", "This yard has 2 CPU devices, the plan takes 3.")


def test_the_planner_says_it(fleet: Worker, bob: Any, client: Client) -> None:
    client.force_login(bob)
    page = client.get("/planner/", {"model": "gpt-22b", "cluster": "a100-40", "devices": "64", "batch": "256"})
    assert "This yard has 2 CPU devices, the plan takes 64." in page.content.decode().replace("\xa0", " ")
