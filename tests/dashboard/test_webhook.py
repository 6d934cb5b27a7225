"""The yard's webhook, against a real receiver: what is posted, when, how often, and who may set it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from dashboard.runs import states
from dashboard.runs.models import Run
from dashboard.studies.models import Study
from dashboard.webhook.models import Delivery, Webhook, check_url
from dashboard.webhook.posting import post
from dashboard.webhook.sender import AGAIN, send_due
from tests.dashboard import factory
from tests.dashboard.receiver import Receiver, listening

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url")]
SPLIT = {"dp": 2}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with listening() as found:
        yield found


@pytest.fixture
def webhook(receiver: Receiver) -> Webhook:
    return Webhook.objects.create(url=f"{receiver.address}/hook?key=1", origin="https://yard.example.org")


def ended(owner: Any, outcome: str = "succeeded", cause: str = "", detail: str = "", **kwargs: Any) -> Run:
    run = factory.queued(owner, SPLIT, **kwargs)
    states.finish(factory.start(run), outcome, cause, detail)
    Run.objects.filter(pk=run.pk).update(summary={"timed": None})
    return run


def make_due() -> None:
    Delivery.objects.update(due_at=timezone.now() - timedelta(seconds=1))


def test_the_end_of_a_run_is_posted_once_with_its_verdict(alice: Any, receiver: Receiver, webhook: Webhook) -> None:
    run = ended(alice, "failed", "not_finite", "The loss is not finite since step 9.", name="Large")
    assert send_due() == 1 and send_due() == 0
    ((path, body),) = receiver.got
    assert path == "/hook?key=1"
    assert {name: body[name] for name in ("event", "id", "name", "state", "cause", "verdict", "owner", "study")} == {
        "event": "run.ended",
        "id": run.pk,
        "name": "Large",
        "state": "failed",
        "cause": "not_finite",
        "verdict": "The loss is not finite since step 9.",
        "owner": "alice",
        "study": None,
    }
    assert body["link"] == f"https://yard.example.org/runs/{run.pk}/"
    webhook.refresh_from_db()
    assert webhook.result == f"Run {run.pk}: Delivered: it answered 200." and webhook.result_at


def test_an_end_that_is_rolled_back_is_not_posted(alice: Any, webhook: Webhook) -> None:
    with pytest.raises(RuntimeError), transaction.atomic():
        ended(alice)
        raise RuntimeError
    assert not Delivery.objects.exists()


def test_without_a_webhook_nothing_is_kept(alice: Any) -> None:
    ended(alice)
    assert not Delivery.objects.exists()


def test_a_run_waits_for_its_summary_but_not_for_long(alice: Any, receiver: Receiver, webhook: Webhook) -> None:
    run = ended(alice)
    Run.objects.filter(pk=run.pk).update(summary={})
    assert send_due() == 0 and Delivery.objects.count() == 1
    Delivery.objects.update(ended_at=timezone.now() - timedelta(minutes=1))
    assert send_due() == 1


def test_a_run_that_was_cancelled_in_the_queue_is_posted_at_once(
    alice: Any, receiver: Receiver, webhook: Webhook
) -> None:
    states.cancel_queued(factory.queued(alice, SPLIT), alice)
    assert send_due() == 1 and receiver.got[0][1]["state"] == "cancelled"


def test_a_study_is_posted_once_when_its_last_run_has_ended(alice: Any, receiver: Receiver, webhook: Webhook) -> None:
    study = Study.objects.create(name="Rates", owner=alice, kind="sweep", base=factory.BASE)
    other = factory.queued(alice, SPLIT, study=study, position=1)
    ended(alice, study=study, position=0)
    make_due()
    send_due()
    assert not Delivery.objects.exists() and len(receiver.got) == 1, "a run of it is queued"
    states.cancel_queued(other, alice)
    send_due()
    assert [body["event"] for _, body in receiver.got] == ["run.ended"] * 2, "it waits for what may be queued next"
    make_due()
    send_due()
    body = receiver.got[-1][1]
    assert (body["event"], body["id"], body["name"]) == ("study.ended", study.pk, "Rates")
    assert body["runs"] == {"cancelled": 1, "succeeded": 1} and body["verdict"]
    assert body["link"] == f"https://yard.example.org/studies/{study.pk}/" and not Delivery.objects.exists()


def test_a_study_noted_by_two_ends_at_once_is_posted_once(alice: Any, receiver: Receiver, webhook: Webhook) -> None:
    study = Study.objects.create(name="Rates", owner=alice, kind="sweep", base=factory.BASE)
    for position in range(2):
        ended(alice, study=study, position=position)
    assert Delivery.objects.filter(study=study).count() == 2, "each may be the last one that sees the other's end"
    make_due()
    send_due()
    make_due()
    send_due()
    assert [body["event"] for _, body in receiver.got] == ["run.ended", "run.ended", "study.ended"]
    assert not Delivery.objects.exists()


def test_a_study_that_ended_anew_while_its_end_is_tried_again_is_posted_once(
    alice: Any, receiver: Receiver, webhook: Webhook
) -> None:
    study = Study.objects.create(name="Rates", owner=alice, kind="sweep", base=factory.BASE)
    ended(alice, study=study, position=0)
    receiver.status = 500
    make_due()
    send_due()
    Delivery.objects.filter(study=None).delete()
    first = Delivery.objects.get()
    ended(alice, study=study, position=1)
    receiver.status, before = 200, len(receiver.got)
    Delivery.objects.exclude(pk=first.pk).update(due_at=timezone.now())
    send_due()
    make_due()
    send_due()
    assert [body["event"] for _, body in receiver.got[before:]] == ["run.ended", "study.ended"]


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="SQLite has one writer at a time")
@pytest.mark.django_db(transaction=True)
def test_the_last_two_runs_that_end_at_once_end_their_study(alice: Any, receiver: Receiver, webhook: Webhook) -> None:
    study = Study.objects.create(name="Rates", owner=alice, kind="sweep", base=factory.BASE)
    runs = [factory.queued(alice, SPLIT, study=study, position=position) for position in range(2)]
    both = threading.Barrier(2, timeout=30)

    def end(run: Run) -> None:
        try:
            with transaction.atomic():
                states.cancel_queued(run, alice)
                both.wait()  # neither has committed when the other has looked
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(end, runs))
    make_due()
    send_due()
    assert sorted(body["event"] for _, body in receiver.got) == ["run.ended", "run.ended", "study.ended"]
    assert not Delivery.objects.exists()


def test_a_study_that_got_another_run_meanwhile_has_not_ended(alice: Any, receiver: Receiver, webhook: Webhook) -> None:
    study = Study.objects.create(name="Fit", owner=alice, kind="fit", base=factory.BASE)
    ended(alice, study=study, position=0)
    factory.queued(alice, SPLIT, study=study, position=1)
    make_due()
    send_due()
    assert [body["event"] for _, body in receiver.got] == ["run.ended"] and not Delivery.objects.exists()


def test_an_end_is_posted_although_the_clock_was_set_back_since(
    alice: Any, receiver: Receiver, webhook: Webhook
) -> None:
    ended(alice)
    for ahead, tried in ((AGAIN[-1] - timedelta(seconds=30), 0), (timedelta(hours=1), 1)):
        Delivery.objects.update(due_at=timezone.now() + ahead)
        assert send_due() == tried


def test_a_receiver_that_does_not_take_it_is_tried_a_few_times(
    alice: Any, receiver: Receiver, webhook: Webhook
) -> None:
    receiver.status = 500
    run = ended(alice)
    for left in range(len(AGAIN), 0, -1):
        assert send_due() == 1 and send_due() == 0, "not before the pause is over"
        webhook.refresh_from_db()
        times = "1 time" if left == 1 else f"{left} times"
        assert webhook.result == f"Run {run.pk}: Not taken: it answered 500. It is tried again {times}."
        make_due()
    assert send_due() == 1 and not Delivery.objects.exists()
    webhook.refresh_from_db()
    assert webhook.result.endswith("It is not tried again.") and len(receiver.got) == len(AGAIN) + 1
    assert len({body["delivery"] for _, body in receiver.got}) == 1


def test_no_redirect_is_followed(receiver: Receiver) -> None:
    receiver.status, receiver.location = 307, f"{receiver.address}/elsewhere"
    posted = post(f"{receiver.address}/hook", {})
    assert not posted.taken and "redirects are not followed" in posted.result
    assert [path for path, _ in receiver.got] == ["/hook"]


def test_a_receiver_that_is_not_there_is_a_result(receiver: Receiver) -> None:
    posted = post("http://127.0.0.1:1/", {})
    assert posted == (False, "Not delivered: Connection refused."), "without the number that the system has for it"


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a.org/",
        "file:///etc/passwd",
        "http://",
        "//a.org",
        "http://a.org:x/",
        "http://u:p@a.org/",
        "http://a.org/\r\nX: 1",
    ],
)
def test_only_plain_addresses_of_http_are_taken(url: str) -> None:
    with pytest.raises(ValidationError):
        check_url(url)
    with pytest.raises(ValidationError):
        post(url, {})


def test_an_admin_sets_it_and_sends_a_test(admin_client: Client, receiver: Receiver) -> None:
    listed = reverse("admin:webhook_webhook_changelist")
    add = admin_client.get(listed).headers["Location"]
    assert "Send a test" in admin_client.get(add).content.decode()
    refused = admin_client.post(add, {"url": "ftp://a.org/"}).content.decode()
    assert "begins with http:// or https://" in refused and not Webhook.objects.exists()
    page = admin_client.post(add, {"url": f"{receiver.address}/x", "_test": "1"}, follow=True).content.decode()
    assert [(path, body["event"]) for path, body in receiver.got] == [("/x", "test")]
    assert receiver.got[0][1]["link"] == "http://testserver/"
    assert "Test: Delivered: it answered 200." in page
    receiver.status = 404
    change = admin_client.get(listed).headers["Location"]
    page = admin_client.post(change, {"url": f"{receiver.address}/y", "_test": "1"}, follow=True).content.decode()
    assert "Test: Not taken: it answered 404." in page
    admin_client.post(change, {"url": "", "_continue": "1"})
    assert Webhook.in_use() is None and Webhook.objects.count() == 1


def test_members_neither_see_nor_set_it(member: Client, webhook: Webhook) -> None:
    change = reverse("admin:webhook_webhook_change", args=[webhook.pk])
    for address in (change, reverse("admin:webhook_webhook_changelist")):
        answers = [member.get(address), member.post(address, {"url": "http://a.org/"})]
        assert all(answer.status_code in (302, 403) and "hook?key" not in answer.content.decode() for answer in answers)
    webhook.refresh_from_db()
    assert "hook?key" in webhook.url
