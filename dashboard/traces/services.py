"""What users do with traces: upload and delete. Each checks permissions and has its own transaction."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from django.core.exceptions import PermissionDenied
from django.core.files.base import File
from django.core.files.storage import default_storage
from django.db import InterfaceError, OperationalError, transaction
from django.utils import timezone

from dashboard import deletions
from dashboard.accounts.roles import may_change, may_submit
from dashboard.file_names import shown_name
from dashboard.runs.services import Also, Invalid, nothing_else
from dashboard.traces.models import Trace, TraceFile
from parallel_core import limits
from parallel_core.analysis.quantities import bytes_text

MAX_FILES = 64
MAX_TRACES = 500
FOLDER = "traces"
LEFT_S = 24 * 3600
"""Age in seconds after which an upload without a row is deleted: the process that stored it must have been killed."""
MAX_SIZE = bytes_text(limits.MAX_TRACE_BYTES)


def upload(*, owner: Any, name: str, files: Sequence[File[bytes]], also: Also = nothing_else) -> Trace:
    """Stores the files and queues them for the analyst; `also` gets the trace.

    Raises PermissionDenied for viewers, Invalid({"files" or "name": why}).
    """
    if not may_submit(owner):
        raise PermissionDenied("Your account may look at traces but not upload them.")
    errors = _errors(name.strip(), files)
    if errors:
        raise Invalid(errors)
    title = name.strip() or _plain(files[0].name)[: limits.MAX_NAME]
    folder = secrets.token_hex(8)
    sweep()
    stored = [f"{FOLDER}/{folder}/{number}" for number in range(len(files))]
    try:
        # Before the transaction: copying may take long, and SQLite has one writer at a time.
        for place, file in zip(stored, files, strict=True):
            default_storage.save(place, file)
        with transaction.atomic():
            trace = Trace.objects.create(name=title, owner=owner, size=sum(file.size or 0 for file in files))
            TraceFile.objects.bulk_create(
                TraceFile(trace=trace, name=_plain(file.name), size=file.size or 0, stored=place)
                for place, file in zip(stored, files, strict=True)
            )
            also(trace)
    except BaseException as error:
        for place in () if _may_be_kept(stored[0], error) else stored:
            default_storage.delete(place)
        raise
    return trace


def _may_be_kept(place: str, error: BaseException) -> bool:
    """Whether the trace with this file may have been stored though `error` was raised: where only the answer of the
    database was lost. `sweep` deletes the files if it was not."""
    if not isinstance(error, OperationalError | InterfaceError):
        return False
    try:
        return TraceFile.objects.filter(stored=place).exists()
    except (OperationalError, InterfaceError):
        return True


def _errors(name: str, files: Sequence[File[bytes]]) -> dict[str, str]:
    if len(name) > limits.MAX_NAME or "\x00" in name:
        return {"name": f"A name has at most {limits.MAX_NAME} plain characters."}
    if not files:
        return {"files": "Choose at least one file."}
    if len(files) > MAX_FILES:
        return {"files": f"At most {MAX_FILES} files, one a rank; these are {len(files)}."}
    size = sum(file.size or 0 for file in files)
    if size > limits.MAX_TRACE_BYTES:
        over = bytes_text(size - limits.MAX_TRACE_BYTES)
        return {"files": f"At most {MAX_SIZE} in all; these files have {over} more. gzip makes them small."}
    if Trace.objects.count() >= MAX_TRACES:
        return {"files": f"This yard keeps {MAX_TRACES} traces; delete one that nobody needs."}
    return {}


def delete(*, trace: Trace, user: Any) -> None:
    """Deletes a trace with everything that belongs to it. Raises PermissionDenied."""
    if not may_change(user, trace):
        raise PermissionDenied("Only the trace's owner and admins may delete it.")
    with transaction.atomic():
        deletions.note(user, trace)
        places = list(trace.files.values_list("stored", flat=True))
        trace.delete()
        # Only then: a trace that stays because the commit fails has its files. What is left of them is swept later.
        transaction.on_commit(lambda: _delete(places))


def _delete(places: Iterable[str]) -> None:
    with contextlib.suppress(OSError):
        for place in places:
            default_storage.delete(place)


def drop_files(trace: Trace) -> None:
    """Deletes the uploaded files, but not what was read from them."""
    for file in trace.files.all():
        default_storage.delete(file.stored)
        file.delete()


def sweep() -> None:
    """Deletes folders of uploads that no row names and that are older than LEFT_S, also empty ones."""
    with contextlib.suppress(OSError):  # nothing has been uploaded yet; or this process may not delete there
        named = {stored.split("/")[1] for stored in TraceFile.objects.values_list("stored", flat=True)}
        for folder in set(default_storage.listdir(FOLDER)[0]) - named:
            _sweep(f"{FOLDER}/{folder}")


def _sweep(folder: str) -> None:
    places = [f"{folder}/{name}" for name in default_storage.listdir(folder)[1]]
    newest = max(map(default_storage.get_modified_time, places or [folder]))
    if newest < timezone.now() - timedelta(seconds=LEFT_S):
        for place in [*places, folder]:
            default_storage.delete(place)


def _plain(name: str | None) -> str:
    return shown_name(name, 200) or "trace"
