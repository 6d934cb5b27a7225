"""The fleet page: who holds which device, what is waiting, and draining by staff only."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import redis
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from dashboard.control.controller import Controller
from dashboard.fleet import worker_views
from dashboard.fleet.models import Worker
from dashboard.fleet.timeline import timeline
from dashboard.fleet.usable import Usable
from dashboard.ledger import services as ledger
from dashboard.live.changes import COST
from dashboard.runs.models import Attempt, Run, State
from dashboard.studies.new.axes import Axes
from parallel_core.spec import RunSpec
from parallel_core.version import version
from tests.dashboard import factory
from tests.dashboard.fake_worker import Peer
from tests.dashboard.plain import plain


@pytest.fixture(autouse=True)
def broker(redis_url: str) -> None:
    """Announcements need a broker."""


def page(client: Client, query: str = "") -> str:
    answer = client.get(reverse("fleet:list") + query)
    assert answer.status_code == 200
    return str(answer.content.decode())


def test_empty_fleet_says_how_to_begin(client: Client, bob: Any) -> None:
    client.force_login(bob)
    assert "No worker has reported yet." in page(client)
    assert "docs/deploy.md" in page(client)


def test_devices_show_their_run_and_the_queue_its_reason(client: Client, alice: Any) -> None:
    factory.start(factory.queued(alice, {"dp": 2}, name="<b>busy</b>"))
    factory.queued(alice, name="waiting run")
    client.force_login(alice)
    said = page(client)
    assert "2 of 2 devices busy; 1 run queued." in said
    assert said.count("&lt;b&gt;busy&lt;/b&gt;") >= 2
    assert "<b>busy</b>" not in said
    assert "waiting run" in said
    assert "Waits for" in said
    assert "in service" in said
    part = client.get(reverse("fleet:part"))
    assert 'id="fleet"' in part.content.decode()
    assert float(part.headers[COST]) >= 0, "an open page asks the less often, the more an answer costs"


def test_runs_that_were_broken_on_purpose_wear_their_badge(client: Client, alice: Any) -> None:
    """On their devices, in the queue, and in the table below the timeline."""
    client.force_login(alice)
    runs = [factory.queued(alice, {"dp": 2}, name="under way"), factory.queued(alice, name="waiting run")]
    factory.start(runs[0])
    assert 'data-state="broken"' not in page(client)
    Run.objects.filter(pk__in=[run.pk for run in runs]).update(injected=["Straggler: rank 1 takes twice as long"])
    assert page(client).count('data-state="broken"') == 4  # two devices, the queue, the table


def test_runs_of_a_study_take_one_line_of_the_queue(client: Client, alice: Any) -> None:
    from dashboard.studies import services

    services.create_matrix(owner=alice, name="The study", base=factory.BASE, axes=Axes(["single", "dp"]))
    client.force_login(alice)
    said = page(client)
    assert "Queue: 4 of 4 runs" in said
    assert "then 3 more of" in said


def test_a_line_of_the_queue_counts_all_runs_of_a_study_and_hides_no_other(
    client: Client, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those so far back that nobody says yet what they wait for."""
    from dashboard.studies.models import Study

    monkeypatch.setattr("dashboard.runs.waiting.queue.PLANNED", 3)
    study = Study.objects.create(name="long", owner=alice)
    for position in range(6):
        factory.queued(alice, name=f"s{position}", study=study, position=position)
    factory.queued(alice, name="of no study")
    client.force_login(alice)
    said = page(client)
    assert "Queue: 7 of 7 runs" in said and "then 5 more of" in said
    assert "of no study" in said and "Waits for its turn: 6 runs ahead." in said


def test_silent_worker_is_called_silent(client: Client, bob: Any) -> None:
    host = factory.worker()
    host.heartbeat_at = timezone.now() - timedelta(minutes=2)
    host.save()
    client.force_login(bob)
    said = page(client)
    assert ">silent<" in said and "Silent since " in said and "is lost, or queued again if it had a retry" in said


def test_a_silent_worker_that_is_drained_takes_no_run_when_it_reports(client: Client, admin: Any) -> None:
    host = factory.worker()
    host.heartbeat_at, host.draining = timezone.now() - timedelta(minutes=2), True
    host.save()
    client.force_login(admin)
    said = page(client)
    assert "it stays drained when it reports." in said
    assert "It takes runs again as soon as it reports." in said and "at once" not in said, "if it is enabled"
    back = client.post(f"/fleet/{host.pk}/enable", follow=True).content.decode()
    assert "yard-a takes runs again as soon as it reports." in back


