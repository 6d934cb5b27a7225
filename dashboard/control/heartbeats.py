"""Updates a worker's row from its newest heartbeat."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dashboard.control.wire import Entry
from dashboard.fleet.models import Worker
from dashboard.fleet.selectors import devices_of

MAX_CHARACTERS = 500
"""Length to which a sentence that a worker wrote is cut."""


def keep_beat(entry: Entry, body: Mapping[str, Any]) -> tuple[Worker, bool]:
    """Stores a heartbeat; returns the worker, and whether anything changed that decides which runs it gets.

    Usually a heartbeat changes nothing of that kind. Raises KeyError if `body`, the entry's body after `clean`, lacks a
    field.
    """
    values = {
        "host": body["host"],
        "boot": entry.boot,
        "version": body["version"],
        "devices": body["devices"],
        "load": body["load"],
        "memory_total": body["memory_total"],
        "memory_available": body["memory_available"],
        "disk_free": body.get("disk_free"),
        "shared_checkpoints": bool(body.get("shared_checkpoints")),
        "across_hosts": bool(body.get("across_hosts", True)),
        "tasks": [str(task) for task in body.get("tasks") or ()],
        "leaving": bool(body.get("leaving")),
        "refused": str(body.get("refused") or "")[:MAX_CHARACTERS],
        "heartbeat_at": datetime.fromtimestamp(entry.at, UTC),
    }
    if "token_files" in body:
        values["token_files"] = body["token_files"] or []
    if body.get("calibration"):
        values["calibration"] = body["calibration"]
    worker = Worker.objects.filter(name=entry.worker).first() or Worker(name=entry.worker)
    known, before = worker.pk, _placement_facts(worker)
    values |= _clash(worker, entry)
    for name, value in values.items():
        setattr(worker, name, value)
    worker.save(update_fields=values if known else None)
    return worker, not known or _placement_facts(worker) != before


def _clash(worker: Worker, entry: Entry) -> dict[str, Any]:
    """Returns the fields of the worker to change if this entry comes from another process than the last one; else {}.

    A restarted worker is a new process, too, but its predecessor sends nothing any more. If the predecessor reports
    again, there are two workers of one name, on two hosts (two on one host are excluded by a lock file).
    """
    if not worker.boot or worker.boot == entry.boot:
        return {}
    back = worker.other_boot == entry.boot and not worker.leaving
    clashed_at = {"clashed_at": datetime.fromtimestamp(entry.at, UTC)} if back else {}
    return {"other_boot": worker.boot, "other_host": worker.host, **clashed_at}


def _placement_facts(worker: Worker) -> tuple[object, ...]:
    """What about a worker decides which runs can be placed there."""
    where = (worker.host, worker.boot, worker.leaving, worker.clashes)
    able = (worker.shared_checkpoints, worker.across_hosts, worker.token_files, worker.tasks)
    return (*where, devices_of(worker), *able)
