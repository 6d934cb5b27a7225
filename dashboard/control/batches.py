"""A batch of an attempt's file, as its entry of the stream describes it, and its records as batches of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple, Self

from dashboard.control.store import FileKey
from dashboard.control.wire import Entry
from parallel_core.observe.record_files import decode


class Batch(NamedTuple):
    """Bytes [start, end) of the file `channel` of a rank."""

    attempt: int
    rank: int
    channel: str
    start: int
    end: int

    @classmethod
    def of(cls, entry: Entry) -> Self:
        """Raises KeyError, TypeError or ValueError if the entry does not follow the contract."""
        body = entry.body
        rank, channel, start, end = int(body["rank"]), str(body["channel"]), int(body["start"]), int(body["end"])
        size = len(entry.data) + int(body.get("omitted", 0))
        if channel not in ("events", "log") or end - start != size or start < 0:
            raise ValueError(f"batch of {len(entry.data)} bytes says {channel} {start} .. {end}")
        return cls(int(body["attempt"]), rank, channel, start, end)

    @property
    def key(self) -> FileKey:
        return self.attempt, self.rank, self.channel


def records_of(entry: Entry) -> Iterator[Entry]:
    """The records of a batch of events, each as a batch of its own; a log, and what is no whole record at the end, in
    one piece. Raises as `Batch.of`."""
    batch = Batch.of(entry)
    at, begin = 0, batch.start
    if batch.channel == "events":
        with suppress(ValueError):
            for frame in decode(entry.data, begin):
                yield _part(entry, begin, frame.end, entry.data[at : at + frame.size])
                at, begin = at + frame.size, frame.end
    if at < len(entry.data):
        yield _part(entry, begin, batch.end, entry.data[at:])


def _part(entry: Entry, start: int, end: int, data: bytes) -> Entry:
    body = {**entry.body, "start": start, "end": end, "omitted": end - start - len(data)}
    return replace(entry, body=body, data=data)
