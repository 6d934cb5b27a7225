"""Searches of the database and the clocks that the controller repeats. Each sweep is safe to repeat."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Literal

from django.db.models import Max, Sum
from django.utils import timezone

from dashboard.control import multi_host
from dashboard.control.arrival import incomplete_files, rewind
from dashboard.control.clocks import Clocks
from dashboard.control.dispatch import ControlMessage
from dashboard.fleet.models import Worker
from dashboard.fleet.selectors import live_attempts
from dashboard.ledger.models import ProfileState
from dashboard.ledger.selectors import in_front
from dashboard.runs import states
from dashboard.runs.models import Attempt, Checkpoint, Corpus, OpenWaits, Run, State
from dashboard.runs.tracing import next_trace
from parallel_core.analysis.quantities import listed_text
from workers.contract import PROFILE_LIMIT_S, START_LIMIT_S, STOP_LIMIT_S, ControlEntry

log = logging.getLogger(__name__)

RESEND_S = 10.0
"""If a worker sends heartbeats for this long without listing an attempt sent to it, it never got the message."""
MOST_RESENDS = 3
ASK_AGAIN_DAYS = 2
SLOWEST_READ = 1 << 20
"""The slowest rate, in bytes a second, at which a worker may fetch its corpus and read its checkpoints."""

Verdict = Literal["fine", "again", "ended"]
Checked = tuple[Attempt, Verdict, list[ControlMessage]]
"""An attempt, what its lease says, and the messages that follow from that."""


def sweep_cancels() -> list[ControlMessage]:
    """Handles requested cancels: queued runs end here; active ones become `cancelling`; their workers get a message."""
    messages: list[ControlMessage] = []
    asked = Run.objects.filter(cancel_requested_at__isnull=False)
    for run in asked.filter(state__in=(State.QUEUED, State.STARTING, State.RUNNING)):
        try:
            if run.state == State.QUEUED:
                states.cancel_queued(run)
            else:
                states.cancelling(run)
                messages += _cancel_messages(run)
        except states.IllegalTransition as error:
            log.info("cancel of run %s: %s", run.pk, error)
    return messages


def _cancel_messages(run: Run) -> list[ControlMessage]:
    attempts = run.attempts.filter(over=False)
    return [(node["worker"], {"kind": "cancel", "attempt": a.pk}) for a in attempts for node in a.devices]


def sweep_traces() -> list[ControlMessage]:
    """Chooses the step for runs of which somebody asked for a trace; returns the messages that tell every host."""
    messages: list[ControlMessage] = []
    for run in Run.objects.filter(trace_asked_at__isnull=False, trace_step__isnull=True, state=State.RUNNING):
        step = next_trace.due(run)
        if step is None or not Run.objects.filter(pk=run.pk, trace_step__isnull=True).update(trace_step=step):
            continue
        for attempt in run.attempts.filter(over=False):
            entry: ControlEntry = {"kind": "trace", "attempt": attempt.pk, "step": step, "how": run.trace_how}
            messages += [(node["worker"], entry) for node in attempt.devices]
    return messages


def sweep_leases(clocks: Clocks, lease: float, resends: dict[int, int]) -> Iterator[Checked]:
    """Ends attempts whose worker fell silent or lost them.

    Yields each attempt whose start message is to be sent again, or that was ended here, as soon as that is committed:
    the next one may raise, and no later sweep finds it. `resends` = attempt -> how often its start message was repeated
    so far.
    """
    attempts = live_attempts()
    clocks.keep({attempt.pk for attempt in attempts})
    for attempt in attempts:
        try:
            verdict = _check_lease(attempt, clocks, lease, resends)
        except states.IllegalTransition as error:
            log.info("lease of attempt %s: %s", attempt.pk, error)
            continue
        if verdict != "fine":
            yield attempt, verdict, _fence_untaken(attempt, clocks) if verdict == "ended" else []


def _fence_untaken(attempt: Attempt, clocks: Clocks) -> list[ControlMessage]:
    """Fences the attempt, which is over, on hosts whose start message may still wait in the broker: a host that comes
    back would start it beside the run's next attempt. Hosts that have taken it are told `end` when they list it."""
    if attempt.started_at is not None:
        return []
    silent = multi_host.silent(attempt.report, attempt.devices)
    untaken = [worker for worker in silent if not clocks.was_listed(worker, attempt.pk)]
    return [(worker, {"kind": "fence", "attempt": attempt.pk}) for worker in untaken]


