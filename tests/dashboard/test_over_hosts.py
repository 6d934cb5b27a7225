"""Runs over two hosts: predicted from measured links, settled, and planned for."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.apps import apps
from django.test import Client
from django.utils import timezone

from dashboard.fleet.models import Worker
from dashboard.ledger import recalibration, records, replays
from dashboard.ledger.fleet_page import FleetPage
from dashboard.ledger.models import Prediction, Profile
from dashboard.ledger.services import settle
from dashboard.placement.hosts import Request
from dashboard.runs import services, states, submission
from dashboard.runs.form.panel import Panel
from dashboard.runs.form.spec_fields import from_spec
from dashboard.runs.models import Attempt, Run, State
from dashboard.runs.waiting.spreading import expected
from dashboard.studies.overview.entries import shared_room
from parallel_core.plan.fleet import MOST_DEVICES
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.link_runs import timed
from tests.dashboard.run_analyst import answered
from tests.dashboard.test_forms import filled

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def broker(redis_url: str) -> None:
    """Announcements need a broker."""


MODEL = factory.PROFILED.model


@pytest.fixture
def profile(two_hosts: None, alice: Any) -> Profile:
    """A profile measured on yard-a."""
    return factory.profiled(alice, Worker.objects.get(name="yard-a"), factory.PROFILED)


def over_both(owner: Any, dp: int = 4, hosts: int = 2) -> Run:
    spec = {"model": MODEL.model_dump(), "parallel": {"dp": dp}, "train": {"global_batch": 16}}
    return services.submit(owner=owner, spec=spec, host_count=hosts)


def ran(run: Run, *names: str, cpu_others: float = 0.01) -> Prediction:
    """Ends the run as succeeded with equally many ranks on each of these hosts and a step of 20 ms; returns its
    prediction, settled.
    """
    each = run.devices // len(names)
    nodes = [{"worker": name, "devices": list(range(each)), "first_rank": i * each} for i, name in enumerate(names)]
    states.place(run, [{**node, "address": "x"} for node in nodes], Worker.objects.get(name=names[0]))
    factory.end(run, State.SUCCEEDED)
    settle(run, {"timed": {"median": 0.02}, "memory": None, "cpu_others": cpu_others, "references": []})
    return Prediction.objects.get(run=run)


def test_the_limit_of_a_study_is_the_smallest_device_of_its_newest_attempt(alice: Any) -> None:
    """On whichever of its hosts that is; other devices there do not count."""
    hosts = [factory.sized("yard-a", 24 << 30, 80 << 30), factory.sized("yard-b", 8 << 30)]
    run = factory.queued(alice, {"dp": 2})
    for number, (placed, size) in enumerate((({0: 0, 1: 0}, 8), ({0: 1}, 80)), 1):
        nodes = [{"worker": hosts[at].name, "devices": [index], "first_rank": at} for at, index in placed.items()]
        Attempt.objects.create(run=run, number=number, worker=hosts[0], devices=nodes)
        room = shared_room([run], {run.pk: RunSpec.stored(run.spec)})
        assert room is not None and room.whole == size << 30


def test_a_run_over_two_hosts_is_predicted_by_what_was_timed_between_them(profile: Profile, alice: Any) -> None:
    inside, before = over_both(alice, dp=2, hosts=0).prediction, over_both(alice).prediction
    assert inside.seconds and inside.hosts == []
    assert before.seconds is None and before.hosts == ["yard-b", "yard-b", "yard-a", "yard-a"]
    timed(alice, alpha=0.5)
    run = over_both(alice)
    said = run.prediction.seconds
    assert said and said > 1.0  # an all-reduce and a gather of norms, half a second each
    settled = ran(run, "yard-a", "yard-b")
    assert (settled.disturbed, settled.left_out) == (False, "")
    assert records.time_record().errors == (pytest.approx(said / 0.02 - 1),)


def test_a_study_is_predicted_as_its_runs_will_be_placed(profile: Profile, member: Client, alice: Any) -> None:
    """Four devices need both hosts; one or two fit on a single host, where the slow link must not count."""
    base = {"model": MODEL.model_dump(), "train": {"global_batch": 12}}
    sent = {**from_spec(base), "kind": "scaling", "name": "Both", "strategies": ["dp"], "ways": ["strong"]}
    sent |= {"counts": "2, 4", "micro_batches": "1", "timed_steps": "10", "repeats": "1", "preview": "1"}
    before = member.post("/studies/new/", sent, headers={"HX-Request": "true"})
    assert "4 dev over yard-b and yard-a" in before.content.decode()
    assert "first=yard-a&amp;second=yard-b#links" in before.content.decode()
    assert [row["step"].seconds is None for row in before.context["preview"]["rows"]] == [False, False, True]
    timed(alice, alpha=0.5)
    rows = member.post("/studies/new/", sent, headers={"HX-Request": "true"}).context["preview"]["rows"]
    assert [row["over"] for row in rows] == ["", "", "yard-b and yard-a"]
    assert rows[1]["step"].seconds < 0.5 < 1.0 < rows[2]["step"].seconds
    del sent["preview"]
    assert member.post("/studies/new/", sent).status_code == 302
    made = Prediction.objects.filter(run__study__isnull=False).order_by("run__position")
    assert [row.seconds for row in made] == [row["step"].seconds for row in rows]
    assert [len(set(row.hosts)) for row in made] == [0, 0, 2]


def test_plans_for_this_fleet_are_those_of_all_its_hosts(profile: Profile, member: Client, alice: Any) -> None:
    """One device per host, so two devices span both; a single device is predicted whether or not the link has been
    measured. Heartbeats are set in the future, so that the hosts stay online however long the search takes.
    """
    for worker in Worker.objects.all():
        worker.devices, worker.heartbeat_at = worker.devices[:1], timezone.now() + timedelta(hours=1)
        worker.save()
    page = answered(member, "/partition/fleet/")
    text, before = page.content.decode(), page.context["page"]
    assert "Splits over yard-a and yard-b are not predicted" in text and "first=yard-a&amp;second=yard-b#links" in text
    assert {way.devices for way in before.found.able} == {1}
    assert any("between yard-a and yard-b were never timed" in why for _, why in before.refused())
    timed(alice, alpha=1e-6, beta=1e-12)
    page = answered(member, "/partition/fleet/")
    text, after = page.content.decode(), page.context["page"]
    assert after.untimed is None and "are not predicted" not in text
    assert "what was timed between yard-a and yard-b" in text
    assert {way.hosts for way in after.found.able} == {(), ("yard-a", "yard-b")}
    assert all((len(way.hosts) == 2) == (way.devices == 2) for way in after.found.able)
    row = next(row for row in after.rows() if row.over)
    spec = RunSpec.model_validate_json(parse_qs(urlsplit(row.address).query)["spec"][0])
    run = services.submit(owner=alice, spec=spec.model_dump(mode="json"))
    said = next(way.seconds for way in after.found.able if way.name == row.name)
    assert run.prediction.seconds == pytest.approx(said) and set(run.prediction.hosts) == {"yard-a", "yard-b"}


def test_the_planner_takes_all_devices_of_the_fleet_up_to_what_can_be_searched(profile: Profile) -> None:
    """Counts the devices of hosts that take runs; without such a host, those of the profiled worker. At most
    MOST_DEVICES.
    """
    given = {"profile": profile, "devices": None, "memory": None, "optimizer": ""}
    assert FleetPage(given, profile.asked_by).devices == 5
    Worker.objects.filter(name="yard-b").update(across_hosts=False)
    assert FleetPage(given, profile.asked_by).devices == 3, "no run has devices of both"
    Worker.objects.filter(name="yard-b").update(draining=True)
    assert FleetPage(given, profile.asked_by).devices == 2
    Worker.objects.update(draining=True)
    assert FleetPage(given, profile.asked_by).devices == 2
    factory.worker("yard-z", devices=12)
    assert FleetPage(given, profile.asked_by).devices == MOST_DEVICES


def test_a_split_for_this_fleet_has_the_memory_of_the_devices_that_it_would_have(profile: Profile) -> None:
    """With all five, none has more than those of yard-b: they were all given the memory of the profiled worker's."""
    other = Worker.objects.get(name="yard-b")
    other.devices = [{**device, "memory_total": 400 << 20} for device in other.devices]
    other.save()

    def page(memory: float | None) -> tuple[str, dict[int, float]]:
        given = {"profile": profile, "devices": None, "memory": memory, "optimizer": ""}
        made = FleetPage(given, profile.asked_by)
        return made.each, {each["world"]: each["memory"] for each in made.search.question["placements"]}

    large, small = (4096 - 300) << 20, (400 - 300) << 20
    said = " of 400 MiB to 4 GiB less 300 MiB for the framework"
    assert page(None) == (said, {1: large, 2: large, 3: small, 4: small, 5: small})
    assert page(1000) == (" of 1000 MiB less 300 MiB for the framework", dict.fromkeys(range(1, 6), 700 << 20))


