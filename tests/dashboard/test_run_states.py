"""What the head of a run's page says about a waiting run, and about one that ended abnormally."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from django.test import Client
from django.utils import timezone

from dashboard.fleet.models import Worker
from dashboard.runs import cancelling, states
from dashboard.runs.browse import list_views
from dashboard.runs.models import Attempt, Run, State
from dashboard.runs.page.verdict import verdict
from tests.dashboard import factory
from tests.dashboard.ingested import on_both_devices


def html(client: Client, run: Run) -> str:
    return client.get(f"/runs/{run.pk}/").content.decode()


def test_queued_run_says_who_holds_its_devices_and_how_long(reader: Client, alice: Any) -> None:
    held = factory.queued(alice, {"dp": 2}, name="long one")
    factory.start(held)
    run = factory.queued(alice, {"dp": 2})
    assert [(other.pk, left) for other, left in verdict(run).holding] == [(held.pk, "")]
    Run.objects.filter(pk=held.pk).update(step=2, step_time=30.0)
    said = html(reader, run)
    assert "There now: " in said and "long one" in said and "(alice, 20 min left)" in said


def test_replicas_that_differ_are_no_error_in_the_code(reader: Client, alice: Any) -> None:
    run = factory.queued(alice)
    factory.start(run)
    what = "Replicas began to differ between steps 0 and 19: head.weight of rank 1."
    detail = f"Rank 0 failed at step 19: ReplicasDiffer: {what}"
    factory.end(run, State.FAILED, detail, "user_code")
    said = html(reader, run)
    assert "Failed: replicas differ" in said and "an error in the training code" not in said
    assert f"Rank 0 failed at step 19: {what}" in said, "without the name of a class"


def test_data_that_are_not_those_it_began_with_are_no_error_in_the_code(reader: Client, alice: Any) -> None:
    run = factory.queued(alice)
    factory.start(run)
    detail = "Rank 0 failed before its first step in building: CorpusError: train.corpus: tokens:web is another"
    factory.end(run, State.FAILED, detail, "user_code")
    said = html(reader, run)
    assert "Failed: the data it reads" in said and "an error in the training code" not in said
    assert "Clone it once the right data are where its worker reads them." in said


def test_a_checkpoint_that_cannot_be_read_is_no_error_in_the_code(reader: Client, alice: Any) -> None:
    run = factory.queued(alice)
    factory.start(run)
    detail = "Rank 0 failed before its first step in building: CheckpointError: The checkpoint step-8 is damaged."
    factory.end(run, State.FAILED, detail, "user_code")
    said = html(reader, run)
    assert "Failed: a checkpoint or weights" in said and "an error in the training code" not in said


def test_a_full_disk_is_no_error_in_the_code(reader: Client, alice: Any) -> None:
    run = factory.queued(alice)
    factory.start(run)
    detail = "Rank 0 ended with exit code 5 (No space left on device for its records) at step 25 in forward."
    factory.end(run, State.FAILED, detail, "user_code")
    said = html(reader, run)
    assert "Failed: a full disk" in said and "an error in the training code" not in said
    assert "once its worker&#x27;s disk has room" in said


def test_a_used_up_quota_is_not_told_as_a_full_disk(reader: Client, alice: Any) -> None:
    """Fleet would show a disk with room."""
    run = factory.queued(alice)
    factory.start(run)
    detail = "Rank 0 ended with exit code 6 (Disk quota exceeded for its records) at step 25 in forward."
    factory.end(run, State.FAILED, detail, "user_code")
    said = html(reader, run)
    assert "Failed: a used-up disk quota" in said and "a full disk" not in said
    assert "a larger quota" in said and "Fleet says what is left" not in said


def test_a_run_cancelled_in_the_queue_took_no_time(reader: Client, alice: Any) -> None:
    run = factory.queued(alice)
    Run.objects.filter(pk=run.pk).update(queued_at=timezone.now() - timedelta(hours=5))
    cancelling.request_cancel(run=run, user=alice)
    said = html(reader, run)
    assert 'data-age="ago"' in said and ", took" not in said


def test_a_run_that_was_retried_took_as_long_as_all_its_attempts(reader: Client, alice: Any) -> None:
    run, now = factory.queued(alice), timezone.now()
    first, second, untaken = (factory.start(run).pk for _ in range(3))
    factory.end(run, State.SUCCEEDED)
    Attempt.objects.filter(pk=first).update(started_at=now - timedelta(hours=3), ended_at=now - timedelta(hours=1))
    Attempt.objects.filter(pk=second).update(started_at=now - timedelta(minutes=30), ended_at=now)
    Attempt.objects.filter(pk=untaken).update(started_at=None)
    assert ", took 2 h 30 min in 2 attempts" in html(reader, run)


def test_a_clock_that_was_set_back_makes_no_run_shorter_than_it_was(reader: Client, alice: Any) -> None:
    """The worker times its attempt by a clock that nobody sets; a lost one's end was only seen by the controller."""
    run, now = factory.queued(alice), timezone.now()
    first, lost = (factory.start(run).pk for _ in range(2))
    factory.end(run, State.SUCCEEDED)
    timed = {"started_at": now, "ended_at": now - timedelta(minutes=50), "report": {"ran_s": 600.04}}
    Attempt.objects.filter(pk=first).update(**timed)
    Attempt.objects.filter(pk=lost).update(started_at=now, ended_at=now - timedelta(hours=1))
    assert ", took 10 min in 2 attempts" in html(reader, run)


