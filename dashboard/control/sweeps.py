"""What the controller looks for on every turn, in the database and on its clocks. Each sweep is safe to repeat."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from dashboard.control.clocks import Clocks
from dashboard.control.ingest import behind
from dashboard.control.orders import Order
from dashboard.control.placement import Share, plan
from dashboard.fleet.models import Worker
from dashboard.fleet.selectors import hosts, live_attempts
from dashboard.runs import states
from dashboard.runs.models import ACTIVE, Attempt, Run, State
from dashboard.runs.queue import queued_runs, requests, studies_active

log = logging.getLogger(__name__)

RESEND_S = 10.0
"""A worker that beats this long without naming an attempt that was sent to it never got the message."""
MOST_RESENDS = 3
ASK_AGAIN_DAYS = 2


def sweep_cancels() -> list[Order]:
    """Runs whose owner asked for an end: queued ones end here, active ones become `cancelling` and are told so."""
    orders: list[Order] = []
    asked = Run.objects.filter(cancel_requested_at__isnull=False)
    for run in asked.filter(state__in=(State.QUEUED, State.STARTING, State.RUNNING)):
        try:
            if run.state == State.QUEUED:
                states.cancel_queued(run)
            else:
                states.cancelling(run)
                orders += _cancel_orders(run)
        except states.IllegalTransition as error:
            log.info("cancel of run %s: %s", run.pk, error)
    return orders


def _cancel_orders(run: Run) -> list[Order]:
    attempts = run.attempts.filter(over=False)
    return [(node["worker"], {"kind": "cancel", "attempt": a.pk}) for a in attempts for node in a.devices]


def place_queued(alive: Iterable[str]) -> list[Attempt]:
    """Gives free devices to queued runs; returns the attempts whose start message is to be sent."""
    runs = queued_runs()
    if not runs:
        return []
    by_id = {run.pk: run for run in runs}
    outcome = plan(requests(runs), hosts(set(alive)), studies_active())
    placed = []
    for request, shares in outcome.placed:
        try:
            placed.append(_place(by_id[request.run], shares))
        except (states.IllegalTransition, Worker.DoesNotExist) as error:
            log.info("run %s was not placed after all: %s", request.run, error)
    return placed


@transaction.atomic
def _place(run: Run, shares: list[Share]) -> Attempt:
    workers = {share.host: Worker.objects.get(name=share.host) for share in shares}
    nodes: list[dict[str, Any]] = [
        {
            "worker": share.host,
            "devices": list(share.devices),
            "first_rank": share.first_rank,
            "address": workers[share.host].host,
        }
        for share in shares
    ]
    return states.place(run, nodes, workers[shares[0].host])


def sweep_leases(clocks: Clocks, lease: float, resends: dict[int, int]) -> list[Attempt]:
    """Ends attempts whose worker fell silent or lost them; returns those whose start message is to be sent again.

    `resends` counts messages repeated so far, by attempt.
    """
    again: list[Attempt] = []
    attempts = live_attempts()
    clocks.keep({attempt.pk for attempt in attempts})
    for attempt in attempts:
        try:
            again += _check_lease(attempt, clocks, lease, resends)
        except states.IllegalTransition as error:
            log.info("lease of attempt %s: %s", attempt.pk, error)
    return again


def _check_lease(attempt: Attempt, clocks: Clocks, lease: float, resends: dict[int, int]) -> list[Attempt]:
    silences = {node["worker"]: clocks.watch(node["worker"], attempt.pk) for node in attempt.devices}
    worker, (silence, missing) = max(silences.items(), key=lambda item: item[1][0])
    if silence > lease:
        states.lose(attempt, f"Worker {worker} sent no heartbeat for {lease:.0f} s.", attempt.report)
    elif missing <= lease:
        return []
    elif attempt.run.state == State.CANCELLING:
        detail = f"Cancelled; {worker} has no process of it."
        states.finish(attempt, "cancelled", "cancelled", detail, attempt.report)
    elif attempt.run.state == State.RUNNING or clocks.was_listed(attempt.pk):
        states.lose(attempt, f"Worker {worker} is there but no longer has its processes.", attempt.report)
    elif missing > RESEND_S:
        return _send_again(attempt, clocks, resends, worker)
    return []


def _send_again(attempt: Attempt, clocks: Clocks, resends: dict[int, int], worker: str) -> list[Attempt]:
    count = resends[attempt.pk] = resends.get(attempt.pk, 0) + 1
    if count > MOST_RESENDS:
        detail = f"Worker {worker} did not take it, though it was sent {count} times."
        states.lose(attempt, detail, attempt.report)
        return []
    log.warning("start message of attempt %s vanished; sending it again", attempt.pk)
    clocks.restart(attempt.pk)
    return [attempt]


def sweep_unsettled(alive: Iterable[str]) -> list[Order]:
    """Asks again for the rest of files that ended attempts have not delivered whole (a batch was lost on the way)."""
    since = timezone.now() - timedelta(days=ASK_AGAIN_DAYS)
    waiting = Attempt.objects.filter(over=True, settled=False, ended_at__gt=since, worker__name__in=list(alive))
    orders: list[Order] = []
    for attempt in waiting.exclude(run__state__in=ACTIVE):
        for (pk, rank, channel), offset in behind(attempt).items():
            name = "events" if channel == "events" else "log"
            owner = _worker_of(attempt, rank)
            orders.append((owner, {"kind": "rewind", "attempt": pk, "rank": rank, "channel": name, "offset": offset}))
    return orders


def _worker_of(attempt: Attempt, rank: int) -> str:
    nodes = sorted(attempt.devices, key=lambda node: node["first_rank"])
    return str(next(node for node in reversed(nodes) if node["first_rank"] <= rank)["worker"])