def test_a_split_for_this_fleet_is_on_the_hosts_that_have_the_memory_it_needs(profile: Profile, alice: Any) -> None:
    """Four devices: with little memory those of one host, with more those of two others; a draining one has none."""
    sizes = {"yard-a": 4096, "yard-b": 4096, "yard-c": 400, "yard-d": 9000}
    for name, count in {"yard-c": 4, "yard-d": 4}.items():
        factory.worker(name, devices=count)
    for worker in Worker.objects.all():
        worker.devices = [{**device, "memory_total": sizes[worker.name] << 20} for device in worker.devices]
        worker.draining = worker.name == "yard-d"
        worker.save()
    asked = FleetPage({"profile": profile, "devices": 4, "memory": None, "optimizer": ""}, profile.asked_by)
    found = [
        (each["memory"], sorted(set(each["hosts"])))
        for each in asked.search.question["placements"]
        if each["world"] == 4 and each["tp"] == 1
    ]
    assert found == [((400 - 300) << 20, []), ((4096 - 300) << 20, ["yard-a", "yard-b"])]
    for memory, hosts in found:
        run = Request(0, 4, "cpu", memory=memory + (300 << 20))
        assert sorted(set(expected(run))) == hosts, "as a run that needs so much is placed"


def test_what_settles_nothing_says_why_and_what_to_do(profile: Profile, member: Client, alice: Any) -> None:
    first = ran(over_both(alice), "yard-a", "yard-b")
    assert first.disturbed
    assert first.left_out == "The links between yard-a and yard-b were never timed: time them on Fleet."
    assert "left out: The links between yard-a and yard-b" in member.get("/partition/record/").content.decode()
    late = over_both(alice)
    timed(alice)
    assert ran(late, "yard-a", "yard-b").left_out == ""  # it had no prediction of a time, and nothing is missing now
    alone = ran(over_both(alice, dp=2, hosts=0), "yard-a", "yard-b")
    assert alone.left_out == "It was predicted on one host, and ran over yard-a and yard-b."
    together = ran(over_both(alice, dp=2), "yard-a")
    assert together.left_out == "It was predicted over yard-a and yard-b, and ran on one host."
    noisy = ran(over_both(alice), "yard-b", "yard-a", cpu_others=0.4)
    assert noisy.disturbed and noisy.left_out == ""
    moved = over_both(alice)
    factory.worker("yard-c")
    elsewhere = ran(moved, "yard-a", "yard-c")
    assert elsewhere.left_out == "It was predicted over yard-a and yard-b, and ran over yard-a and yard-c."
    assert records.time_record().errors == ()


