"""Whose queued run is next: people take turns, and each one's own runs keep their order."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from dashboard.accounts.roles import make_member
from dashboard.control import tidying
from dashboard.control.placing import place_queued
from dashboard.fleet.models import Worker
from dashboard.runs import removal, services, states
from dashboard.runs.models import DeletedStart, Run, State
from dashboard.runs.waiting import queue, starts, turns
from dashboard.runs.waiting.priority import Priority
from dashboard.studies.models import Study
from tests.dashboard import factory

pytestmark = pytest.mark.django_db


@pytest.fixture
def bob() -> User:
    return make_member(User.objects.create_user("bob"))


def order() -> list[str]:
    """Names of the queued runs in the order in which they are served."""
    names = dict(Run.objects.values_list("pk", "name"))
    return [names[pk] for pk in turns.queue_order()]


def test_one_person_alone_is_served_by_age(alice: Any) -> None:
    for name in ("first", "second", "third"):
        factory.queued(alice, name=name)
    factory.start(factory.queued(alice, name="started"))
    assert order() == ["first", "second", "third"]


def test_the_runs_of_a_study_let_a_younger_run_of_somebody_else_pass(alice: Any, bob: User) -> None:
    """Once one of the study has been started; and after that one the study goes on."""
    study = Study.objects.create(name="long", owner=alice)
    runs = [factory.queued(alice, name=f"s{i}", study=study, position=i) for i in range(4)]
    other = factory.queued(bob, name="single")
    assert order() == ["s0", "single", "s1", "s2", "s3"], "nobody has had a run: the oldest comes first"
    factory.start(runs[0])
    assert order() == ["single", "s1", "s2", "s3"]
    factory.start(other)
    factory.queued(bob, name="another")
    assert order() == ["s1", "another", "s2", "s3"]


def test_who_has_not_started_a_run_for_longest_comes_first(alice: Any, bob: User) -> None:
    carol = make_member(User.objects.create_user("carol"))
    for owner in (bob, alice, carol):
        factory.start(factory.queued(owner))
    for owner in (carol, alice, bob):
        for number in range(2):
            factory.queued(owner, name=f"{owner.username}{number}")
    assert order() == ["bob0", "alice0", "carol0", "bob1", "alice1", "carol1"]


def test_an_interrupted_run_goes_on_before_all_turns(alice: Any, bob: User) -> None:
    """As it had its turn: a restart of its worker must not hand its devices to others."""
    run = factory.queued(alice, name="long")
    attempt = factory.start(run)
    factory.queued(bob, name="of bob")
    factory.queued(alice, name="of alice")
    states.finish(attempt, "interrupted", "interrupted", "Its worker was restarted.")
    assert order() == ["long", "of bob", "of alice"]


def test_what_the_yard_starts_again_is_no_start_of_its_owner(alice: Any, bob: User) -> None:
    run = factory.queued(alice, name="long")
    attempt = factory.start(run)
    factory.start(factory.queued(bob))
    states.finish(attempt, "interrupted", "interrupted", "Its worker was restarted.")
    factory.start(run)
    factory.queued(bob, name="of bob")
    factory.queued(alice, name="of alice")
    assert run.attempts.count() == 2 and order() == ["of alice", "of bob"]
    factory.end(run, State.SUCCEEDED)
    removal.delete(runs=[run.pk], user=alice)
    assert order() == ["of alice", "of bob"]


def test_starts_longer_ago_than_are_looked_at_count_as_none(
    alice: Any, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory.start(factory.queued(bob))
    factory.start(factory.queued(alice))
    factory.queued(alice, name="of alice")
    factory.queued(bob, name="of bob")
    monkeypatch.setattr(starts, "RECENT", 1)
    assert order() == ["of bob", "of alice"]
    monkeypatch.setattr(starts, "RECENT", 0)
    assert order() == ["of alice", "of bob"]


def test_who_deletes_ended_runs_keeps_the_place_that_their_starts_gave(
    alice: Any, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who tidies up as they go would be served before everybody else."""
    of_alice = [factory.queued(alice) for _ in range(3)]
    factory.start(factory.queued(bob))
    for run in of_alice:
        factory.start(run)
        factory.end(run, State.SUCCEEDED)
    factory.queued(alice, name="of alice")
    factory.queued(bob, name="of bob")
    assert order() == ["of bob", "of alice"]
    monkeypatch.setattr(starts, "RECENT", 2)
    removal.delete(runs=[run.pk for run in of_alice], user=alice)
    while tidying.delete_slice():
        pass
    assert order() == ["of bob", "of alice"]
    assert DeletedStart.objects.count() == 2, "no more are kept than are looked at"
    monkeypatch.setattr(starts, "RECENT", 0)
    assert order() == ["of alice", "of bob"]