def test_a_worker_that_went_in_good_order_has_left(client: Client, bob: Any) -> None:
    host = factory.worker()
    host.leaving = True
    host.save()
    client.force_login(bob)
    assert ">leaving<" in page(client)
    host.heartbeat_at = timezone.now() - timedelta(minutes=2)
    host.save()
    said = page(client)
    assert ">left<" in said and ">silent<" not in said


def test_what_a_worker_last_said_is_not_told_as_if_it_were_now(client: Client, bob: Any) -> None:
    """Devices of an absent worker are shown as neither free nor busy, and without a current load."""
    host = factory.worker()
    host.devices[1]["load"] = 1.0
    host.leaving = True
    host.save()
    client.force_login(bob)
    said = page(client)
    assert said.count("takes no new run") == 2 and "used by others" not in said
    assert (
        "No device takes runs now; 0 runs queued." in said and "2 devices of yard-a take no run: it is leaving." in said
    )
    assert "device-meter" in said and "when last heard" not in said
    host.heartbeat_at = timezone.now() - timedelta(minutes=5)
    host.save()
    said = page(client)
    assert "No device takes runs now" in said and "2 devices of yard-a take no run: it has left." in said
    assert "when last heard: load" in said
    assert "device-meter" not in said and ">free<" not in said


def test_only_staff_drain_and_enable(client: Client, alice: Any, bob: Any, admin: Any) -> None:
    host = factory.worker()
    drain, enable = (reverse(f"fleet:{name}", args=[host.pk]) for name in ("drain", "enable"))
    for person in (alice, bob):
        client.force_login(person)
        assert drain not in page(client)
        assert client.post(drain).status_code == 403
    client.force_login(admin)
    assert client.get(drain).status_code == 405
    assert drain in page(client)
    assert client.post(drain, follow=True).status_code == 200
    host.refresh_from_db()
    assert host.draining
    assert enable in page(client)
    assert ">draining<" in page(client)
    client.post(enable)
    host.refresh_from_db()
    assert not host.draining


def test_only_staff_remove_a_worker_and_only_one_that_is_gone(client: Client, alice: Any, bob: Any, admin: Any) -> None:
    host = factory.worker()
    attempt = factory.start(factory.queued(alice, name="held"))
    address = reverse("fleet:remove", args=[host.pk])
    for person in (alice, bob):
        client.force_login(person)
        assert client.get(address).status_code == client.post(address).status_code == 403
    client.force_login(admin)
    assert address not in page(client)
    refused = client.post(address)
    assert refused.status_code == 409 and "still reports: stop its process first" in refused.content.decode()
    host.heartbeat_at = timezone.now() - timedelta(minutes=2)
    host.save()
    assert address not in page(client), "it still holds a run"
    assert "“held” is still held to run on" in client.post(address).content.decode()
    Attempt.objects.filter(pk=attempt.pk).update(over=True, ended_at=timezone.now())
    assert address in page(client)
    asked = client.get(address).content.decode()
    assert "Its runs stay, and keep its name." in asked and Worker.objects.filter(pk=host.pk).exists()
    assert "is off the fleet" in client.post(address, follow=True).content.decode()
    assert not Worker.objects.exists()
    assert f"on {host.name}" in client.get(reverse("runs:page", args=[attempt.run_id])).content.decode()
    assert client.post(address).status_code == 404, "a second click finds no worker to remove"


def test_removing_a_worker_says_which_profiles_go_with_it(client: Client, admin: Any) -> None:
    host = factory.worker()
    ledger.ask_profile(worker=host, spec=RunSpec(), user=admin)
    host.heartbeat_at = None
    host.save()
    client.force_login(admin)
    asked = client.get(reverse("fleet:remove", args=[host.pk])).content.decode()
    assert "1 profile of layers timed on it goes with it" in asked and "never heard of" in asked


def test_draining_says_first_what_happens_to_the_run(client: Client, alice: Any, admin: Any) -> None:
    factory.start(factory.queued(alice, name="mine"))
    client.force_login(admin)
    assert "“mine” finish; no new run starts here" in page(client)


