"""Links between hosts: asked for on Fleet, timed by a run over both, kept, and shown."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.core.exceptions import PermissionDenied
from django.test import Client
from django.utils import timezone

from dashboard.api.models import Scope
from dashboard.control.orders import start_message
from dashboard.fleet.models import Worker
from dashboard.ledger import between, recalibration, replays, selectors
from dashboard.ledger.fleet_page import FleetPage
from dashboard.ledger.models import LinksBetween, Prediction, Profile
from dashboard.ledger.services import answer_profile, ask_profile, settle
from dashboard.runs import linking, queue, services, states, submission
from dashboard.runs.models import Attempt, Run, State
from dashboard.runs.panel import Panel
from dashboard.runs.spec_fields import from_spec
from parallel_core.observe.records import encode
from parallel_core.plan.fleet import MOST_DEVICES
from parallel_core.profile import table
from parallel_core.spec import ModelSpec, RunSpec
from tests.dashboard import factory
from tests.dashboard.analysed import answered
from tests.dashboard.test_api import bearer
from tests.dashboard.test_forms import filled
from tests.parallel_core import tables

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def broker(redis_url: str) -> None:
    """Announcements have somewhere to go."""


@pytest.fixture
def two_hosts(db: None) -> None:
    factory.worker("yard-a", devices=2)
    factory.worker("yard-b", devices=3)


def line(what: str, alpha: float, beta: float, ranks: int = 2, hosts: int = 2) -> dict[str, Any]:
    sizes = [1024, 1 << 24]
    found = {"what": what, "ranks": ranks, "hosts": hosts}
    found["time"] = {"sizes": sizes, "seconds": [alpha + beta * size for size in sizes]}
    return found


def told(links: list[dict[str, Any]], device: str = "cpu") -> bytes:
    return encode({"kind": "links", "rank": 0, "t": 1.0, "software": "torch 9", "device": device, "links": links})


def started(run: Run) -> Attempt:
    nodes = [
        {"worker": name, "devices": [0, 1], "first_rank": 2 * i, "address": "x"} for i, name in enumerate(run.between)
    ]
    return states.place(run, nodes, Worker.objects.get(name=run.between[0]))


def timed(owner: Any, alpha: float = 1e-3, beta: float = 1e-9) -> Run:
    """A run that timed the links of both hosts."""
    run = linking.submit(owner=owner, first="yard-b", second="yard-a")
    factory.feed(started(run), 0, told([line(what, alpha, beta) for what in ("send", "all_reduce")]))
    factory.end(run, State.SUCCEEDED)
    return run


def test_a_pair_is_timed_by_a_run_that_has_both_to_itself(member: Client, two_hosts: None) -> None:
    page = member.get("/fleet/").content.decode()
    assert "Links between hosts" in page and "is not predicted" in page
    made = member.post("/runs/links", {"first": "yard-b", "second": "yard-a"})
    run = Run.objects.get()
    assert made.status_code == 302 and made["Location"] == f"/runs/{run.pk}/"
    assert (run.between, run.label, run.devices) == (["yard-a", "yard-b"], "Links", 4)  # two of each: as many as both
    (request,) = queue.requests(queue.queued_runs())
    assert (request.among, request.hosts, request.exclusive) == (("yard-a", "yard-b"), 2, True)
    assert start_message(started(run))["wish"] == {"links": ["yard-a", "yard-b"]}
    again = member.post("/runs/links", {"first": "yard-a", "second": "yard-b"})
    assert again["Location"] == f"/runs/{run.pk}/" and Run.objects.count() == 1  # one is under way


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("yard-a", "yard-a", "yard-a was chosen twice"),
        ("yard-a", "nobody", "No worker 'nobody' reports"),
        ("", "yard-b", "No worker '' reports"),
    ],
)
def test_what_is_no_pair_is_refused_in_words(
    member: Client, two_hosts: None, first: str, second: str, said: str
) -> None:
    answer = member.post("/runs/links", {"first": first, "second": second}, follow=True)
    assert said in answer.content.decode().replace("&#x27;", "'")
    assert not Run.objects.exists()


def test_hosts_without_a_device_in_common_are_refused(two_hosts: None, alice: Any) -> None:
    other = Worker.objects.get(name="yard-b")
    other.devices = [{**device, "kind": "cuda"} for device in other.devices]
    other.save()
    with pytest.raises(services.Invalid, match="no device of the same kind"):
        linking.submit(owner=alice, first="yard-a", second="yard-b")


def test_a_viewer_may_look_but_not_ask(reader: Client, two_hosts: None, bob: Any) -> None:
    assert 'id="time-links"' not in reader.get("/fleet/").content.decode()
    assert reader.post("/runs/links", {"first": "yard-a", "second": "yard-b"}).status_code == 403
    with pytest.raises(PermissionDenied):
        linking.submit(owner=bob, first="yard-a", second="yard-b")


def test_it_waits_for_both_by_name(two_hosts: None, alice: Any) -> None:
    run = linking.submit(owner=alice, first="yard-a", second="yard-b")
    Worker.objects.filter(name="yard-b").update(draining=True)
    said = queue.waiting(run).sentence
    assert said == "Waits for yard-b, silent or draining: it times messages between yard-a and yard-b."


def test_what_was_timed_is_kept_and_shown(member: Client, two_hosts: None, alice: Any) -> None:
    run = timed(alice)
    page = member.get(f"/runs/{run.pk}/").content.decode()
    assert "1 ms and 954 MiB/s between yard-a and yard-b" in page
    assert "2 ranks, 1 on each host" in page
    assert "954 MiB/s" in member.get(f"/runs/{run.pk}/part/text").content.decode()  # as live pages fetch it
    fleet = member.get("/fleet/").content.decode()
    assert f'<a href="/runs/{run.pk}/">run {run.pk}</a>' in fleet and "954 MiB/s" in fleet
    run.refresh_from_db()
    assert run.summary["timed"] is None and not hasattr(run, "prediction")


def test_of_a_pair_the_newest_counts(two_hosts: None, alice: Any) -> None:
    timed(alice, alpha=1.0)
    timed(alice, alpha=2.0)
    factory.worker("yard-c")
    (found,) = between.known(["yard-b", "yard-c", "yard-a"], "cpu")
    send = found.link("send", 2)
    assert found.hosts == ("yard-a", "yard-b") and send is not None and send.time.at(1024) == pytest.approx(2.0)
    assert between.known(["yard-a", "yard-b"], "cuda") == between.known(["yard-a"], "cpu") == []


@pytest.mark.parametrize("links", [[], [{"what": "shout", "ranks": 2, "time": {"sizes": [1], "seconds": [1]}}]])
def test_what_is_no_table_is_dropped(two_hosts: None, alice: Any, links: list[dict[str, Any]]) -> None:
    run = linking.submit(owner=alice, first="yard-a", second="yard-b")
    factory.feed(started(run), 0, told(links))
    assert not LinksBetween.objects.exists()


def test_a_run_that_was_to_time_nothing_is_not_believed(two_hosts: None, alice: Any) -> None:
    factory.feed(factory.start(factory.queued(alice)), 0, told([line("send", 1.0, 0.0)]))
    assert not LinksBetween.objects.exists()


def test_a_pair_nobody_has_timed_is_offered_first(two_hosts: None, member: Client, alice: Any) -> None:
    timed(alice)
    factory.worker("yard-c")
    assert member.get("/fleet/").context["chosen"] == ["yard-a", "yard-c"]
    asked = member.get("/fleet/?first=yard-b&second=yard-c").context["chosen"]
    assert asked == ["yard-b", "yard-c"]


def test_the_table_is_that_of_the_engine(two_hosts: None, alice: Any) -> None:
    timed(alice)
    row = LinksBetween.objects.get()
    found = table.LinksBetween.model_validate(row.table)
    assert (found.software, found.device, row.device) == ("torch 9", "cpu", "cpu")


# The API


def test_a_pair_is_timed_and_read_with_a_token(client: Client, two_hosts: None, alice: Any, bob: Any) -> None:
    url, asked = "/api/v1/links", {"first": "yard-b", "second": "yard-a"}

    def ask(user: Any, scope: Scope, body: dict[str, str] = asked) -> Any:
        return client.post(url, body, content_type="application/json", headers=bearer(user, scope))

    assert ask(alice, Scope.READ).status_code == 403
    assert ask(bob, Scope.SUBMIT).status_code == 403  # a viewer
    assert client.post(url, asked, content_type="application/json").status_code == 401
    assert not Run.objects.exists()
    made = ask(alice, Scope.SUBMIT)
    run = Run.objects.get()
    assert made.status_code == 201
    assert (made.json()["data"]["id"], made.json()["data"]["wish"]) == (run.pk, {"links": ["yard-a", "yard-b"]})
    assert ask(alice, Scope.SUBMIT).json()["data"]["id"] == run.pk  # it has not ended
    factory.feed(started(run), 0, told([line("send", 1e-3, 1e-9), line("all_reduce", 1e-3, 0.0)]))
    (known,) = client.get(url, headers=bearer(bob, Scope.READ)).json()["data"]
    assert (known["hosts"], known["device"], known["run"]) == (["yard-a", "yard-b"], "cpu", run.pk)
    send, reduced = known["links"]
    assert (send["what"], send["ranks"], send["hosts"]) == ("send", 2, 2)
    assert (send["latency_s"], send["bytes_per_s"]) == (pytest.approx(1e-3), pytest.approx(1e9))
    assert (reduced["sizes"], reduced["seconds"]) == ([1024, 1 << 24], [1e-3, 1e-3])
    assert reduced["bytes_per_s"] is None
    wrong = ask(alice, Scope.SUBMIT, {"first": "yard-a", "second": "yard-a"})
    assert wrong.status_code == 422 and "yard-a was chosen twice" in wrong.json()["error"]["fields"]["second"]


# Predictions over them

MODEL = ModelSpec(layers=4, hidden=32, heads=2, seq=16)


@pytest.fixture
def profile(two_hosts: None, alice: Any) -> Profile:
    """Of yard-a."""
    spec = RunSpec.model_validate({"model": MODEL.model_dump(), "train": {"global_batch": 16}})
    asked = ask_profile(worker=Worker.objects.get(name="yard-a"), spec=spec, user=alice)
    answer_profile("yard-a", {"profile": asked.pk, "table": tables.table(MODEL).dump()})
    return Profile.objects.get(pk=asked.pk)


def over_both(owner: Any, dp: int = 4, hosts: int = 2) -> Run:
    spec = {"model": MODEL.model_dump(), "parallel": {"dp": dp}, "train": {"global_batch": 16}}
    return services.submit(owner=owner, spec=spec, over_hosts=hosts)


def ran(run: Run, *names: str, cpu_others: float = 0.01) -> Prediction:
    """It succeeded with as many ranks on each of these, a step in 20 ms; what the ledger says of it then."""
    each = run.devices // len(names)
    nodes = [{"worker": name, "devices": list(range(each)), "first_rank": i * each} for i, name in enumerate(names)]
    states.place(run, [{**node, "address": "x"} for node in nodes], Worker.objects.get(name=names[0]))
    factory.end(run, State.SUCCEEDED)
    settle(run, {"timed": {"median": 0.02}, "memory": None, "cpu_others": cpu_others, "references": []})
    return Prediction.objects.get(run=run)


def test_a_run_over_two_hosts_is_predicted_by_what_was_timed_between_them(profile: Profile, alice: Any) -> None:
    inside, before = over_both(alice, dp=2, hosts=0).prediction, over_both(alice).prediction
    assert inside.seconds and inside.hosts == []
    assert before.seconds is None and before.hosts == ["yard-b", "yard-b", "yard-a", "yard-a"]
    timed(alice, alpha=0.5)
    run = over_both(alice)
    assert run.prediction.seconds > 1.0  # an all-reduce and a gather of norms, half a second each
    settled = ran(run, "yard-a", "yard-b")
    assert (settled.disturbed, settled.left_out) == (False, "")
    assert selectors.time_record().errors == (pytest.approx(run.prediction.seconds / 0.02 - 1),)


def test_a_study_is_predicted_as_its_runs_will_be_placed(profile: Profile, member: Client, alice: Any) -> None:
    """Four devices are on both hosts; one and two fit on one, and nothing between hosts counts for them."""
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
    """One device each, so two are on both; a single one is predicted whether links are known or not. The hosts stay
    there however long the search takes."""
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
    """Those of hosts that take runs; with none there, those of the worker that was profiled."""
    given = {"profile": profile, "devices": None, "memory": None}
    assert FleetPage(given).devices == 5
    Worker.objects.filter(name="yard-b").update(draining=True)
    assert FleetPage(given).devices == 2
    Worker.objects.update(draining=True)
    assert FleetPage(given).devices == 2
    factory.worker("yard-z", devices=12)
    assert FleetPage(given).devices == MOST_DEVICES


def test_what_settles_nothing_says_why_and_what_to_do(profile: Profile, member: Client, alice: Any) -> None:
    first = ran(over_both(alice), "yard-a", "yard-b")
    assert first.disturbed
    assert first.left_out == "The links between yard-a and yard-b were never timed: time them on Fleet."
    assert "left out: The links between yard-a and yard-b" in member.get("/partition/record/").content.decode()
    late = over_both(alice)
    timed(alice)
    assert ran(late, "yard-a", "yard-b").left_out == ""  # nothing was said of it; nothing is missing now
    factory.worker("yard-c")
    elsewhere = ran(over_both(alice), "yard-a", "yard-c")
    assert elsewhere.left_out == "It was predicted over yard-a and yard-b, and ran over yard-a and yard-c."
    alone = ran(over_both(alice, dp=2, hosts=0), "yard-a", "yard-b")
    assert alone.left_out == "It was predicted on one host, and ran over yard-a and yard-b."
    together = ran(over_both(alice, dp=2), "yard-a")
    assert together.left_out == "It was predicted over yard-a and yard-b, and ran on one host."
    noisy = ran(over_both(alice), "yard-b", "yard-a", cpu_others=0.4)
    assert noisy.disturbed and noisy.left_out == ""
    assert selectors.time_record().errors == ()


def test_the_form_offers_to_time_links_that_nobody_has(profile: Profile, member: Client, alice: Any) -> None:
    spec = {"model": MODEL.model_dump(), "parallel": {"dp": 4}, "train": {"global_batch": 16}}
    panel = Panel.of(submission.assess(spec, over_hosts=2))
    assert panel.step == ("not predicted: the links between yard-a and yard-b were never timed; time them on Fleet.")
    assert panel.untimed == ("yard-a", "yard-b")
    sent = filled(parallel__dp="4", model__hidden="32", model__heads="2", model__seq="16") | {"hosts": "2"}
    page = member.post("/runs/new/check", sent).content.decode()
    assert '<a href="/fleet/?first=yard-a&amp;second=yard-b#links">Time the links</a>' in page
    timed(alice)
    said = Panel.of(submission.assess(spec, over_hosts=2))
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
