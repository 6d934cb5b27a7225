"""The page of the records that were set aside: admins store them again there, or discard them after a question."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from dashboard.runs.models import Attempt, DeadLetter
from tests.dashboard.test_dead_letters import placed

pytestmark = pytest.mark.django_db
LIST, STORE, DISCARD = (reverse(f"fleet:{name}") for name in ("set_aside", "store_again", "discard"))


@pytest.fixture
def attempt(alice: Any, redis_url: str) -> Attempt:
    return placed(alice)


@pytest.fixture
def chief(client: Client, admin: Any) -> Client:
    client.force_login(admin)
    return client


def letter(attempt: Attempt, start: int = 0, error: str = "IntegrityError: <b>no</b>") -> DeadLetter:
    about = {"rank": 0, "channel": "events", "start": start, "end": start + 3, "error": error, "data": b"abc"}
    return DeadLetter.objects.create(attempt=attempt, **about)


def read(client: Client, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 200
    return str(answer.content.decode())


def waiting() -> list[int]:
    asked = DeadLetter.objects.filter(store_asked_at__isnull=False)
    return sorted(asked.values_list("start", flat=True))


def test_it_is_for_admins_alone(attempt: Attempt, member: Client, reader: Client) -> None:
    pk = letter(attempt).pk
    for client in (member, reader):
        assert client.get(LIST).status_code == client.get(f"{DISCARD}?all=1").status_code == 403
        for address in (STORE, DISCARD):
            assert client.post(address, {"record": pk}).status_code == 403
    assert DeadLetter.objects.count() == 1 and not waiting()


def test_the_fleet_page_offers_it_for_each_run(attempt: Attempt, chief: Client, alice: Any) -> None:
    letter(attempt)
    fleet = reverse("fleet:list")
    said = read(chief, fleet)
    assert f"{LIST}?run={attempt.run_id}" in said and ">Store again<" in said and "&lt;b&gt;no" in said
    letter(attempt, 3)
    letter(placed(alice))
    said = read(chief, fleet)
    assert ">Store all again<" in said and said.count(f'action="{STORE}"') == 2
    answer = chief.post(STORE, {"run": attempt.run_id, "page": "fleet"}, follow=True)
    assert answer.redirect_chain == [(fleet, 302)]
    said = answer.content.decode()
    assert "2 records will be stored again by the controller." in said and waiting() == [0, 3]
    assert "They are about to be stored again." in said and f'id="store-again-{attempt.run_id}"' not in said
    DeadLetter.objects.filter(start=3).update(store_asked_at=None)
    assert "1 of them is about to be stored again." in read(chief, fleet)


def test_one_or_all_are_asked_for_in_the_list(attempt: Attempt, chief: Client, alice: Any) -> None:
    one = letter(attempt)
    assert "Store all" not in read(chief, LIST)
    letter(attempt, 3)
    other = letter(placed(alice))
    said = read(chief, LIST)
    assert "1–3 of 3 records" in said and "Store all 3 again" in said and said.count("&lt;b&gt;no") == 3
    said = chief.post(STORE, {"record": one.pk}, follow=True).content.decode()
    assert waiting() == [0] and "1 record will be stored again" in said and f'id="store-{one.pk}"' not in said
    mine = f"{LIST}?run={attempt.run_id}"
    assert "Store all 2 again" in read(chief, mine)
    answer = chief.post(STORE, {"run": attempt.run_id, "of": attempt.run_id}, follow=True)
    assert answer.redirect_chain == [(mine, 302)] and waiting() == [0, 3]
    assert "; to be stored again, asked <time" in answer.content.decode() and "refused again" not in read(chief, mine)
    DeadLetter.objects.filter(pk=one.pk).update(store_asked_at=None, tried_at=one.at)
    assert read(chief, mine).count("; refused again <time") == 1
    chief.post(STORE, {"all": 1})
    other.refresh_from_db()
    assert other.store_asked_at


def test_discarding_asks_first_and_is_said_in_the_events(attempt: Attempt, chief: Client) -> None:
    one, other = letter(attempt), letter(attempt, 3)
    address = f"{DISCARD}?record={one.pk}&of={attempt.run_id}"
    assert address.replace("&", "&amp;") in read(chief, f"{LIST}?run={attempt.run_id}")
    said = read(chief, address)
    assert "Discard 1 record that was set aside?" in said and attempt.run.name in said and "&lt;b&gt;no" in said
    assert DeadLetter.objects.count() == 2, "only asked"
    answer = chief.post(DISCARD, {"record": one.pk, "of": attempt.run_id}, follow=True)
    assert answer.redirect_chain == [(f"{LIST}?run={attempt.run_id}", 302)]
    assert "1 record discarded." in answer.content.decode()
    assert list(DeadLetter.objects.all()) == [other]
    event = attempt.run.events.get(kind="records_discarded")
    assert event.actor and event.actor.username == "root"
    assert event.text == "root discarded 1 record that had been set aside."
    chief.post(DISCARD, {"all": 1})
    assert "Nothing is set aside" in read(chief, LIST)


def test_what_came_after_the_question_is_not_discarded(attempt: Attempt, chief: Client) -> None:
    letter(attempt)
    fields = dict(chief.get(f"{DISCARD}?all=1").context["meant"])
    later = letter(attempt, 3)
    chief.post(DISCARD, fields)
    assert list(DeadLetter.objects.values_list("pk", flat=True)) == [later.pk]


@pytest.mark.parametrize("given", [{}, {"record": "x"}, {"record": "9" * 30}, {"run": ""}, {"run": "999"}])
def test_what_means_no_record_changes_nothing(attempt: Attempt, chief: Client, given: dict[str, str]) -> None:
    letter(attempt)
    for answer in (
        chief.post(STORE, given, follow=True),
        chief.post(DISCARD, given, follow=True),
        chief.get(DISCARD, given, follow=True),
    ):
        assert "None of these records is set aside any more." in answer.content.decode()
    assert DeadLetter.objects.count() == 1 and not waiting()
    assert not attempt.run.events.filter(kind__in=("store_again", "records_discarded")).exists()


def test_the_admin_leads_there(attempt: Attempt, chief: Client) -> None:
    shown = read(chief, reverse("admin:runs_deadletter_change", args=(letter(attempt).pk,)))
    assert f'href="{LIST}?run={attempt.run_id}"' in shown
