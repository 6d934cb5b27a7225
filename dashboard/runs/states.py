"""All changes of a run's state are made here.

    queued -> starting -> running -> (cancelling) -> succeeded | failed | cancelled | lost
    starting | running -> queued again: interrupted, never taken, or the worker was lost or a process of the run killed
                          from outside, and retries are left

Each transition is a conditional UPDATE that must change exactly one row, else IllegalTransition is raised and nothing
is written. Each writes an Event and announces `state` on the LIVE stream after the commit; an end is noted for the
webhook. Only the controller makes the transitions of an attempt; the web process makes one itself, when a user cancels
a queued run.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Value
from django.db.models.functions import Coalesce
from django.utils import timezone

from dashboard.live.announce import announce
from dashboard.runs.attempts import devices_text
from dashboard.runs.models import ACTIVE, ENDED, Attempt, Event, ProfilePart, Run, SpanChunk, State
from dashboard.runs.waiting import crashes, resting
from dashboard.runs.waiting.resting import KILLED, RETRIED, WORKER_LOST
from dashboard.studies.models import Study
from dashboard.webhook.outbox import note_end
from parallel_core.analysis.quantities import step_text, steps_text

OUTCOME_STATES = {"succeeded": State.SUCCEEDED, "failed": State.FAILED, "cancelled": State.CANCELLED}
INTERRUPTED = "interrupted"
STOPPED = "Interrupted by an orderly stop of its worker; queued again."


class IllegalTransition(Exception):
    """The row was not in a state that allows this change (it may have changed just now). Nothing was written."""


def record(run: Run, kind: str, text: str, attempt: Attempt | None = None, actor: Any = None) -> None:
    """Writes an Event and announces it."""
    Event.objects.create(run=run, attempt=attempt, kind=kind, text=text, actor=actor)
    announce(run.pk, run.study_id, "state", "events")


def record_once(attempt: Attempt, kind: str, begin: str, rest: str) -> None:
    """Records the text `begin` + `rest`, unless the attempt has an Event of that kind whose text begins so."""
    if not Event.objects.filter(attempt=attempt, kind=kind, text__startswith=begin).exists():
        record(attempt.run, kind, begin + rest, attempt)


def record_all(entries: Iterable[tuple[Run, str]], kind: str, actor: Any = None) -> None:
    """Writes and announces an Event of one kind for each (run, text)."""
    events = [Event(run=run, kind=kind, text=text, actor=actor) for run, text in entries]
    for event in Event.objects.bulk_create(events):
        announce(event.run.pk, event.run.study_id, "state", "events")


def _fresh_id(now: datetime) -> int:
    """An attempt's id that no earlier database gave out: microseconds since 1970, and always above the last.

    Workers keep what they know of attempts by id in a folder of their own, which may outlive the database.
    """
    last = Attempt.every.order_by("-pk").values_list("pk", flat=True).first() or 0
    return max(int(now.timestamp() * 1_000_000), last + 1)


def _move(
    run_id: int, sources: tuple[State, ...], target: State, if_still: dict[str, Any] | None = None, **changes: Any
) -> Run:
    """Changes the state by a conditional UPDATE, of a row whose fields are `if_still` these; returns the fresh row.
    Clears `cause` and `detail` unless given.

    An end is noted for the webhook.
    """
    changes = {"cause": "", "detail": "", **changes}
    if Run.objects.filter(pk=run_id, state__in=sources, **(if_still or {})).update(state=target, **changes) != 1:
        found = Run.objects.filter(pk=run_id).values_list("state", flat=True).first() or "deleted"
        raise IllegalTransition(f"run {run_id} is {found}; only {' or '.join(sources)} can become {target}")
    run = Run.objects.get(pk=run_id)
    if target in ENDED:
        note_end(run)
    return run


def _close(attempt: Attempt, outcome: str, cause: str, detail: str, report: dict[str, Any], at: datetime) -> None:
    """Ends the attempt: from now on its events change no state (fencing)."""
    changed = Attempt.objects.filter(pk=attempt.pk, over=False).update(
        over=True, outcome=outcome, cause=cause, detail=detail, report=report, ended_at=at, lease_until=None
    )
    if changed != 1:
        raise IllegalTransition(f"attempt {attempt.pk} of run {attempt.run_id} is already over")


@transaction.atomic
def place(run: Run, nodes: list[dict[str, Any]], worker: Any) -> Attempt:
    """queued -> starting: gives the run its devices.

    1. Changes the row; a run that was cancelled or placed in the meantime raises IllegalTransition.
    2. Makes the next attempt with its nodes, on the first node's `worker` (fleet.Worker) in its present boot.
    3. The caller sends the start message after the commit; if it gets lost, it is sent again.
    """
    now = timezone.now()
    still = {"run_on": run.run_on}  # whoever has chosen other devices since the queue was read is obeyed
    run = _move(run.pk, (State.QUEUED,), State.STARTING, still, started_at=None, ended_at=None)
    last = Attempt.objects.filter(run=run).order_by("-number").values_list("number", flat=True).first()
    attempt = Attempt.objects.create(
        pk=_fresh_id(now),
        run=run,
        number=(last or 0) + 1,
        worker=worker,
        worker_boot=worker.boot,
        devices=nodes,
        sent_at=now,
    )
    record(run, "starting", f"Attempt {attempt.number} was placed on {devices_text(nodes)}.", attempt)
    return attempt


@transaction.atomic
def running(attempt: Attempt, begins: dict[str, Any] | None = None) -> Run:
    """starting -> running: every rank of the attempt is up. `begins` = where it began (workers.contract.Begins).

    1. Refuses an attempt that is over.
    2. Changes the row; a run that is being cancelled stays `cancelling` (IllegalTransition).
    """
    _require_live(attempt)
    attempt.begins = begins or {}
    now = timezone.now()
    first = Coalesce("first_started_at", Value(now))
    run = _move(attempt.run_id, (State.STARTING,), State.RUNNING, started_at=now, first_started_at=first)
    Attempt.objects.filter(pk=attempt.pk).update(started_at=now, begins=attempt.begins)
    where = beginning(attempt)
    ranks = f"All {run.devices} ranks" if run.devices > 1 else "The only rank"
    verb = "are" if run.devices > 1 else "is"
    text = f"{ranks} of attempt {attempt.number} {verb} running{', ' + where if where else ''}."
    record(run, "running", text, attempt)
    return run


@transaction.atomic
def cancelling(run: Run) -> Run:
    """starting | running -> cancelling: the worker is being told to stop every process."""
    run = _move(run.pk, (State.STARTING, State.RUNNING), State.CANCELLING, detail="Stopping its processes.")
    record(run, "cancelling", "Its processes are being stopped.")
    return run


@transaction.atomic
def cancel_queued(run: Run, actor: Any = None) -> Run:
    """queued -> cancelled: nothing was running, so this is final at once."""
    now = timezone.now()
    detail = "Cancelled while it was queued; nothing was started."
    run = _move(run.pk, (State.QUEUED,), State.CANCELLED, cause="cancelled", detail=detail, ended_at=now)
    record(run, "cancelled", detail, actor=actor)
    return run


@transaction.atomic
def finish(
    attempt: Attempt, outcome: str, cause: str = "", detail: str = "", report: Any = None, requeued: str = STOPPED
) -> Run:
    """starting | running | cancelling -> the end that the worker reported.

    1. Closes the attempt; one that is already over raises IllegalTransition.
    2. `interrupted` (an orderly stop, or it never began): queued again without using a retry, with the sentence
       `requeued`; cancelled if that was requested.
    3. A lost worker, a process that a signal from outside ended: as `lose`.
    4. Else succeeded, failed or cancelled, with the cause and one sentence.
    """
    if cause in RETRIED:
        return lose(attempt, detail, report, cause)
    run = Run.objects.get(pk=attempt.run_id)
    if outcome == INTERRUPTED and run.cancel_requested_at:
        outcome, cause = "cancelled", "cancelled"
    now = timezone.now()
    _close(attempt, outcome, cause, detail, report or {}, now)
    if outcome == INTERRUPTED:
        return _requeue(attempt, requeued, {})
    target = OUTCOME_STATES.get(outcome, State.FAILED)
    run = _move(attempt.run_id, ACTIVE, target, cause=cause, detail=detail, ended_at=now)
    record(run, target, detail or f"Attempt {attempt.number} {target}.", attempt)
    return run


@transaction.atomic
def lose(attempt: Attempt, detail: str, report: Any = None, cause: str = WORKER_LOST) -> Run:
    """starting | running | cancelling -> lost, or queued again if a retry is left and no cancel was requested.

    1. Closes the attempt with its cause, one of RETRIED; one that is already over raises IllegalTransition.
    2. With a retry left: uses it and queues the run again, at its old place in the queue, where it may rest first
       (runs.waiting.resting).
    3. Else, and where it crashed as the attempt before did, the run is lost; failed, if its worker is still there.
    """
    now = timezone.now()
    detail = detail or "Its worker was lost."
    _close(attempt, "failed", cause, detail, report or {}, now)
    run = Run.objects.get(pk=attempt.run_id)
    again = cause == KILLED and crashes.repeats(attempt, detail)
    if again:
        detail = f"{detail} The attempt before ended in the same way at the same step, so it is not tried again."
    elif run.retries_left > 0 and run.cancel_requested_at is None:
        left, rest = run.retries_left - 1, resting.rest_s(run.pk)
        when = f", to start in {rest} s at the earliest" if rest else ""
        return _requeue(attempt, f"{detail} Queued again{when}; {_after(left)}.", {"retries_left": left})
    target = State.LOST if cause == WORKER_LOST else State.FAILED
    run = _move(attempt.run_id, ACTIVE, target, cause=cause, detail=detail, ended_at=now)
    record(run, target, detail, attempt)
    return run


def _requeue(attempt: Attempt, detail: str, changes: dict[str, Any]) -> Run:
    """Queues the run again. `queued_at` stays, so that it keeps its place before later ones. It runs where its study
    does by now, at no higher priority than that.
    """
    now = Run.objects.get(pk=attempt.run_id)
    if now.study_id is not None:
        study = Study.objects.select_for_update().get(pk=now.study_id)  # somebody may be changing its place
        changes = {**changes, "run_on": study.run_on, "priority": min(study.priority, now.priority)}
    changes = {**changes, **_trace_again(attempt, now)}
    run = _move(attempt.run_id, ACTIVE, State.QUEUED, detail=detail, started_at=None, **changes)
    record(run, "requeued", detail, attempt)
    return run


def _trace_again(attempt: Attempt, run: Run) -> dict[str, Any]:
    """Changes to the row of a run that is queued again: only the ranks of this attempt know which step they were to
    trace. It is asked of the next one, unless it has been traced."""
    if run.trace_step is None:
        return {}
    spans = SpanChunk.objects.filter(attempt=attempt, step=run.trace_step)
    files = ProfilePart.objects.filter(attempt=attempt, step=run.trace_step)
    return {"trace_step": None, **({"trace_asked_at": None} if spans.exists() or files.exists() else {})}


def beginning(attempt: Attempt) -> str:
    """`resumed from step 40 of attempt 1`, followed by `, as why` if there were newer checkpoints; `from step 0: why`;
    '' for an attempt that began at step 0 as expected, as does each of a run that has no steps."""
    begins = attempt.begins
    if not begins:
        return ""
    if not begins.get("step"):
        return f"from step 0: {begins['why']}" if begins.get("why") and not attempt.run.task else ""
    source = Attempt.objects.filter(pk=begins.get("attempt"), run=begins.get("run")).first()
    number = f" of attempt {source.number}" if source else ""
    other = f" of run {begins['run']}" if begins.get("run") != attempt.run_id else ""
    if attempt.run.generates:
        return f"from the checkpoint after {steps_text(begins['step'])}{other}"
    why = f", as {begins['why']}" if begins.get("why") else ""
    return f"resumed from {step_text(begins['step'])}{number}{other}{why}"


def _require_live(attempt: Attempt) -> None:
    if Attempt.objects.filter(pk=attempt.pk, over=False).count() != 1:
        raise IllegalTransition(f"attempt {attempt.pk} of run {attempt.run_id} is already over")


def _after(left: int) -> str:
    """What a run that is tried again has left."""
    return f"{left} retries left" if left > 1 else "1 retry left" if left else "this is its last retry"


def retries_at_first(run: Run) -> int:
    """The number of retries that the run was submitted with: those left, and one for each attempt that was lost or
    killed on the way.

    The end of the run itself used none.
    """
    lost = run.attempts.filter(cause__in=RETRIED).count()
    return run.retries_left + max(0, lost - (run.cause in RETRIED))