def test_the_form_offers_to_time_links_that_nobody_has(profile: Profile, member: Client, alice: Any) -> None:
    spec = {"model": MODEL.model_dump(), "parallel": {"dp": 4}, "train": {"global_batch": 16}}
    panel = Panel.of(submission.assess(spec, host_count=2))
    assert panel.step == ("not predicted: the links between yard-a and yard-b were never timed; time them on Fleet.")
    assert panel.untimed == ("yard-a", "yard-b")
    sent = filled(parallel__dp="4", model__hidden="32", model__heads="2", model__seq="16") | {"hosts": "2"}
    page = member.post("/runs/new/check", sent).content.decode()
    assert '<a href="/fleet/?first=yard-a&amp;second=yard-b#links">Time the links</a>' in page
    timed(alice)
    said = Panel.of(submission.assess(spec, host_count=2))
    assert said.untimed is None
    assert said.step.endswith("the profile of yard-a and what was timed between yard-a and yard-b")


def test_no_table_is_fitted_to_runs_over_several_hosts(profile: Profile, alice: Any) -> None:
    timed(alice)
    far, near = ran(over_both(alice), "yard-a", "yard-b"), ran(over_both(alice, dp=2, hosts=0), "yard-a")
    assert not far.disturbed and recalibration.among([far, near]) == {near.pk}


def test_a_step_on_one_host_does_not_foresee_one_over_two(profile: Profile, alice: Any) -> None:
    done = factory.finished(alice, {"pp": 2, "schedule": "gpipe", "micro_batches": 4})
    asked = RunSpec.model_validate(factory.spec_of({"pp": 2, "schedule": "1f1b", "micro_batches": 4}))
    found = replays.foreseen(asked)
    assert found is not None and found[0] == done
    assert replays.foreseen(asked, ["yard-a", "yard-b"]) is None


