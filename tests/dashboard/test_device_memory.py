"""Hosts whose devices differ in memory: what the form, the queue and the placement say of a run that fits on some."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from django.utils import timezone

from dashboard.control.placing import place_queued
from dashboard.fleet.models import Worker
from dashboard.fleet.selectors import FleetSnapshot, idle_host
from dashboard.placement.assignments import plan
from dashboard.placement.hosts import Request
from dashboard.runs import services, submission
from dashboard.runs.models import Run, State
from dashboard.runs.waiting import asking, fleet_checks, queue, spreading
from dashboard.studies import reruns
from dashboard.studies.models import Study
from dashboard.studies.new import form_views
from dashboard.studies.new.feasible import feasible
from dashboard.studies.new.variants import Plan, Variant
from parallel_core.plan.memory import worst_stage
from parallel_core.plan.room import FRAMEWORK
from parallel_core.spec import RunSpec
from tests.dashboard import factory

pytestmark = pytest.mark.django_db

NEED = worst_stage(RunSpec()).total + FRAMEWORK["cpu"]
"""Bytes of a device on which a run with the default spec just fits."""
BOTH = ["yard-a", "yard-b"]


@pytest.fixture
def mixed(db: None) -> None:
    """One host with a large device, one with two that are too small by a byte."""
    factory.sized("yard-a", NEED + 1)
    factory.sized("yard-b", NEED - 1, NEED - 1)


def spec(dp: int = 1) -> dict[str, Any]:
    return {"parallel": {"dp": dp}, "train": {"global_batch": 16 * dp}}


def silence(name: str) -> None:
    Worker.objects.filter(name=name).update(heartbeat_at=timezone.now() - timedelta(hours=3))


def test_a_run_is_placed_where_it_was_said_to_fit(mixed: None, alice: Any) -> None:
    found = submission.assess(spec())
    assert found.feasibility and found.feasibility.fits and found.limit == NEED + 1 - FRAMEWORK["cpu"]
    assert found.feasibility.sentence.endswith("Left out, as their devices are smaller: yard-b (383 MiB).")
    run = submission.submit(owner=alice, spec=spec())
    assert run.needs_memory == NEED
    assert [attempt.devices[0]["worker"] for attempt in place_queued(BOTH, BOTH)] == ["yard-a"]


def test_many_ranks_are_judged_by_the_smallest_device_that_they_would_have(mixed: None, alice: Any) -> None:
    """Of three devices one is large enough; of two ranks at least one would be on a small one."""
    found = submission.assess(spec(dp=2))
    assert found.feasibility and found.feasibility.fits is False and found.limit == NEED - 1 - FRAMEWORK["cpu"]
    assert "Left out" not in found.feasibility.sentence
    found_both = feasible(Plan((Variant("one", RunSpec()), Variant("two", RunSpec.model_validate(spec(dp=2))))))
    assert [variant.name for variant in found_both.variants] == ["one"] and found_both.skipped[0].name == "two"


def test_a_study_says_which_large_hosts_its_variants_wait_for(mixed: None) -> None:
    Worker.objects.filter(name="yard-a").update(draining=True)
    found = feasible(Plan((Variant("one", RunSpec()),)))
    assert found.waits == {"one": "Too few such devices take runs now: yard-a is draining."}


def test_of_variants_that_start_only_the_fullest_is_looked_at(mixed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Mock(wraps=spreading.waits_for)
    monkeypatch.setattr(fleet_checks, "waits_for", counted)
    small = RunSpec.model_validate({**spec(), "model": {"hidden": 64}})
    every = Plan((Variant("small", small), Variant("one", RunSpec())))
    assert feasible(every).waits == {} and counted.call_count == 1
    Worker.objects.filter(name="yard-a").update(draining=True)
    assert list(feasible(every).waits) == ["one"] and counted.call_count == 3


def test_a_study_shows_the_hosts_that_have_the_memory() -> None:
    """Two ranks would be together on small devices; the large ones are on a host each."""
    two = RunSpec.model_validate(spec(dp=2))
    need = services.predicted_need(two) or 0
    for name, *sizes in (("yard-a", need), ("yard-b", need - 1, need - 1), ("yard-c", need)):
        factory.sized(name, *sizes)
    fleet = FleetSnapshot.now()
    (row,) = form_views._rows(feasible(Plan((Variant("two", two),)), fleet), fleet)
    assert row["over"] == "yard-a and yard-c"


def test_what_is_queued_although_it_fits_nowhere_is_placed(mixed: None, alice: Any) -> None:
    with pytest.raises(services.Invalid, match="more than the device"):
        submission.submit(owner=alice, spec=spec(dp=2))
    run = submission.submit(owner=alice, spec=spec(dp=2), anyway=True)
    assert run.needs_memory is None and "Starts now" in queue.waiting(run).sentence
    assert [attempt.run_id for attempt in place_queued(BOTH, BOTH)] == [run.pk]


def test_anyway_overrules_nothing_for_a_run_that_fits_or_that_its_own_cap_ends(mixed: None, alice: Any) -> None:
    assert submission.submit(owner=alice, spec=spec(), anyway=True).needs_memory == NEED
    capped = submission.submit(owner=alice, spec={**spec(), "trace": {"memory_cap": 2**20}}, anyway=True)
    assert capped.needs_memory == 2**20 + FRAMEWORK["cpu"], "it can hold no more than the cap"


def test_a_queued_run_says_which_memory_it_waits_for(mixed: None, alice: Any) -> None:
    run = submission.submit(owner=alice, spec=spec())
    silence("yard-a")
    said = queue.waiting(run).sentence
    assert said.startswith(
        "Needs 1 CPU device of 383 MiB, by its predicted memory; too small: yard-b (383 MiB). yard-a is silent (heard "
    )
    assert not list(place_queued(["yard-b"], ["yard-b"]))
    Worker.objects.filter(name="yard-a").delete()
    assert "queue it although it is predicted not to fit" in queue.waiting(run).sentence


def test_devices_that_are_free_but_too_small_or_about_to_be_given_away_are_not_counted(alice: Any) -> None:
    factory.sized("yard-a", 1 << 30, 8 << 30, 8 << 30)
    first, second, third = (factory.queued(alice, {"dp": ranks}) for ranks in (2, 1, 2))
    Run.objects.update(needs_memory=4 << 30)
    assert queue.waiting(first).sentence == "Starts now."
    said = "Waits for 1 CPU device of 4 GiB on one host: yard-a has 0 free. 1 run ahead."
    assert queue.waiting(second).sentence == said
    Run.objects.filter(pk=second.pk).delete()
    Run.objects.filter(pk=third.pk).update(run_on="worker:yard-a")
    said = (
        "Waits for 2 CPU devices of 4 GiB of worker yard-a, chosen for it, which has 0 of 2 devices free. 1 run ahead."
    )
    assert queue.waiting(third).sentence == said


def test_a_draining_host_is_awaited_and_named(mixed: None) -> None:
    Worker.objects.filter(name="yard-a").update(draining=True)
    found = submission.assess(spec())
    assert (
        found.feasibility
        and found.feasibility.fits
        and found.waits == ("Too few such devices take runs now: yard-a is draining.")
    )


def test_devices_of_one_size_are_judged_as_before_and_none_is_left_out(alice: Any) -> None:
    factory.sized("yard-a", NEED, NEED)
    found = submission.assess(spec())
    assert found.feasibility and found.feasibility.fits and "Left out" not in found.feasibility.sentence
    assert found.capacity and found.capacity.memory == NEED


def test_the_sizes_of_a_host_are_named_from_the_least_to_the_most() -> None:
    factory.sized("yard-a", 2**30, 3 * 2**30, 2**31)
    assert spreading.sizes_text(FleetSnapshot.now().idle(), "cpu") == "yard-a (1 GiB to 3 GiB)"


def test_a_run_that_is_repeated_is_placed_as_the_first_one(mixed: None, alice: Any) -> None:
    study = Study.objects.create(name="s", owner=alice, kind="sweep")
    first = [factory.queued(alice, study=study, anyway=anyway) for anyway in (False, True)]
    again = services.prepare(owner=alice, requests=[reruns._again(run, study) for run in first]).runs
    assert [run.needs_memory is None for run in again] == [False, True]


def test_no_memory_is_asked_for_before_it_is_known(alice: Any) -> None:
    """Stages that take too long to count, and runs queued by an earlier version."""
    run = services.submit(owner=alice, spec=factory.UNCOUNTED)
    assert run.needs_memory is None and asking.requests([run])[0].memory == 0
    assert Run(spec=RunSpec().model_dump(mode="json")).needs_memory is None


def test_a_run_whose_large_host_is_gone_is_run_again_and_says_what_it_waits_for(mixed: None, alice: Any) -> None:
    study = Study.objects.create(name="s", owner=alice, kind="sweep")
    factory.end(services.submit(owner=alice, spec=spec(), study=study), State.CANCELLED)
    Worker.objects.filter(name="yard-a").delete()
    (run,) = reruns.run_again(study=study, user=alice, which=reruns.cancelled)
    small = "383 MiB"
    assert reruns.waits([run]) == {
        run.pk: f"Needs 1 CPU device of {small}, by its predicted memory; too small: yard-b ({small}). "
        "Cancel it and change it, or queue it although it is predicted not to fit."
    }


def test_the_most_memory_is_found_by_bisection_and_once_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = random.Random(7)
    for i in range(8):
        factory.sized(f"yard-{i}", *(drawn.randrange(2**30, 2**36) for _ in range(4)))
    fleet = FleetSnapshot.now()
    hosts = [idle_host(worker) for worker in fleet.every]
    sizes = sorted((size for host in hosts for size in host.memory["cpu"].values()), reverse=True)
    each = [Request(0, n, "cpu", alone=alone) for n in (1, 2, 3, 4, 5, 12, 32, 33) for alone in (False, True)]
    best = [next((s for s in sizes if plan([replace(one, memory=s)], hosts).placed), sizes[0]) for one in each]
    counted = Mock(wraps=plan)
    monkeypatch.setattr(spreading, "plan", counted)
    assert [spreading.most_memory(one, fleet) for one in each] == best
    assert (count := counted.call_count) <= len(each) * len(sizes).bit_length()
    assert spreading.most_memory(Request(0, 5, "cpu"), fleet) == best[8] and counted.call_count == count