def _check_lease(attempt: Attempt, clocks: Clocks, lease: float, resends: dict[int, int]) -> Verdict:
    """Checks one attempt; of the hosts that have not reported its end, the one silent for longest decides."""
    waits_for = multi_host.silent(attempt.report, attempt.devices)
    silences = {worker: clocks.watch(worker, attempt.pk) for worker in waits_for}
    if not silences:
        return "fine"
    worker, (silence, missing) = max(silences.items(), key=lambda item: (item[1][0] > lease, item[1][1]))
    if silence <= lease and missing <= lease:
        return _check_start(attempt, clocks)
    if multi_host.tells_why(attempt.report):
        return _end_without(attempt, worker)
    if silence > lease and _untaken(attempt, [name for name, (since, _) in silences.items() if since > lease], clocks):
        left = Worker.objects.filter(name=worker, leaving=True).exists()
        detail = f"Worker {worker} {'left' if left else 'fell silent'} before it took the run."
        states.finish(attempt, "interrupted", "interrupted", detail, attempt.report, f"{detail} Queued again.")
        return "ended"
    if silence > lease:
        states.lose(attempt, f"Worker {worker} sent no heartbeat for {lease:.0f} s.", attempt.report)
        return "ended"
    return _check_missing(attempt, worker, missing, clocks, resends)


def _untaken(attempt: Attempt, silent: Iterable[str], clocks: Clocks) -> bool:
    """Whether none of the silent workers ever took the attempt, so that they never started a process of it.

    The clocks know only what was listed since this controller began. Of an attempt that another one placed and some
    host listed, each host may have been the one: it counts as taken.
    """
    if attempt.run.state == State.RUNNING:
        return False
    up = attempt.report.get("up", ())
    if any(worker in up or clocks.was_listed(worker, attempt.pk) for worker in silent):
        return False
    return attempt.lease_until is None or clocks.from_placement(attempt.pk)


def _end_without(attempt: Attempt, worker: str) -> Verdict:
    """Ends an attempt that failed on another host, without a report from this worker."""
    whole = multi_host.verdict(attempt.report, attempt.devices)
    detail = f"{whole.get('detail', '')} Worker {worker} told nothing of its ranks."
    states.finish(attempt, whole["outcome"], whole.get("cause", ""), detail, whole)
    return "ended"


def _check_missing(attempt: Attempt, worker: str, missing: float, clocks: Clocks, resends: dict[int, int]) -> Verdict:
    """Handles a worker that sends heartbeats but has not listed the attempt for `missing` seconds."""
    if attempt.run.state == State.CANCELLING:
        detail = f"Cancelled; {worker} has no process of it."
        states.finish(attempt, "cancelled", "cancelled", detail, attempt.report)
    elif attempt.run.state == State.RUNNING or clocks.was_listed(worker, attempt.pk):
        states.lose(attempt, f"Worker {worker} is there but no longer has its processes.", attempt.report)
    elif missing <= RESEND_S:
        return "fine"
    elif resends.get(attempt.pk, 0) < MOST_RESENDS:
        log.warning("start message of attempt %s vanished; sending it again", attempt.pk)
        resends[attempt.pk] = resends.get(attempt.pk, 0) + 1
        clocks.restart(attempt.pk)
        return "again"
    else:
        detail = f"Worker {worker} did not take it, though it was sent {MOST_RESENDS + 1} times."
        states.lose(attempt, detail, attempt.report)
    return "ended"


