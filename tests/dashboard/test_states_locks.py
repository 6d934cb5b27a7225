"""What two people, or one and the controller, do to the same rows at once: neither a deadlock nor a row lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import QuerySet
from django.test import Client

from dashboard.fleet import services as fleet
from dashboard.fleet.models import Worker
from dashboard.runs import removal, services, submission
from dashboard.runs.models import Attempt, Checkpoint, Run, State
from dashboard.runs.waiting import queueing
from dashboard.runs.waiting.priority import Priority
from dashboard.studies import joining, reruns
from dashboard.studies import removal as study_removal
from dashboard.studies.models import Study
from tests.dashboard import factory

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_url")]
several_writers = pytest.mark.skipif("connection.vendor != 'postgresql'", reason="SQLite has one writer at a time")


class Meeting:
    """Two transactions of which the second begins once the first is at `here`, where that one goes on as soon as the
    second waits for one of its locks."""

    def __init__(self) -> None:
        self._arrived = threading.Event()

    def here(self, *_: object) -> None:
        self._arrived.set()
        for _attempt in range(500):
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
                if cursor.fetchone()[0]:
                    return
            time.sleep(0.01)

    def of(self, first: Callable[[], Any], second: Callable[[], Any]) -> list[Any]:
        """What they return or raise."""

        def late() -> Any:
            self._arrived.wait(30)
            return second()

        with ThreadPoolExecutor(2) as pool:
            return [one.result() for one in [pool.submit(_closing, first), pool.submit(_closing, late)]]


def _closing(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except Exception as error:
        return error
    finally:
        connection.close()


def outlast() -> None:
    """Makes the other transaction the one that PostgreSQL ends in a deadlock: the one that first looks for it."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL deadlock_timeout = '60s'")


@pytest.fixture
def meeting() -> Meeting:
    return Meeting()


@pytest.fixture
def again(meeting: Meeting, alice: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[Study], Any]:
    """Runs all of a study again, and meets the other transaction when its rows are about to be written."""
    follow = queueing.follow

    def at(*args: Any) -> None:
        follow(*args)
        meeting.here()

    monkeypatch.setattr(queueing, "follow", at)
    return lambda study: reruns.run_again(study=study, user=alice, which=list)


def of_two(owner: Any) -> Study:
    return factory.study(owner, splits=({}, {"dp": 2}), recompute=False)


def with_checkpoint(owner: Any) -> Run:
    """A run that has ended, with a checkpoint of step 5."""
    run = factory.finished(owner, train={"checkpoint_every": 5})
    written = {"attempt": run.attempts.get(), "worker": "yard-a", "step": 5, "bytes": 1, "seconds": 1.0}
    Checkpoint.objects.create(run=run, **written)
    return run


def resume(run: Run, owner: Any, also: services.Also = services.nothing_else) -> Run:
    return submission.submit(owner=owner, spec=run.spec, resume_from={"run": run.pk, "step": 5}, also=also)


@several_writers
def test_a_study_that_is_run_again_is_not_deleted_meanwhile(alice: Any, meeting: Meeting, again: Any) -> None:
    study = of_two(alice)
    queued, refused = meeting.of(lambda: again(study), lambda: study_removal.delete(study=study, user=alice))
    assert len(queued) == 2 and isinstance(refused, services.Invalid) and "It is queued" in str(refused)
    assert study.runs.count() == 4


@several_writers
def test_a_run_that_joins_a_study_does_not_go_with_it_unseen(alice: Any, meeting: Meeting) -> None:
    study, asked = of_two(alice), {"spec": factory.spec_of({})}
    joined, refused = meeting.of(
        lambda: joining.submit(owner=alice, study=study, request=asked, also=meeting.here),  # type: ignore[arg-type]
        lambda: study_removal.delete(study=study, user=alice),
    )
    assert isinstance(refused, services.Invalid) and Run.objects.get(pk=joined.pk).state == State.QUEUED


@several_writers
def test_the_baseline_of_a_study_is_deleted_while_it_is_run_again(alice: Any, meeting: Meeting, again: Any) -> None:
    study = of_two(alice)
    first = study.runs.get(position=0).pk
    queued, deleted = meeting.of(lambda: again(study), lambda: removal.delete(runs=[first], user=alice))
    assert (len(queued), deleted) == (2, 1)
    kept = Study.objects.get().baseline
    assert not Run.objects.filter(pk=first).exists() and kept in queued and kept == study.runs.get(name="Single")
    assert study.runs.filter(repeats=None).count() == 2, "the run that repeats it stands for its setting"


