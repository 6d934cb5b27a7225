"""Profiles are requested, answered and withdrawn."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from dashboard.control.controller import Controller
from dashboard.fleet.models import Worker
from dashboard.ledger import selectors
from dashboard.ledger.forms import models
from dashboard.ledger.models import Profile, ProfileState
from dashboard.ledger.services import answer_profile, ask_profile, withdraw_profile
from dashboard.runs import services
from dashboard.runs.form.presets import PRESETS
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.fake_worker import Peer
from tests.parallel_core.tables import table

pytestmark = pytest.mark.django_db
SPEC = factory.PROFILED
MODEL = SPEC.model


def test_who_asks_for_more_of_the_same_model_gets_it(worker: Worker, alice: Any) -> None:
    """A waiting request already measures what a later one asks for, so that one is not queued again."""
    columns = RunSpec.model_validate(SPEC.model_dump() | {"parallel": {"tp": 2, "tensor_split": "columns"}})
    first, second = (ask_profile(worker=worker, spec=spec, user=alice) for spec in (SPEC, columns))
    assert second != first and RunSpec.model_validate(second.spec) == columns
    assert ask_profile(worker=worker, spec=columns, user=alice) == second
    assert ask_profile(worker=worker, spec=SPEC, user=alice) in (first, second)


def test_a_request_goes_out_with_each_heartbeat_until_it_is_answered(
    redis_url: str, worker: Worker, alice: Any
) -> None:
    peer, controller = Peer(redis_url), Controller()
    asked = ask_profile(worker=worker, spec=SPEC, user=alice)
    assert ask_profile(worker=worker, spec=SPEC, user=alice) == asked
    for _ in range(2):
        peer.beat()
        controller.turn()
        (order,) = peer.orders()
        assert (order["kind"], order["attempt"], RunSpec.model_validate(order["spec"])) == ("profile", asked.pk, SPEC)
    peer.say("profile", {"profile": asked.pk, "table": table(MODEL).dump()})
    peer.beat()
    controller.turn()
    asked.refresh_from_db()
    assert asked.state == ProfileState.DONE and asked.software == "made up"
    assert not peer.orders()


def test_who_asked_may_take_it_back_and_the_worker_hears_of_it(
    redis_url: str, worker: Worker, member: Client, client: Client, reader: Client, alice: Any, admin: Any
) -> None:
    peer, controller = Peer(redis_url), Controller()
    other, asked = (ask_profile(worker=worker, spec=spec, user=alice) for spec in (SPEC, RunSpec()))
    client.force_login(admin)
    address = reverse("ledger:withdraw", args=[other.pk])
    assert address in member.get("/fleet/").content.decode() and address in client.get("/fleet/").content.decode()
    assert address not in reader.get("/fleet/").content.decode()
    with pytest.raises(PermissionDenied):
        withdraw_profile(other, User.objects.create_user("eve"))
    assert member.post(address, {"page": "fleet"}).headers["Location"] == "/fleet/"
    other.refresh_from_db()
    assert other.withdrawn and other.done_at
    peer.beat(profiles=[other.pk, asked.pk, 999])
    controller.turn()
    ended = [order["attempt"] for order in peer.orders() if order["kind"] == "cancel_profile"]
    assert ended == [other.pk, 999], "999 is of an earlier database"
    answer_profile("yard-a", {"profile": asked.pk, "table": table(MODEL).dump()})
    asked.refresh_from_db()
    assert not withdraw_profile(asked, alice), "what is there stays"
    assert Profile.objects.get(pk=asked.pk).state == ProfileState.DONE


def test_only_the_worker_that_was_asked_can_answer(worker: Worker, alice: Any) -> None:
    asked = ask_profile(worker=worker, spec=SPEC, user=alice)
    answer_profile("yard-b", {"profile": asked.pk, "table": table(MODEL).dump()})
    asked.refresh_from_db()
    assert asked.state == ProfileState.ASKED
    answer_profile("yard-a", {"profile": asked.pk, "table": {"device": "toaster"}})
    asked.refresh_from_db()
    assert asked.state == ProfileState.FAILED and "device" in asked.error


def test_a_failed_profile_gives_its_cause_first_and_its_log_behind_a_click(
    member: Client, worker: Worker, alice: Any
) -> None:
    asked = ask_profile(worker=worker, spec=SPEC, user=alice)
    why = {"profile": asked.pk, "error": "Rank 1 failed: OSError: <b>full</b>", "log": "warming up\n" + "x" * 20_000}
    answer_profile("yard-a", why)
    page = member.get("/partition/").content.decode()
    said, _, log = page.partition("<summary>Its log")
    assert "GPT 4 x 32, fp32 could not be profiled on yard-a" in said
    assert "OSError: &lt;b&gt;full&lt;/b&gt;" in said and "xxx" not in said
    assert log.count("x" * 16_000) == 1 and "warming up" not in log
    again = ask_profile(worker=worker, spec=SPEC, user=alice)
    assert "could not be profiled" in member.get("/partition/").content.decode()
    answer_profile("yard-a", {"profile": again.pk, "table": table(MODEL).dump()})
    assert "could not be profiled" not in member.get("/partition/").content.decode()


def test_a_profile_is_asked_for_from_the_page(worker: Worker, member: Client, alice: Any, bob: Any) -> None:
    page = member.get("/partition/")
    assert "No profile yet" in page.content.decode()
    title = page.context["profile_form"].fields["model"].choices[0][0]
    answer = member.post("/partition/profile", {"worker": worker.pk, "model": title})
    assert answer.status_code == 302 and Profile.objects.get().worker == worker
    for path in ("/partition/", "/partition/fleet/", "/partition/waiting?known=1&first"):
        text = member.get(path).content.decode()
        assert "yard-a is timing GPT" in text
        assert re.search(r", asked <time [^>]+>(just now|[0-9]+ s ago)</time>\.</h2>", text)
        assert "No profile yet" not in text
    factory.start(services.submit(owner=alice, spec=SPEC.model_dump(mode="json")))
    assert "yard-a times GPT" in member.get("/partition/fleet/").content.decode(), "a running run delays the profile"
    assert "HX-Refresh" not in member.get("/partition/waiting?known=1").headers
    assert "HX-Refresh" in member.get("/partition/waiting?known=2").headers
    viewer = Client()
    viewer.force_login(bob)
    assert viewer.post("/partition/profile", {"worker": worker.pk, "model": title}).status_code == 403


def test_a_worker_is_asked_for_no_kind_of_device_that_it_lacks(worker: Worker, member: Client) -> None:
    """If no worker has such a device, models on that device are not offered at all."""
    titles = [title for title, _ in member.get("/partition/").context["profile_form"].fields["model"].choices]
    assert titles and not any(", CUDA GPU" in title for title in titles)
    devices = [{"index": 0, "kind": "cuda", "name": "H100", "memory_total": 80 << 30}]
    Worker.objects.create(name="gpu-a", devices=devices, heartbeat_at=timezone.now())
    titles = [title for title, _ in member.get("/partition/").context["profile_form"].fields["model"].choices]
    asked = {"worker": worker.pk, "model": next(title for title in titles if ", CUDA GPU" in title)}
    told = member.post("/partition/profile", asked, follow=True).content.decode()
    assert "yard-a has 2 CPU devices, and the model is to be timed on a CUDA GPU: choose another" in told
    assert "Choose a worker that reports" in member.post("/partition/profile", {}, follow=True).content.decode()
    assert not Profile.objects.exists()


def test_every_model_of_the_presets_can_be_profiled_under_a_name_of_its_own() -> None:
    listed = models()
    specs = [RunSpec.model_validate(preset.spec) for preset in PRESETS]
    missing = {selectors.profile_key(spec) for spec in specs} - set(map(selectors.profile_key, listed.values()))
    assert not missing
    assert any("Positions = RoPE" in title and "Biases in linear layers = no" in title for title in listed)
    titles = {Profile(spec=spec.model_dump(mode="json")).title for spec in specs}
    assert {"GPT 4 x 128, fp32", "GPT 4 x 128 (Attention = Plain), fp32"} <= titles


def test_other_ways_to_share_layers_are_models_of_their_own_to_profile() -> None:
    """A profile measures them only if its spec uses them."""
    by_cut: dict[str, list[str]] = {}
    for title, spec in models().items():
        by_cut.setdefault(spec.parallel.cut, []).append(title)
    assert by_cut["columns"] and all(title.endswith(", by columns, too") for title in by_cut["columns"])
    assert not any("too" in title for title in by_cut["pairs"])


def test_who_asked_for_a_profile_may_withdraw_it(worker: Worker, alice: Any, member: Client, admin: Any) -> None:
    asked = ask_profile(worker=worker, spec=SPEC, user=alice)
    address = reverse("ledger:withdraw", args=(asked.pk,))
    assert address in member.get("/partition/").content.decode()
    told = member.post(address, follow=True).content.decode()
    asked.refresh_from_db()
    assert (asked.state, asked.error) == (ProfileState.FAILED, "Withdrawn by alice.") and asked.done_at
    assert "yard-a is no longer asked to profile GPT 4 x 32, fp32." in told
    assert "GPT 4 x 32, fp32 on yard-a was not profiled. Withdrawn by alice." in told
    assert "could not be profiled" not in told and address not in told
    assert not selectors.asked("yard-a").exists()
    answer_profile("yard-a", {"profile": asked.pk, "table": table(MODEL).dump()})
    asked.refresh_from_db()
    assert asked.state == ProfileState.FAILED, "the worker that was already timing it answers in vain"
    mine = ask_profile(worker=worker, spec=SPEC, user=admin)
    others = reverse("ledger:withdraw", args=(mine.pk,))
    assert others not in member.get("/partition/").content.decode() and member.post(others).status_code == 403
    answer_profile("yard-a", {"profile": mine.pk, "table": table(MODEL).dump()})
    chief = Client()
    chief.force_login(admin)
    assert "was answered before it could be withdrawn" in chief.post(others, follow=True).content.decode()
    mine.refresh_from_db()
    assert mine.state == ProfileState.DONE


def test_a_withdrawn_profile_hides_no_failure(worker: Worker, alice: Any, member: Client) -> None:
    failed, other = (ask_profile(worker=worker, spec=spec, user=alice) for spec in (SPEC, RunSpec()))
    answer_profile("yard-a", {"profile": failed.pk, "error": "The disk is full."})
    withdraw_profile(other, alice)
    assert selectors.last_failure() == failed and selectors.last_withdrawn() == other
    page = member.get("/partition/").content.decode()
    assert "GPT 4 x 32, fp32 could not be profiled on yard-a" in page and "The disk is full." in page
    assert f"{other.title} on yard-a was not profiled. Withdrawn by alice." in page
    again = ask_profile(worker=worker, spec=SPEC, user=alice)
    answer_profile("yard-a", {"profile": again.pk, "error": "Still full."})
    assert selectors.last_failure() == again and selectors.last_withdrawn() is None


def test_admins_withdraw_what_others_asked_for_and_viewers_nothing(
    worker: Worker, alice: Any, admin: Any, reader: Client
) -> None:
    asked = ask_profile(worker=worker, spec=SPEC, user=alice)
    address = reverse("ledger:withdraw", args=(asked.pk,))
    assert address not in reader.get("/partition/fleet/").content.decode() and reader.post(address).status_code == 403
    chief = Client()
    chief.force_login(admin)
    assert address in chief.get("/partition/fleet/").content.decode()
    assert chief.get(address).status_code == 405 and chief.post(address).status_code == 302
    asked.refresh_from_db()
    assert asked.state == ProfileState.FAILED and asked.withdrawn
