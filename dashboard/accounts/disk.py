"""What takes room on the disks of the yard, for the first page of the administration."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from django.conf import settings
from django.db import connection
from django.db.models import Count, Sum

from dashboard.fleet.models import Worker
from dashboard.runs.models import Checkpoint, Corpus
from dashboard.traces.models import TraceFile
from dashboard.yard.compact import sizes
from parallel_core.analysis.quantities import bytes_text, plural_text


@dataclass(frozen=True)
class Use:
    """One line: what it is, how many `bytes` it takes, and more about it."""

    what: str
    bytes: int
    more: str = ""


def uses() -> list[Use]:
    """The database, the uploaded files, and the checkpoints on each worker's disk."""
    disk = shutil.disk_usage(settings.HOME if settings.HOME.exists() else settings.BASE_DIR)
    free = f"{bytes_text(disk.free)} are left on the disk of the web process's data"
    texts = Corpus.objects.aggregate(size=Sum("size"), n=Count("pk"))
    traces = TraceFile.objects.aggregate(size=Sum("size"))
    return [
        _database(),
        Use("Uploaded texts", texts["size"] or 0, f"{plural_text(texts['n'], 'file')}; {free}"),
        Use("Uploaded traces that are not read yet", traces["size"] or 0),
        *_checkpoints(),
    ]


def _database() -> Use:
    if connection.vendor == "sqlite":
        kept, free = sizes(connection)
        return Use("Database", kept + free, f"{bytes_text(free)} of it are free and used next" if free else "")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_database_size(current_database())")
        return Use("Database", cursor.fetchone()[0], "on PostgreSQL's disk")


def _checkpoints() -> list[Use]:
    left = dict(Worker.objects.values_list("name", "disk_free"))
    rows = Checkpoint.objects.values("worker").annotate(size=Sum("bytes"), n=Count("pk")).order_by("-size", "worker")
    return [
        Use(f"Checkpoints on {row['worker']}", row["size"], _of_worker(row["n"], left.get(row["worker"])))
        for row in rows
    ]


def _of_worker(count: int, free: int | None) -> str:
    files = plural_text(count, "checkpoint")
    return files if free is None else f"{files}; {bytes_text(free)} are left there"
