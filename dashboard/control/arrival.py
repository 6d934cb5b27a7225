"""How much of an attempt's files has arrived, and the message that asks a worker for the rest."""

from __future__ import annotations

from dashboard.control import multi_host
from dashboard.control.store import FileKey
from dashboard.runs.models import Attempt, Cursor
from workers.contract import Channel, ControlEntry


def sizes_of(attempt: Attempt) -> dict[str, int]:
    """`<channel>:<rank>` -> final size in bytes of that file, as reported by its worker at the end."""
    return {str(name): int(size) for name, size in (attempt.report.get("sizes") or {}).items()}


def incomplete_files(attempt: Attempt) -> dict[FileKey, int]:
    """Files of an ended attempt that have not arrived whole -> the offset up to which they have."""
    have = {(row.channel, row.rank): row.offset for row in Cursor.objects.filter(attempt=attempt)}
    out = {}
    for name, size in sizes_of(attempt).items():
        channel, _, rank = name.partition(":")
        offset = have.get((channel, int(rank)), 0)
        if offset < size:
            out[attempt.pk, int(rank), channel] = offset
    return out


def is_complete(attempt: Attempt) -> bool:
    """Whether every worker has reported its end, and with it the sizes of its files, and all of them have arrived."""
    return not multi_host.silent(attempt.report, attempt.devices) and not incomplete_files(attempt)


def rewind(key: FileKey, offset: int) -> ControlEntry:
    """The control entry that asks a worker to send a file again from `offset` on."""
    attempt, rank, channel = key
    name: Channel = "events" if channel == "events" else "log"
    return {"kind": "rewind", "attempt": attempt, "rank": rank, "channel": name, "offset": offset}
