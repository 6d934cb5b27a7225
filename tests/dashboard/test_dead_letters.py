"""Records that the database never takes: set aside after some tries, with nothing else lost, whoever is killed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse

from dashboard.control.batches import records_of
from dashboard.control.controller import Controller
from dashboard.control.dead_letters import TRIES, first_line
from dashboard.control.wire import Entry
from dashboard.fleet.models import Worker
from dashboard.runs import selectors, services, states
from dashboard.runs.models import Attempt, Cursor, DeadLetter
from parallel_core.observe.record_files import encode
from parallel_core.observe.records import OMITTED
from tests.dashboard.fake_worker import Peer, points_frame, spec

pytestmark = pytest.mark.django_db

REFUSED = points_frame(0, 1, name="\ud800")
"""Half of a character: JSON can name a series so, no database can store it."""
BATCH = points_frame(2, 1) + REFUSED + points_frame(3, 2) + REFUSED + points_frame(5, 1)


@pytest.fixture
def attempt(alice: Any) -> Attempt:
    return placed(alice)


def placed(owner: Any) -> Attempt:
    """A running attempt of one rank on yard-a."""
    worker, _ = Worker.objects.get_or_create(name="yard-a", defaults={"boot": "boot-1"})
    nodes = [{"worker": worker.name, "devices": [0], "first_rank": 0, "address": "host-a"}]
    attempt = states.place(services.submit(owner=owner, spec=spec()), nodes, worker)
    states.running(attempt)
    return attempt


def steps(attempt: Attempt) -> list[int]:
    return [int(step) for step in selectors.series(attempt.run, "loss").step]


def failures(attempt: Attempt) -> list[int]:
    return list(Cursor.objects.filter(attempt=attempt).values_list("failures", flat=True))


def test_it_is_asked_for_again_then_set_aside_and_what_follows_goes_on(
    peer: Peer, controller: Controller, attempt: Attempt
) -> None:
    peer.send(attempt.pk, points_frame(0, 2))
    begin, end = peer.write(attempt.pk, BATCH)
    for tried in range(1, TRIES):
        peer.publish(attempt.pk, begin, end)
        controller.turn()
        assert (steps(attempt), failures(attempt)) == ([0, 1], [tried])
    asked = {"kind": "rewind", "attempt": attempt.pk, "rank": 0, "channel": "events", "offset": begin}
    assert peer.orders()[0] == asked
    peer.publish(attempt.pk, begin, end)
    peer.send(attempt.pk, points_frame(6, 1))
    controller.turn()
    assert (steps(attempt), failures(attempt)) == (list(range(7)), [0])
    kept = list(DeadLetter.objects.order_by("start"))
    assert [bytes(one.data) for one in kept] == [REFUSED, REFUSED]
    assert all(peer.files[attempt.pk, 0, "events"][one.start : one.end] == REFUSED for one in kept)
    assert kept[0].error.startswith("UnicodeEncodeError: 'utf-8' codec can't encode")
    said = list(attempt.run.events.filter(kind="set_aside").values_list("text", flat=True))
    assert said == [f"Records of rank 0 could not be stored and were set aside. The first error: {kept[0].error}"]
    peer.ended(attempt.pk)
    controller.turn()
    assert Attempt.objects.get(pk=attempt.pk).settled, "nothing is asked for any more"


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


class Killer:
    """Kills before the `at`-th statement that writes; `done` = how many there were."""

    def __init__(self, at: int) -> None:
        self.at, self.done = at, 0

    def __call__(self, execute: Any, sql: str, *more: Any) -> Any:
        if sql.startswith(("INSERT", "UPDATE", "DELETE")):
            if self.done == self.at:
                raise Killed
            self.done += 1
        return execute(sql, *more)


def test_a_controller_killed_at_any_write_loses_nothing(peer: Peer, redis_url: str, alice: Any) -> None:
    for at in itertools.count(0):
        attempt, killer = placed(alice), Killer(at)
        peer.send(attempt.pk, points_frame(0, 2))
        begin, end = peer.write(attempt.pk, BATCH)
        controller = Controller()
        controller.turn()
        for _ in range(TRIES - 1):
            peer.publish(attempt.pk, begin, end)
        controller.turn()
        peer.publish(attempt.pk, begin, end)
        entries = controller._reader.read().entries
        try:
            with connection.execute_wrapper(killer):
                controller._store(entries)  # and before it acknowledges, in any case
        except Killed:
            pass
        successor = Controller()
        for _ in range(TRIES):  # what was not reached is tried again as often
            peer.publish(attempt.pk, begin, end)
        successor.turn()
        successor.turn()
        assert steps(attempt) == list(range(6)), at
        kept = DeadLetter.objects.filter(attempt=attempt).order_by("start")
        assert [bytes(one.data) for one in kept] == [REFUSED, REFUSED], at
        if killer.done < at:
            break
    assert at > 10


def test_a_batch_that_contradicts_itself_is_not_kept(peer: Peer, controller: Controller, attempt: Attempt) -> None:
    about = {"attempt": attempt.pk, "rank": 0, "channel": "log", "start": 0, "end": 7}
    for _ in range(TRIES + 1):
        peer.say("batch", about, b"three bytes too many")
        peer.say("heartbeat", {"attempts": 3})
        controller.turn()
    assert not DeadLetter.objects.exists() and failures(attempt) == []


def test_the_parts_of_a_batch_are_the_batch() -> None:
    gone = encode({"kind": "omitted", "rank": 0, "t": 1.0, "end": 5_000}, bytes(2 * OMITTED.itemsize))
    torn = points_frame(9, 1)[:-3]
    data = points_frame(0, 1) + gone + points_frame(1, 1) + torn
    whole = {"attempt": 1, "rank": 0, "channel": "events", "start": 100}
    end = 5_000 + len(points_frame(1, 1)) + len(torn)
    for channel, count in (("events", 4), ("log", 1)):
        body = {**whole, "channel": channel, "end": end, "omitted": end - 100 - len(data)}
        parts = list(records_of(Entry(b"1-1", "yard-a", "boot-1", "batch", body, data)))
        assert len(parts) == count and b"".join(part.data for part in parts) == data
        bounds = [100, *(part.body["end"] for part in parts)]
        assert bounds == [*(part.body["start"] for part in parts), end]


def test_an_error_is_one_line_that_can_be_stored() -> None:
    assert first_line(ValueError("a\x00b \ud800 c\nmore")) == "ValueError: a\N{REPLACEMENT CHARACTER}b \\ud800 c"
    assert len(first_line(ValueError("x" * 10_000))) == DeadLetter._meta.get_field("error").max_length


def test_admins_see_how_many_and_why(
    peer: Peer, controller: Controller, attempt: Attempt, client: Client, member: Client, admin: Any
) -> None:
    begin, end = peer.write(attempt.pk, BATCH)
    for _ in range(TRIES):
        peer.publish(attempt.pk, begin, end)
        controller.turn()
    client.force_login(admin)
    page = client.get(reverse("fleet:list")).content.decode()
    assert "2 records of" in page and "could not be stored and were set aside" in page and "UnicodeEncodeError" in page
    assert "set aside" not in member.get(reverse("fleet:list")).content.decode()
    listed = client.get(reverse("admin:runs_deadletter_changelist"))
    assert listed.status_code == 200 and "UnicodeEncodeError" in listed.content.decode()
    one = client.get(reverse("admin:runs_deadletter_change", args=(DeadLetter.objects.order_by("pk")[0].pk,)))
    assert one.status_code == 200
