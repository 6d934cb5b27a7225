"""A worker's row, as its newest heartbeat says."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dashboard.control.wire import Entry
from dashboard.fleet.models import Worker
from dashboard.fleet.selectors import devices_of

MOST_WORDS = 500
"""Characters kept of a sentence that a worker wrote."""


def keep_beat(entry: Entry, body: Mapping[str, Any]) -> tuple[Worker, bool]:
    """The worker, and whether anything changed that decides which runs it gets: as a rule a heartbeat changes nothing.

    Raises KeyError where `body`, the entry's own made clean, lacks something.
    """
    told = {
        "host": body["host"],
        "boot": entry.boot,
        "version": body["version"],
        "devices": body["devices"],
        "load": body["load"],
        "memory_total": body["memory_total"],
        "memory_available": body["memory_available"],
        "disk_free": body.get("disk_free"),
        "shared_checkpoints": bool(body.get("shared_checkpoints")),
        "leaving": bool(body.get("leaving")),
        "token_files": body.get("token_files") or [],
        "refused": str(body.get("refused") or "")[:MOST_WORDS],
        "heartbeat_at": datetime.fromtimestamp(entry.at, UTC),
    }
    if body.get("calibration"):
        told["calibration"] = body["calibration"]
    worker = Worker.objects.filter(name=entry.worker).first() or Worker(name=entry.worker)
    known, before = worker.pk, _standing(worker)
    told |= _clash(worker, entry)
    for name, value in told.items():
        setattr(worker, name, value)
    worker.save(update_fields=told if known else None)
    return worker, not known or _standing(worker) != before


def _clash(worker: Worker, entry: Entry) -> dict[str, Any]:
    """What changes where another process reports than last time.

    A worker that was started again is another process, too, and the one before it is not heard any more. Where that one
    reports again, there are two workers of one name, on two hosts: those of one host share a lock.
    """
    if not worker.boot or worker.boot == entry.boot:
        return {}
    back = worker.other_boot == entry.boot and not worker.leaving
    clashed_at = {"clashed_at": datetime.fromtimestamp(entry.at, UTC)} if back else {}
    return {"other_boot": worker.boot, "other_host": worker.host, **clashed_at}


def _standing(worker: Worker) -> tuple[object, ...]:
    where = (worker.host, worker.boot, worker.leaving, worker.clashes)
    return (*where, devices_of(worker), worker.shared_checkpoints, worker.token_files)