@several_writers
def test_a_baseline_is_kept_although_its_study_is_about_to_be_deleted(
    alice: Any, member: Client, meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows that are locked in different orders PostgreSQL would end either request."""
    study, update = of_two(alice), QuerySet.update
    body = {"baseline": study.runs.get(position=1).pk}

    def late_update(rows: Any, **values: Any) -> int:
        if "baseline" in values:
            meeting.here()
        return update(rows, **values)

    def delete() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET deadlock_timeout = '60s'")
        study_removal.delete(study=study, user=alice)

    monkeypatch.setattr(QuerySet, "update", late_update)
    kept, deleted = meeting.of(lambda: member.post(f"/studies/{study.pk}/baseline/", body), delete)
    assert (kept.status_code, deleted) == (302, None) and not Study.objects.exists()


@several_writers
def test_a_run_is_not_deleted_while_one_is_queued_that_goes_on_from_it(alice: Any, meeting: Meeting) -> None:
    run = with_checkpoint(alice)
    resumed, refused = meeting.of(
        lambda: resume(run, alice, meeting.here), lambda: removal.delete(runs=[run.pk], user=alice)
    )
    assert isinstance(refused, services.Invalid) and "goes on from its checkpoint" in str(refused)
    assert Run.objects.get(pk=resumed.pk).resume_run_id == run.pk


@several_writers
def test_what_the_controller_stores_meanwhile_makes_no_deletion_fail(alice: Any, meeting: Meeting) -> None:
    """It writes rows in the order in which data arrives: here an attempt before its run."""
    run = factory.finished(alice)

    def late_data() -> None:
        with transaction.atomic():
            outlast()
            Attempt.objects.filter(run=run).update(settled=True)
            meeting.here()
            Run.objects.filter(pk=run.pk).update(step=3)

    assert meeting.of(late_data, lambda: removal.delete(runs=[run.pk], user=alice)) == [None, 1]
    assert not Run.objects.exists()


@several_writers
def test_a_study_is_moved_while_the_controller_queues_one_of_its_runs_again(alice: Any, meeting: Meeting) -> None:
    """What it stores before that, here of a run that is queued by now, is locked until the study is."""
    study = of_two(alice)
    study.runs.update(state=State.QUEUED)
    moved = study.runs.get(position=0)
    moves: list[Callable[[], Any]] = [
        lambda: queueing.change_study(study=study, user=alice, priority=Priority.LOW).priority,
        lambda: queueing.change(run=moved, user=alice, priority=Priority.NORMAL).priority,
    ]

    def late_data() -> None:
        with transaction.atomic():
            outlast()
            study.runs.filter(position=1).update(step=3)
            meeting.here()
            Study.objects.select_for_update().get(pk=study.pk)

    for move, reached in zip(moves, (Priority.LOW, Priority.NORMAL), strict=True):
        assert meeting.of(late_data, move) == [None, reached]
        meeting = Meeting()


@several_writers
def test_a_worker_that_just_came_back_is_removed_or_stays_as_a_whole(admin: Any, meeting: Meeting) -> None:
    run = factory.finished(admin)
    worker = Worker.objects.get()
    Worker.objects.update(heartbeat_at=None)

    def beat() -> None:
        with transaction.atomic():
            outlast()
            Worker.objects.filter(pk=worker.pk).update(load=1.0)
            meeting.here()
            Attempt.objects.filter(run=run).update(settled=True)

    assert meeting.of(beat, lambda: fleet.remove(worker=worker, user=admin)) == [None, None]
    assert not Worker.objects.exists() and Attempt.objects.get().worker is None


def test_a_run_whose_beginning_was_deleted_since_it_was_checked_is_refused(alice: Any) -> None:
    run = with_checkpoint(alice)
    prepared = submission.prepare(alice, {"spec": run.spec, "resume_from": {"run": run.pk, "step": 5}})
    removal.delete(runs=[run.pk], user=alice)
    with pytest.raises(services.Invalid) as refused:
        services.write(prepared)
    assert refused.value.field_errors == {"resume_from": f"There is no run {run.pk}."}
    assert not Run.objects.exists()
