"""Gives queued runs free devices, in the order of the queue (placement decides which)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from django.db import transaction
from django.utils import timezone

from dashboard.control.suspects import UNREACHABLE
from dashboard.fleet.models import Worker
from dashboard.fleet.selectors import hosts
from dashboard.placement.assignments import Share, plan
from dashboard.placement.hosts import Request
from dashboard.runs import states
from dashboard.runs.models import Attempt, Run, State
from dashboard.runs.run_files import Files
from dashboard.runs.waiting import resting
from dashboard.runs.waiting.asking import Beginnings, queued_runs, requests
from dashboard.runs.waiting.queue import studies_active
from dashboard.runs.waiting.turns import queue_order
from parallel_core.analysis.quantities import listed_text

log = logging.getLogger(__name__)

QUEUE_PART = 250
"""Queued runs that are read at once to be placed: usually few are, however long the queue is."""


def place_queued(alive: Iterable[str], fresh: Iterable[str], known: Iterable[str] = ()) -> Iterator[Attempt]:
    """Places queued runs on free devices of the `fresh` workers. Workers that are only `alive` give nothing now but are
    waited for; those that are `known` may come back. Runs that rest (runs.waiting.resting) are passed over.

    Yields each attempt whose start message is to be sent as soon as it is committed: the next one may raise. Where one
    run alone cannot be placed, the others are, before its error is raised.

    The queue, which may be long, is not read while no host has anything to give, and in parts until none has that no
    older run waits for.
    """
    if not Run.objects.filter(state=State.QUEUED, cancel_requested_at=None).exists():
        return
    fleet = hosts(set(alive), set(fresh), set(known))
    if not any(host.gives for host in fleet):
        return
    by_id: dict[int, Run] = {}
    outcome = plan(_asked(by_id), fleet, studies_active(), told=False)
    yield from _each((by_id[request.run], shares) for request, shares in outcome.placed)


def _each(given: Iterable[tuple[Run, list[Share]]]) -> Iterator[Attempt]:
    """The attempts of the runs that were given shares."""
    failed: Exception | None = None
    for run, shares in given:
        try:
            attempt = _place(run, shares)
        except (states.IllegalTransition, Worker.DoesNotExist) as error:
            log.info("run %s was not placed after all: %s", run.pk, error)
        except UNREACHABLE:
            raise
        except Exception as error:
            log.warning("run %s could not be placed: %s", run.pk, error)
            failed = failed or error
        else:
            yield attempt
    if failed is not None:
        raise failed


def _asked(by_id: dict[int, Run]) -> Iterator[Request]:
    """The queued runs as requests, read QUEUE_PART at a time; adds those read to `by_id`."""
    order, files = resting.awake(queue_order(), timezone.now()), Files.now()
    for at in range(0, len(order), QUEUE_PART):
        runs = queued_runs(order[at : at + QUEUE_PART])
        by_id |= {run.pk: run for run in runs}
        yield from requests(runs, Beginnings(runs, files))


@transaction.atomic
def _place(run: Run, shares: list[Share]) -> Attempt:
    workers = {share.host: Worker.objects.get(name=share.host) for share in shares}
    if out := [name for name, worker in workers.items() if not worker.in_service]:
        raise states.IllegalTransition(f"{listed_text(out)} was taken out of service")  # since the fleet was read
    nodes: list[dict[str, Any]] = [
        {
            "worker": share.host,
            "devices": list(share.devices),
            "first_rank": share.first_rank,
            "address": workers[share.host].host,
            "shares": workers[share.host].shared_checkpoints,
        }
        for share in shares
    ]
    return states.place(run, nodes, workers[shares[0].host])