def test_a_run_on_a_host_that_was_not_profiled_settles_nothing(profile: Profile, alice: Any) -> None:
    here, there = (ran(over_both(alice, dp=2, hosts=0), name) for name in ("yard-a", "yard-b"))
    assert (here.disturbed, here.left_out) == (False, "")
    assert there.disturbed and there.left_out == "It was predicted from the profile of yard-a, and ran on yard-b."
    assert len(records.time_record().errors) == 1
    assert recalibration.among([here, there]) == {here.pk}
    noisy = ran(over_both(alice, dp=2, hosts=0), "yard-b", cpu_others=0.4)
    assert noisy.disturbed and noisy.left_out == "", "what others used is known to have disturbed it"


def test_what_counted_before_for_another_host_no_longer_does(profile: Profile, alice: Any) -> None:
    """Rows that were settled when the host of a run was not compared with that of the profile."""
    here, there = (ran(over_both(alice, dp=2, hosts=0), name) for name in ("yard-a", "yard-b"))
    Prediction.objects.update(disturbed=False, left_out="")
    import_module("dashboard.ledger.migrations.0013_profiled_elsewhere").leave_out(apps, None)
    found = Prediction.objects.in_bulk([here.pk, there.pk])
    assert [(found[row.pk].disturbed, found[row.pk].left_out) for row in (here, there)] == [
        (False, ""),
        (True, there.left_out),
    ]


def test_a_replay_counts_where_only_a_profile_is_missing(profile: Profile, member: Client, alice: Any) -> None:
    """A replay depends neither on a profile nor on timed links, but on the hosts, and on what others use."""
    here, unprofiled, noisy = (over_both(alice, dp=2, hosts=0) for _ in range(3))
    untimed, moved = over_both(alice), over_both(alice, dp=2)
    Prediction.objects.update(replayed_seconds=0.021)
    rows = [ran(here, "yard-a"), ran(unprofiled, "yard-b"), ran(untimed, "yard-a", "yard-b"), ran(moved, "yard-a")]
    rows.append(ran(noisy, "yard-b", cpu_others=0.4))
    assert [row.elsewhere for row in rows] == [False, False, False, True, False]
    assert [row.noisy for row in rows] == [False, False, False, False, True]
    replays_of = records.replay_record()
    assert replays_of.errors == (pytest.approx(0.05),) * 3 and (replays_of.disturbed, replays_of.elsewhere) == (1, 1)
    assert replays_of.sentence().endswith(" (2 left out: 1 disturbed, 1 on other hosts).")
    times = records.time_record()
    assert len(times.errors) == 1 and (times.disturbed, times.elsewhere) == (1, 1)
    assert times.sentence().endswith(" (2 left out: 1 disturbed, 1 on other hosts).")
    text = member.get("/partition/record/").content.decode()
    assert "By what-if from another run: 3 predictions" in text and "1 on other hosts" in text


def test_stored_runs_on_other_hosts_than_predicted_are_told_apart(profile: Profile, alice: Any) -> None:
    rows = [ran(over_both(alice, dp=2, hosts=0), "yard-b"), ran(over_both(alice, dp=2), "yard-a")]
    rows += [ran(over_both(alice, dp=2, hosts=0), "yard-a", "yard-b"), ran(over_both(alice), "yard-a", "yard-b")]
    assert all(row.left_out for row in rows)
    Prediction.objects.update(elsewhere=False)
    import_module("dashboard.ledger.migrations.0014_prediction_elsewhere").tell_apart(apps, None)
    found = Prediction.objects.in_bulk([row.pk for row in rows])
    assert [found[row.pk].elsewhere for row in rows] == [False, True, True, False]
    assert [row.elsewhere for row in rows] == [False, True, True, False]


def test_the_profile_of_the_host_that_would_run_it_comes_first(profile: Profile, alice: Any) -> None:
    """yard-b has more devices, so the placement chooses it; its profile is older than the newest of yard-a."""
    own, newest = (
        factory.profiled(alice, Worker.objects.get(name=name), factory.PROFILED) for name in ("yard-b", "yard-a")
    )
    run = over_both(alice, dp=2, hosts=0)
    assert run.prediction.profile == own
    assert submission.assess(run.spec).predicted.profile == own
    Worker.objects.filter(name="yard-b").update(draining=True)
    assert over_both(alice, dp=2, hosts=0).prediction.profile == newest
