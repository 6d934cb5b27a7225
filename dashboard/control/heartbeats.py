"""Heartbeats: the worker's row is updated from its newest one, and each is answered with what the worker has to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from dashboard import one_clock
from dashboard.control import multi_host
from dashboard.control.dispatch import ControlMessage
from dashboard.control.wire import Entry
from dashboard.fleet.models import Leftover, Worker
from dashboard.fleet.selectors import devices_of
from dashboard.ledger import selectors as ledger
from dashboard.runs.models import Attempt, Corpus, State
from parallel_core.known_fields import without_unknown
from parallel_core.profile import request
from workers.contract import MOST_TEXTS, ControlEntry, Unusable

MAX_CHARACTERS = 500
"""Length to which a sentence that a worker wrote is cut."""
MOST_DROPS = 50
"""How many runs a worker is asked at a time to delete the checkpoints of. Its control stream keeps only the newest
dispatch.KEEP_ENTRIES entries, and others are waiting there."""
UP_LIMIT = timedelta(seconds=10)
"""How long an attempt may be starting before a worker is asked whether its ranks are up: well below START_LIMIT_S, and
long enough that nobody is asked for a message that is on its way."""


@dataclass
class Heard:
    """A heartbeat, for the lease clocks; `at` = Unix seconds by the broker's clock."""

    worker: str
    attempts: set[int]
    at: float
    still: frozenset[int] = frozenset()
    """Those over several hosts of which no rank moves there."""


def keep_beat(entry: Entry, body: Mapping[str, Any]) -> tuple[Worker, bool]:
    """Stores a heartbeat; returns the worker, and whether anything changed that decides which runs it gets.

    Usually a heartbeat changes nothing of that kind. Raises KeyError if `body`, the entry's body after `clean`, lacks a
    field.
    """
    values = {"boot": entry.boot, "heartbeat_at": _arrival(entry), **_said(body)}
    worker = Worker.objects.filter(name=entry.worker).first() or Worker(name=entry.worker)
    known, before = worker.pk, _placement_facts(worker)
    values |= _clash(worker, entry)
    for name, value in values.items():
        setattr(worker, name, value)
    worker.save(update_fields=values if known else None)
    return worker, not known or _placement_facts(worker) != before


def _said(body: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the worker's row from what its heartbeat says; those that it does not mention stay as they are."""
    values = {
        "host": body["host"],
        "version": body["version"],
        "devices": body["devices"],
        "unusable": [_unusable(device) for device in body.get("unusable") or ()],
        "load": body["load"],
        "memory_total": body["memory_total"],
        "memory_available": body["memory_available"],
        "disk_free": body.get("disk_free"),
        "shared_checkpoints": bool(body.get("shared_checkpoints")),
        "across_hosts": bool(body.get("across_hosts", True)),
        "tasks": [str(task) for task in body.get("tasks") or ()],
        "fields": [str(name) for name in body.get("fields") or ()],
        "leaving": bool(body.get("leaving")),
        "refused": str(body.get("refused") or "")[:MAX_CHARACTERS],
    }
    if "token_files" in body:
        values["token_files"] = body["token_files"] or []
        values["more_token_files"] = int(body.get("more_token_files") or 0)
    if "weights" in body:
        values["weights"] = body["weights"] or []
    if "image_files" in body:
        values["image_files"] = body["image_files"] or []
        values["more_image_files"] = int(body.get("more_image_files") or 0)
    if body.get("calibration"):
        values["calibration"] = body["calibration"]
    return values


def _arrival(entry: Entry) -> datetime:
    """When it arrived at the broker, by the clock of those who judge it: the broker's may differ."""
    return one_clock.now() - timedelta(seconds=entry.age)


def _unusable(device: Mapping[str, Any]) -> Unusable:
    return Unusable(
        index=int(device["index"]),
        kind="cuda" if device["kind"] == "cuda" else "cpu",
        name=str(device["name"])[:MAX_CHARACTERS],
        why=str(device["why"])[:MAX_CHARACTERS],
    )


def _clash(worker: Worker, entry: Entry) -> dict[str, Any]:
    """Returns the fields of the worker to change if this entry comes from another process than the last one; else {}.

    A restarted worker is a new process, too, but its predecessor sends nothing any more. If the predecessor reports
    again, there are two workers of one name, on two hosts (two on one host are excluded by a lock file).
    """
    if not worker.boot or worker.boot == entry.boot:
        return {}
    back = worker.other_boot == entry.boot and not worker.leaving
    clashed_at = {"clashed_at": _arrival(entry)} if back else {}
    return {"other_boot": worker.boot, "other_host": worker.host, **clashed_at}


def _placement_facts(worker: Worker) -> tuple[object, ...]:
    """What about a worker decides which runs can be placed there."""
    where = (worker.host, worker.boot, worker.leaving, worker.clashes)
    files = (worker.token_files, worker.more_token_files, worker.image_files, worker.more_image_files, worker.weights)
    able = (worker.shared_checkpoints, worker.across_hosts, *files, worker.tasks, worker.fields)
    return (*where, devices_of(worker), *able)


def answers(worker: Worker, body: Mapping[str, Any]) -> list[ControlMessage]:
    """The messages that answer a heartbeat, apart from those about its attempts: what the worker has to delete, and the
    profiles that it is, or is no longer, asked for."""
    # In any order: those that it cannot delete now would else keep the others from their turn.
    gone = Leftover.objects.filter(worker=worker.name).order_by("?")[:MOST_DROPS]
    messages: list[ControlMessage] = [(worker.name, _drop(leftover)) for leftover in gone]
    messages += _drop_texts(worker.name, list(map(str, body.get("texts") or ()))[:MOST_TEXTS])
    asked = {one.pk: one.spec for one in ledger.asked(worker.name)}
    for pk, spec in asked.items():
        known = without_unknown(request.for_worker(spec), worker.fields)
        messages.append((worker.name, {"kind": "profile", "attempt": pk, "spec": known}))
    unasked = (int(pk) for pk in body.get("profiles") or () if int(pk) not in asked)
    return messages + [(worker.name, {"kind": "cancel_profile", "attempt": pk}) for pk in unasked]


def _drop(leftover: Leftover) -> ControlEntry:
    """Orders the worker to delete the checkpoints of the run, and of no other that has the same number."""
    entry: ControlEntry = {"kind": "drop", "attempt": leftover.run}
    if leftover.uid:
        entry["identity"] = {"uid": leftover.uid, "attempts": leftover.attempts}
    return entry


def _drop_texts(worker: str, cached: list[str]) -> list[ControlMessage]:
    """Orders the worker to delete its copies of texts that are not, or no longer, uploaded."""
    kept = set(Corpus.objects.filter(sha256__in=cached).values_list("sha256", flat=True)) if cached else set()
    gone = [one for one in cached if one not in kept]
    return [(worker, {"kind": "drop_text", "attempt": 0, "sha256": one}) for one in gone]


def unsaid(attempt: Attempt, worker: str) -> bool:
    """Whether the worker's ranks should have processes by now but it has not said so.

    A broker that lost its data lost that message with it; unless the worker repeats it, an attempt that trains would be
    ended as one that never started.
    """
    late = attempt.sent_at is not None and timezone.now() - attempt.sent_at > UP_LIMIT
    return late and attempt.run.state == State.STARTING and worker in multi_host.not_up(attempt.report, attempt.devices)
