"""Links between hosts: requested on Fleet, timed by a run over both hosts, stored, and shown."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.test import Client
from django.utils import timezone

from dashboard.api.models import Scope
from dashboard.control.dispatch import start_message
from dashboard.fleet.models import Worker
from dashboard.ledger import host_links
from dashboard.ledger.forms import models
from dashboard.ledger.models import LinksBetween
from dashboard.runs import linking, services, states
from dashboard.runs.models import Run, State
from dashboard.runs.waiting import asking, queue, turns
from parallel_core.profile import curves
from tests.dashboard import factory
from tests.dashboard.link_runs import line, started, timed, told
from tests.dashboard.plain import plain
from tests.dashboard.test_api import bearer

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def broker(redis_url: str) -> None:
    """Announcements need a broker."""


def test_a_pair_is_timed_by_a_run_that_has_both_to_itself(member: Client, two_hosts: None) -> None:
    page = member.get("/fleet/").content.decode()
    assert "Links between hosts" in page and "is not predicted" in page
    made = member.post("/runs/links", {"first": "yard-b", "second": "yard-a"})
    run = Run.objects.get()
    assert made.status_code == 302 and made["Location"] == f"/runs/{run.pk}/"
    # two devices on each host, since one host has only two
    assert (run.between, run.label, run.devices) == (["yard-a", "yard-b"], "Links", 4)
    (request,) = asking.requests(asking.queued_runs(turns.queue_order()))
    assert (request.among, request.hosts, request.exclusive) == (("yard-a", "yard-b"), 2, True)
    assert start_message(started(run))["task"] == {"links": ["yard-a", "yard-b"]}
    assert run.spec["model"] not in [spec.model.model_dump(mode="json") for spec in models().values()], (
        "the spec's model is a placeholder"
    )
    again = member.post("/runs/links", {"first": "yard-a", "second": "yard-b"})
    assert again["Location"] == f"/runs/{run.pk}/" and Run.objects.count() == 1  # the first run is still under way


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


def test_links_of_a_host_that_others_cannot_reach_are_not_timed(member: Client, two_hosts: None, alice: Any) -> None:
    run = linking.submit(owner=alice, first="yard-a", second="yard-b")
    Worker.objects.filter(name="yard-b").update(across_hosts=False)
    waits = "Waits for yard-b, silent or draining, or set to take no part in runs over several hosts: it times messages"
    assert queue.waiting(run).sentence.startswith(waits)
    fleet = member.get("/fleet/")
    assert fleet.context["link_hosts"] == [("yard-a", "")]
    assert fleet.content.decode().count("Takes no part in runs over several hosts (TRAINYARD_ACROSS_HOSTS=0).") == 1
    told = {row["name"]: row["across_hosts"] for row in member.get("/api/v1/workers").json()["data"]}
    assert told == {"yard-a": True, "yard-b": False}
    with pytest.raises(services.Invalid) as refused:
        linking.submit(owner=alice, first="yard-a", second="yard-b")
    said = "yard-b takes no part in runs over several hosts (TRAINYARD_ACROSS_HOSTS=0 there); choose another."
    assert refused.value.field_errors == {"second": said}


def test_time_again_opens_the_form_with_the_same_pair_although_one_is_silent(
    member: Client, two_hosts: None, alice: Any
) -> None:
    """It opened with the first two that report, so that another pair was timed."""
    factory.worker("yard-c")
    run = linking.submit(owner=alice, first="yard-b", second="yard-c")
    started(run)
    factory.end(run, State.SUCCEEDED)
    Worker.objects.filter(name="yard-c").update(heartbeat_at=timezone.now() - timedelta(minutes=5))
    page = member.get(f"/runs/{run.pk}/").content.decode()
    (address,) = re.findall(r'href="([^"]*)" id="again"', page)

    def opened() -> list[tuple[str, str]]:
        form = member.get(html.unescape(address)).content.decode()
        return re.findall(r'<option value="([^"]*)" selected>([^<]*)<', form)

    assert opened() == [("yard-b", "yard-b"), ("yard-c", "yard-c (silent)")]
    Worker.objects.filter(name="yard-c").update(heartbeat_at=timezone.now(), across_hosts=False)
    assert opened()[1][1] == "yard-c (takes no part in runs over several hosts)"
    Worker.objects.filter(name__in=["yard-a", "yard-c"]).delete()
    assert opened() == [("yard-b", "yard-b"), ("yard-c", "yard-c (not in the fleet)")]


def test_a_pair_of_what_no_worker_is_called_is_none(member: Client, two_hosts: None) -> None:
    """PostgreSQL takes no NUL."""
    assert member.get("/fleet/?first=%00&second=yard-b").context["chosen"] == ["yard-a", "yard-b"]


def test_links_of_a_worker_of_an_old_version_are_not_timed(member: Client, two_hosts: None, alice: Any) -> None:
    run = linking.submit(owner=alice, first="yard-a", second="yard-b")
    Worker.objects.filter(name="yard-b").update(tasks=["generate"], version="0.0.1")
    old = "yard-b runs version 0.0.1, which does not announce that it can time messages between hosts"
    assert queue.waiting(run).sentence == f"Needs a newer worker: {old}."
    told = {row["name"]: row["tasks"] for row in member.get("/api/v1/workers").json()["data"]}
    assert told == {"yard-a": ["generate", "links"], "yard-b": ["generate"]}
    with pytest.raises(services.Invalid) as refused:
        linking.submit(owner=alice, first="yard-a", second="yard-b")
    assert refused.value.field_errors == {"second": f"{old}; start it again with a newer one."}


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


def test_a_worker_that_was_removed_is_still_named(two_hosts: None, alice: Any) -> None:
    run = linking.submit(owner=alice, first="yard-a", second="yard-b")
    Worker.objects.filter(name="yard-b").delete()
    said = queue.waiting(run).sentence
    assert said == "Waits for yard-b, removed, silent or draining: it times messages between yard-a and yard-b."


def test_what_was_timed_is_kept_and_shown(member: Client, two_hosts: None, alice: Any) -> None:
    run = timed(alice)
    page = member.get(f"/runs/{run.pk}/").content.decode()
    assert "1 ms and 954 MiB/s between yard-a and yard-b" in plain(page)
    assert "2 ranks, 1 on each host" in page
    assert ">Device</th>" in page and ">Phase</th>" not in page, "its ranks have no steps, and say no places"
    assert "954 MiB/s" in member.get(f"/runs/{run.pk}/part/text").content.decode()  # fetched like this by live pages
    fleet = member.get("/fleet/").content.decode()
    assert f'<a href="/runs/{run.pk}/">run {run.pk}</a>' in fleet and "954 MiB/s" in fleet
    run.refresh_from_db()
    assert run.summary["timed"] is None and not hasattr(run, "prediction")


def test_of_a_run_that_ends_early_nothing_is_kept(member: Client, two_hosts: None, alice: Any) -> None:
    run = linking.submit(owner=alice, first="yard-a", second="yard-b")
    started(run)
    for page in (f"/runs/{run.pk}/", f"/runs/{run.pk}/cancel"):
        shown = plain(member.get(page).content.decode())
        assert "Nothing that it timed is kept" in shown and "measured so far is kept" not in shown
    factory.end(run, State.CANCELLED, cause="cancelled")
    shown = plain(member.get(f"/runs/{run.pk}/").content.decode())
    assert "no number of it is kept" in shown and "numbers appear here" not in shown


def test_a_second_attempt_is_not_to_have_had_checkpoints(member: Client, two_hosts: None, alice: Any) -> None:
    run = linking.submit(owner=alice, first="yard-a", second="yard-b")
    states.lose(started(run), "")
    Run.objects.filter(pk=run.pk).update(state=State.QUEUED)
    again = started(Run.objects.get(pk=run.pk))
    why = "its hosts share no folder of checkpoints"
    states.running(again, {"step": 0, "run": run.pk, "attempt": 0, "why": why})
    assert "are running" in run.events.order_by("-pk")[0].text and why not in run.events.order_by("-pk")[0].text
    page = member.get(f"/runs/{run.pk}/").content.decode()
    assert "attempt 2" in page and why not in page


def test_of_a_pair_the_newest_counts(two_hosts: None, alice: Any) -> None:
    timed(alice, alpha=1.0)
    timed(alice, alpha=2.0)
    factory.worker("yard-c")
    (found,) = host_links.known(["yard-b", "yard-c", "yard-a"], "cpu")
    send = found.link("send", 2)
    assert found.hosts == ("yard-a", "yard-b") and send is not None and send.time.at(1024) == pytest.approx(2.0)
    assert host_links.known(["yard-a", "yard-b"], "cuda") == host_links.known(["yard-a"], "cpu") == []


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
    found = curves.LinksBetween.model_validate(row.table)
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
    assert (made.json()["data"]["id"], made.json()["data"]["task"]) == (run.pk, {"links": ["yard-a", "yard-b"]})
    assert ask(alice, Scope.SUBMIT).json()["data"]["id"] == run.pk  # the first run has not ended
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