def _check_start(attempt: Attempt, clocks: Clocks) -> Verdict:
    """Fails an attempt whose worker has taken it but does not have all its ranks up in time: a start is all or none.

    Ranks that did start are stopped by the `end` that answers the next heartbeat (see ingest).
    """
    listed = clocks.listed_for(attempt.pk)
    if attempt.run.state != State.STARTING or listed <= START_LIMIT_S or listed <= _start_limit(attempt):
        return "fine"
    late = listed_text(multi_host.not_up(attempt.report, attempt.devices))
    detail = f"Its ranks on {late} had not all started {listed:.0f} s after it was taken."
    states.finish(attempt, "failed", "timed_out", detail, attempt.report)
    return "ended"


def _start_limit(attempt: Attempt) -> float:
    """Seconds in which all ranks must be up; more if the worker may have to fetch a large corpus, to read the run's
    checkpoints, to finish a profile or to end ranks of an earlier attempt first."""
    kind, _, sha256 = str(attempt.run.spec.get("train", {}).get("corpus", "")).partition(":")
    size = Corpus.objects.filter(sha256=sha256).values_list("size", flat=True).first() if kind == "blob" else None
    saved = Checkpoint.objects.filter(run=attempt.run).aggregate(all=Sum("bytes"))["all"]
    reading = ((size or 0) + (saved or 0)) / SLOWEST_READ
    return START_LIMIT_S + reading + _profiled_for(attempt) + _held_for(attempt)


def _held_for(attempt: Attempt) -> float:
    """Seconds for which ranks of an attempt that was given up may hold devices of this one: its host has not reported
    its end."""
    if attempt.sent_at is None:
        return 0.0
    mine, since = {node["worker"] for node in attempt.devices}, attempt.sent_at - timedelta(days=ASK_AGAIN_DAYS)
    before = Attempt.objects.filter(over=True, settled=False, ended_at__gt=since).values_list("report", "devices")
    return STOP_LIMIT_S if any(mine & set(multi_host.silent(*row)) for row in before) else 0.0


def _profiled_for(attempt: Attempt) -> float:
    """Seconds for which profiles may have occupied the worker's devices since the attempt was sent there."""
    if attempt.sent_at is None:
        return 0.0
    before = in_front(attempt)
    if before.filter(state=ProfileState.ASKED).exists():
        return PROFILE_LIMIT_S
    done = before.filter(done_at__gt=attempt.sent_at).aggregate(last=Max("done_at"))["last"]
    return (done - attempt.sent_at).total_seconds() if done else 0.0


def sweep_standstills(clocks: Clocks, lease: float) -> list[ControlMessage]:
    """Returns the messages that end attempts over several hosts of which no rank is left that moves. A host alone
    cannot tell a hang from waiting for another host."""
    messages: list[ControlMessage] = []
    for pk, workers in clocks.still(lease).items():
        attempt = Attempt.objects.filter(pk=pk, over=False).first()
        left = multi_host.silent(attempt.report, attempt.devices) if attempt else []
        if workers.issuperset(left):
            messages += [(worker, {"kind": "stuck", "attempt": pk}) for worker in left]
    return messages


def sweep_unsettled(alive: Iterable[str]) -> list[ControlMessage]:
    """Asks again for the rest of files of ended attempts that have not arrived whole (a batch was lost on the way)."""
    since = timezone.now() - timedelta(days=ASK_AGAIN_DAYS)
    # From the few rows to their attempts: joined, SQLite begins with every attempt ever ended.
    if held := set(OpenWaits.objects.order_by().values_list("attempt", flat=True).distinct()):
        old = Attempt.objects.filter(pk__in=held, over=True, ended_at__lte=since)
        OpenWaits.objects.filter(attempt__in=list(old)).delete()
    waiting = Attempt.objects.filter(over=True, settled=False, ended_at__gt=since)
    there, messages = set(alive), []
    for attempt in waiting:
        if there.isdisjoint(node["worker"] for node in attempt.devices):
            continue
        for key, offset in incomplete_files(attempt).items():
            messages.append((multi_host.worker_of(attempt.devices, key[1]), rewind(key, offset)))
    return messages