def test_ages_and_sizes_are_in_words(client: Client, bob: Any) -> None:
    host = factory.worker()
    host.heartbeat_at, host.memory_total, host.memory_available = timezone.now() - timedelta(hours=3), 8 << 30, 6 << 30
    host.save()
    client.force_login(bob)
    said = page(client)
    assert ">3 h ago<" in said
    assert "6 GiB of 8 GiB free" in said
    host.heartbeat_at = timezone.now()
    host.save()
    assert "1 GiB of 4 GiB" in page(client)


def test_load_on_a_free_device_is_explained(client: Client, bob: Any) -> None:
    """Otherwise a device that other programs keep busy would look idle."""
    host = factory.worker()
    client.force_login(bob)
    assert "used by others" not in page(client)
    host.devices[1]["load"] = 1.0
    host.save()
    said = page(client)
    assert said.count("free, used by others") == 1
    assert "not of a run of this yard" in said


def test_a_host_that_times_layers_says_so(client: Client, alice: Any) -> None:
    host = factory.worker()
    host.devices[0]["load"] = 1.0
    host.save()
    spec = RunSpec.model_validate(factory.spec_of({}))
    ledger.ask_profile(worker=host, spec=spec, user=alice)
    client.force_login(alice)
    said = page(client)
    assert "Times the layers of" in said and said.count("times layers<") == 2
    assert "used by others" not in said and "2 of 2 devices busy" in plain(said)
    attempt = factory.start(factory.queued(alice))
    said = page(client)
    assert "once nothing runs here" in said and "times layers<" not in said and "1 of 2 devices busy" in plain(said)
    Attempt.objects.filter(pk=attempt.pk).update(started_at=None)  # sent to the host after the profile request
    said = page(client)
    assert "Times the layers of" in said and said.count("times layers<") == 1 and "2 of 2 devices busy" in plain(said)


def test_a_worker_of_another_version_is_told_apart(client: Client, bob: Any) -> None:
    host = factory.worker()
    client.force_login(bob)
    for theirs in ("", "unknown", version()):
        Worker.objects.filter(pk=host.pk).update(version=theirs)
        assert "Bring both to one version" not in page(client)
    Worker.objects.filter(pk=host.pk).update(version="0.0.<1>")
    assert f"Its version is 0.0.&lt;1&gt;, the dashboard's {version()}:" in page(client)


def test_a_worker_that_the_web_refuses_is_seen_with_its_setting(client: Client, bob: Any, admin: Any) -> None:
    host = factory.worker()
    host.refused = "TRAINYARD_TOKEN is unknown there, expired or revoked: http://yard hands out no uploaded text."
    host.save()
    client.force_login(bob)
    assert "Runs over uploaded texts fail here: TRAINYARD_TOKEN is unknown there" in page(client)
    assert reverse("accounts:tokens") not in client.get(reverse("fleet:part")).content.decode()
    client.force_login(admin)
    assert reverse("accounts:tokens") in client.get(reverse("fleet:part")).content.decode()
    Worker.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=5))
    assert "Runs over uploaded texts" not in page(client), "a silent worker says nothing about the present"


def test_admins_see_whom_redis_turned_away(client: Client, bob: Any, admin: Any, redis_url: str) -> None:
    broker = redis.Redis.from_url(redis_url)
    broker.execute_command("ACL", "LOG", "RESET")
    broker.execute_command("ACL", "SETUSER", "gpu7", "on", ">right", "~worker.gpu7*", "+@all")
    try:
        for password in ("wrong", "right"):
            with pytest.raises((redis.AuthenticationError, redis.exceptions.NoPermissionError)):
                redis.Redis.from_url(redis_url, username="gpu7", password=password).llen("worker.gpu8")
        client.force_login(admin)
        said = page(client)
        assert said.count("Redis refused the user gpu7 from this host, <time ") == 2
        assert "The user or the password in REDIS_URL there is wrong" in said
        assert "It may not reach worker.gpu8: TRAINYARD_WORKER_NAME there must be" in said
        factory.worker("gpu7")
        assert page(client).count("Redis refused") == 1, "it has since connected with another password"
        client.force_login(bob)
        assert "Redis refused" not in page(client), "only admins see addresses"
    finally:
        broker.execute_command("ACL", "DELUSER", "gpu7")
        broker.execute_command("ACL", "LOG", "RESET")