def places(*names: str) -> list[str]:
    """Names of the runs that the free devices of these workers are given to; they succeed at once."""
    made = list(place_queued(names, names))
    for attempt in made:
        states.finish(attempt, "succeeded")
    return [attempt.run.name for attempt in made]


def test_a_run_that_no_worker_can_take_uses_up_no_turn(alice: Any, bob: User, redis_url: str) -> None:
    factory.worker("yard-a", devices=1)
    factory.worker("yard-b", devices=1)
    Worker.objects.filter(name="yard-b").update(draining=True)
    for number in range(10):
        factory.queued(alice, name=f"stuck{number}", run_on="worker:yard-b")
    for number in range(3):
        factory.queued(bob, name=f"bob{number}")
        factory.queued(alice, name=f"alice{number}")
    taken = [name for name in order() if not name.startswith("stuck")]
    assert taken == ["alice0", "bob0", "alice1", "bob1", "alice2", "bob2"]
    assert order()[:4] == ["stuck0", "alice0", "bob0", "stuck1"] and order()[-1] == "stuck9"
    assert [places("yard-a", "yard-b") for _ in range(6)] == [
        *(["alice0"], ["bob0"], ["alice1"]),
        *(["bob1"], ["alice2"], ["bob2"]),
    ]
    Worker.objects.update(draining=False)
    factory.queued(bob, name="bob3")
    assert order()[:3] == ["stuck0", "bob3", "stuck1"]


