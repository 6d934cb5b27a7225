"""What the controller sends to workers. All of it repeats what the database says, so loss and duplicates do no harm."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import redis
from celery import Celery
from django.conf import settings

from dashboard.fleet.models import Worker
from dashboard.runs.models import Attempt, Run
from dashboard.runs.reads import read_by
from parallel_core.known_fields import without_unknown
from workers.contract import START_TASK, ControlEntry, RunIdentity, StartMessage, control_stream, queue_of

KEEP_ENTRIES = 1_000
ASK_AGAIN_S = 1.0
ControlMessage = tuple[str, ControlEntry]
"""(worker, entry)."""


def send_messages(client: redis.Redis, messages: Iterable[ControlMessage]) -> None:
    """Appends the messages to the workers' control streams, equal ones only once. Raises redis.RedisError."""
    unique = {(worker, json.dumps(entry, sort_keys=True)): None for worker, entry in messages}
    if not unique:
        return
    with client.pipeline(transaction=False) as pipe:
        for worker, body in unique:
            pipe.xadd(control_stream(worker), {"body": body}, maxlen=KEEP_ENTRIES, approximate=True)
        pipe.execute()


class Asked:
    """The rewinds that were sent a moment ago: every batch after a gap would ask for the same bytes again."""

    def __init__(self) -> None:
        self._at: dict[tuple[object, ...], float] = {}

    def without_repeats(self, messages: Iterable[ControlMessage]) -> list[ControlMessage]:
        """The messages but for rewinds equal to one of the last ASK_AGAIN_S seconds."""
        now = time.monotonic()
        self._at = {key: at for key, at in self._at.items() if now - at < ASK_AGAIN_S}
        out = []
        for worker, entry in messages:
            key = (worker, entry["attempt"], entry.get("rank"), entry.get("channel"), entry.get("offset"))
            if entry["kind"] == "rewind":
                if key in self._at:
                    continue
                self._at[key] = now
            out.append((worker, entry))
        return out


@lru_cache(maxsize=2)
def _sender(broker: str) -> Celery:
    """A Celery app that only sends: no tasks, no results."""
    app = Celery("trainyard", broker=broker, set_as_current=False)
    app.conf.update(
        task_serializer="json",
        task_ignore_result=True,
        broker_connection_retry=False,
        broker_transport_options={"socket_timeout": 2.0, "socket_connect_timeout": 2.0},
    )
    return app


def start_message(attempt: Attempt) -> StartMessage:
    """The argument of the Celery task that starts an attempt; the same for all its nodes."""
    run = attempt.run
    message: StartMessage = {
        "run": run.pk,
        "attempt": attempt.pk,
        "number": attempt.number,
        "spec": _known_spec(attempt),
        "nodes": attempt.devices,
        "resume": run.resumes_from,
        "task": run.task or None,
    }
    if read := read_by(run, before=attempt.number):
        message["read"] = read
    if run.uid:
        message["identity"] = _identity(run)
    if run.resume_run is not None and run.resume_run.uid:
        message["resume_identity"] = _identity(run.resume_run)
    return message


def _identity(run: Run) -> RunIdentity:
    return {"uid": run.uid, "attempts": list(run.attempts.order_by("pk").values_list("pk", flat=True))}


def _known_spec(attempt: Attempt) -> dict[str, Any]:
    """The run's spec, without fields at their default that one of its workers does not know and would refuse."""
    names = [node["worker"] for node in attempt.devices]
    announced = [set(fields) for fields in Worker.objects.filter(name__in=names).values_list("fields", flat=True)]
    return without_unknown(attempt.run.spec, set.intersection(*announced) if announced else ())


def send_start(attempt: Attempt) -> None:
    """Sends the start message to every node. Raises kombu.exceptions.OperationalError if the broker is unreachable."""
    message = start_message(attempt)
    for node in attempt.devices:
        _sender(settings.CELERY_BROKER_URL).send_task(
            START_TASK, args=[message], queue=queue_of(node["worker"]), ignore_result=True, retry=False
        )