def test_a_retried_run_tells_its_first_start_beside_that_of_its_newest_attempt(reader: Client, alice: Any) -> None:
    attempt = on_both_devices(alice)
    run = Run.objects.get(pk=attempt.run_id)
    assert "first started" not in html(reader, run) and run.first_started_at == run.started_at is not None
    began = timezone.now() - timedelta(hours=10, minutes=2)
    Run.objects.filter(pk=run.pk).update(started_at=began, first_started_at=began, retries_left=1)
    states.lose(attempt, "gone")
    assert ", first started 10 h ago" in re.sub(r"<[^>]+>", "", html(reader, run))
    states.running(states.place(Run.objects.get(pk=run.pk), attempt.devices, attempt.worker))
    text = re.sub(r"<[^>]+>", "", html(reader, run))
    assert re.search(r"running for \d+ s in this attempt, first started 10 h ago", text)
    told = reader.get(f"/api/v1/runs/{run.pk}").json()["data"]
    row = list_views.as_row(Run.objects.get(pk=run.pk))
    assert told["first_started_at"][:19] == began.isoformat()[:19] < told["started_at"][:19]
    assert (row["first_started_at"], row["started_at"] > began) == (began, True)


def test_a_lost_run_says_once_that_it_was_lost(reader: Client, alice: Any) -> None:
    run = factory.queued(alice)
    factory.start(run)
    factory.end(run, State.LOST, "The worker was restarted while this ran.", "worker_lost")
    said = html(reader, run)
    assert ">Lost</span>" in said and "worker lost" not in said


def test_each_attempt_names_all_its_workers_also_one_that_was_removed(reader: Client, alice: Any) -> None:
    run = factory.queued(alice, {"dp": 2})
    first = factory.start(run)
    nodes = [{"worker": name, "devices": [0], "first_rank": i} for i, name in enumerate(("yard-a", "yard-b"))]
    Attempt.objects.filter(pk=first.pk).update(devices=nodes, started_at=None, over=True, outcome="interrupted")
    factory.start(run)
    Worker.objects.all().delete()
    page = reader.get(f"/runs/{run.pk}/?tab=events").content.decode()
    assert "<h2>Events</h2>" in page, "the events are not those of the table of attempts above them"
    rows = attempt_rows(page)
    assert [row[:2] for row in rows] == [["1", "yard-a, yard-b"], ["2", "yard-a"]]
    assert rows[0][2] == "never" and re.fullmatch(r"\d+ \w+ [\d:]+", rows[1][2])


def attempt_rows(page: str) -> list[list[str]]:
    """The texts of the table of attempts, row by row."""
    table = page.partition('aria-label="Attempts"')[2].partition("</table>")[0].partition("<tbody>")[2]
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in re.findall(r"<tr>.*?</tr>", table)]
    return [[re.sub(r"<[^>]+>", "", cell) for cell in row] for row in cells]