def test_a_run_far_back_in_the_queue_says_what_no_end_of_another_run_changes(
    alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory.worker("yard-a", devices=1)
    first, second, third = (factory.queued(alice, run_on=on) for on in ("", "worker:gone", ""))
    monkeypatch.setattr(queue, "PLANNED", 1)
    assert queue.waiting(first).sentence == "Starts now."
    assert queue.waiting(second).sentence.startswith("It was to run on worker gone. This fleet has no worker “gone”")
    assert queue.waiting(second).sentence.endswith("1 run ahead.")
    assert queue.waiting(third).sentence == "Waits for its turn: 2 runs ahead."


def test_runs_that_start_now_do_not_say_that_others_are_ahead(alice: Any) -> None:
    factory.worker("yard-a", devices=2)
    for _ in range(3):
        factory.queued(alice)
    said = [one.sentence for one in queue.everyone_waiting().values()]
    assert said[:2] == ["Starts now."] * 2 and said[2].endswith("yard-a has 0 free. 2 runs ahead.")


def test_so_do_lists_of_runs(member: Client, alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "PLANNED", 1)
    monkeypatch.setattr(queue, "CLOSELY", 2)
    factory.worker("yard-a", devices=1)
    factory.queued(alice)
    study = Study.objects.create(name="stuck", owner=alice, run_on="worker:gone")
    for position in range(4):
        factory.queued(alice, study=study, position=position)
    factory.queued(alice)
    fleet = member.get("/fleet/").content.decode()
    assert "This fleet has no worker" in fleet and "Waits for its turn: 5 runs ahead." in fleet
    said = [row.sentence for row in member.get(f"/studies/{study.pk}/").context["view"].rows]
    assert ["This fleet has no worker" in one for one in said] == [True, True, False, False]
    assert said[2:] == ["Waits for its turn: 3 runs ahead.", "Waits for its turn: 4 runs ahead."]


def test_younger_runs_that_start_elsewhere_do_not_cost_a_waiting_run_its_turn(
    alice: Any, bob: User, redis_url: str
) -> None:
    """Else a person with large runs and small ones would wait with the large one for as long as others have runs."""
    factory.worker("yard-a", devices=2)
    factory.worker("yard-b", devices=1)
    for _ in range(2):
        factory.queued(bob, run_on="worker:yard-a")
    under_way = list(place_queued(["yard-a"], ["yard-a"]))
    factory.queued(alice, {"dp": 2}, name="large", run_on="worker:yard-a")
    for number in range(3):
        factory.queued(alice, name=f"small{number}", run_on="worker:yard-b")
        factory.queued(bob, name=f"bob{number}", run_on="worker:yard-a")
    started = []
    for attempt in under_way:
        started += places("yard-a", "yard-b")
        states.finish(attempt, "succeeded")
    assert started == ["small0", "small1"] and order()[0] == "large"
    assert places("yard-a", "yard-b") == ["large", "small2"]


def test_the_fleet_says_so_where_several_people_wait(admin_client: Any, alice: Any, bob: User) -> None:
    said = "People take turns"
    study = Study.objects.create(name="long", owner=alice)
    for position in range(3):
        factory.queued(alice, name=f"s{position}", study=study, position=position, exclusive=True)
    assert said not in admin_client.get("/fleet/").content.decode()
    factory.queued(bob, name="single")
    page = admin_client.get("/fleet/").content.decode()
    assert said in page and page.count("one after another") == 1, "the study is one line, though bob is in between"


def test_a_run_behind_its_owners_long_study_says_what_lets_it_pass(member: Client, reader: Client, alice: Any) -> None:
    said = "3 of them are of"
    study = Study.objects.create(name="long", owner=alice)
    for position in range(3):
        factory.queued(alice, name=f"s{position}", study=study, position=position)
    run = factory.queued(alice, name="quick")
    page = f"/runs/{run.pk}/"
    seen = member.get(page).content.decode()
    assert said in seen and f'<a href="/studies/{study.pk}/edit/">that study low priority</a>; runs of others' in seen
    assert said not in reader.get(page).content.decode(), "who can do nothing about it is told only what is ahead"
    member.post(f"/studies/{study.pk}/edit/", {"name": "long", "notes": "", "priority": "low"})
    assert order() == ["quick", "s0", "s1", "s2"] and said not in member.get(page).content.decode()
    member.post(f"/runs/{run.pk}/queue", {"priority": "low"})
    assert f'<a href="/runs/{run.pk}/queue">this run normal priority</a>.' in member.get(page).content.decode()
    member.post(f"/runs/{run.pk}/queue", {"priority": "normal"})
    assert order() == ["quick", "s0", "s1", "s2"]


def test_a_higher_priority_goes_before_all_turns_of_lower_ones(alice: Any, bob: User, admin: Any) -> None:
    """People take turns within a level, and an interrupted run goes before the others of its level only."""
    interrupted = factory.queued(alice, name="interrupted")
    states.finish(factory.start(interrupted), "interrupted", "interrupted", "Its worker was restarted.")
    for owner, name, level in (
        (alice, "low", Priority.LOW),
        (alice, "a0", Priority.NORMAL),
        (alice, "a1", Priority.NORMAL),
        (bob, "b0", Priority.NORMAL),
        (admin, "high", Priority.HIGH),
    ):
        factory.queued(owner, name=name, priority=level)
    assert order() == ["high", "interrupted", "b0", "a0", "a1", "low"]


def test_only_admins_give_high_priority_and_put_a_run_first(member: Client, admin_client: Client, alice: Any) -> None:
    factory.queued(alice, name="before")
    run = factory.queued(alice, name="late")
    first = f"/runs/{run.pk}/first"
    with pytest.raises(services.Invalid, match="Only admins"):
        factory.queued(alice, priority=Priority.HIGH)
    assert all(first not in member.get(page).content.decode() for page in ("/fleet/", f"/runs/{run.pk}/"))
    assert member.post(first).status_code == 403 and order() == ["before", "late"]
    assert all(first in admin_client.get(page).content.decode() for page in ("/fleet/", f"/runs/{run.pk}/"))
    assert admin_client.post(first, {"page": "fleet"}).headers["Location"] == "/fleet/"
    assert order() == ["late", "before"]
    fleet = admin_client.get("/fleet/").content.decode()
    assert first not in fleet and "alice, high priority" in fleet and "A higher priority is served before" in fleet
    assert "high priority" in member.get(f"/runs/{run.pk}/").content.decode()
    assert run.events.get(kind="queue").text == "admin queued it at high priority, instead of normal."