def test_the_page_of_a_lost_run_leads_to_the_fleet(client: Client, alice: Any) -> None:
    run = factory.queued(alice)
    factory.start(run)
    client.force_login(alice)
    leads = "See on Fleet</a> whether its worker is back"
    assert leads not in client.get(f"/runs/{run.pk}/").content.decode()
    factory.end(run, State.LOST, "Worker yard-a sent no heartbeat for 6 s.", "worker_lost")
    assert leads in client.get(f"/runs/{run.pk}/").content.decode()


def test_a_gpu_that_cannot_be_used_is_told_and_gets_no_run(
    client: Client, alice: Any, peer: Peer, controller: Controller
) -> None:
    why = "The driver cannot read it (GPU is lost): reset it, or start the host again."
    lost = {"index": 1, "kind": "cpu", "name": "core <1>", "why": why}
    peer.devices = 1
    run = factory.queued(alice, {"dp": 2})
    peer.beat(unusable=[lost])
    controller.turn()
    client.force_login(alice)
    said = page(client)
    assert f"cpu 1 (core &lt;1&gt;) cannot be used, so no new run starts on it. {why}" in said
    assert (
        f'0 of 1 usable device busy; 1 run queued.</p>\n  <p class="small sub">1 device of yard-a cannot be used. {why}'
        in said
    )
    assert Run.objects.get(pk=run.pk).state == State.QUEUED
    peer.devices = 2
    peer.beat()
    controller.turn()
    assert "cannot be used" not in page(client)
    assert Run.objects.get(pk=run.pk).state == State.STARTING


def test_a_run_on_a_device_that_cannot_be_used_any_more_is_still_shown_there(client: Client, alice: Any) -> None:
    """Among the busy ones and in the timeline; a free one beside it is no device that was not reported."""
    run = factory.queued(alice, name="held on")
    factory.start(run)
    why = "The driver cannot read it (GPU is lost): reset it, or start the host again."
    lost = [{"index": i, "kind": "cpu", "name": f"core {i}", "why": why} for i in (0, 1)]
    Worker.objects.update(devices=[], unusable=lost)
    client.force_login(alice)
    said = page(client)
    assert "1 of 1 usable device busy" in said and "It reported no devices." not in said
    assert f'class="device-run" href="/runs/{run.pk}/">held on</a>' in said
    assert '<span class="sub device-run">cannot be used</span>' in said and "device-meter" not in said
    (bar,) = (bar for row in timeline(worker_views.workers(), 1).rows for bar in row.bars)
    assert bar.attempt.run == run.pk and said.count('class="lane-name small"') == 2
    Worker.objects.update(unusable=[])
    assert "It reported no devices." in page(client)


def test_only_devices_that_could_be_given_to_a_run_are_counted_with_why_the_others_are_not(alice: Any) -> None:
    for name in ("yard-a", "yard-b", "yard-c"):
        factory.worker(name, devices=3)
    first = Worker.objects.get(name="yard-a")
    why = "It is lost."
    lost = [{"index": i, "kind": "cpu", "name": f"core {i}", "why": why} for i in (3, 4)]
    Worker.objects.filter(pk=first.pk).update(unusable=lost)
    factory.start(factory.queued(alice, {"dp": 2}))
    (holder,) = {node["worker"] for attempt in Attempt.objects.all() for node in attempt.devices}
    assert holder == "yard-a"
    Worker.objects.filter(name="yard-b").update(draining=True)
    Worker.objects.filter(name="yard-c").update(heartbeat_at=timezone.now() - timedelta(hours=1))
    found = Usable.of(worker_views.workers())
    assert (found.busy, found.devices) == (2, 3)
    assert found.others == [
        "2 devices of yard-a cannot be used. It is lost.",
        "3 devices of yard-b take no run: it is draining.",
        "3 devices of yard-c take no run: it is silent.",
    ]
    Worker.objects.filter(name="yard-a").update(draining=True)
    found = Usable.of(worker_views.workers())
    assert (found.busy, found.devices) == (2, 2) and found.others[0].startswith("3 devices of yard-a take no run")


def test_devices_are_shown_by_number_whether_they_can_be_used_or_not(alice: Any) -> None:
    host = factory.worker(devices=3)
    lost = {"index": 1, "kind": "cpu", "name": "core 1", "why": "It is lost."}
    Worker.objects.update(devices=[host.devices[0], host.devices[2]], unusable=[lost])
    (view,) = worker_views.workers()
    assert [(device.index, device.why) for device in view.every] == [(0, ""), (1, "It is lost."), (2, "")]
    assert [row.index for row in timeline([view], 1).rows] == [0, 1, 2]
