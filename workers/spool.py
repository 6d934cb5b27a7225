"""Bounds what the records of all attempts take on this host's disk, also while nobody takes them: the oldest spans go.

A rank begins a new file from time to time (a *segment*: parallel_core.observe.records). Above the limit, the oldest
segments that no rank writes any more are rewritten one by one without their span records: `omitted` records in their
place say which steps of the rank they were of, and how many spans each had. All other records stay.

That holds at every moment, whoever is killed: a segment is replaced at once by the whole shorter one. Offsets in the
stream do not change, and what was dropped is part of the stream, so it reaches the controller once, as all records do:
where spans had been published before they were dropped, its cursor is behind them, and it skips their count.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parallel_core.analysis.quantities import bytes_text
from parallel_core.checkpoint.folder import flush
from parallel_core.observe.records import OMITTED, Frame, decode, encode, segments

log = logging.getLogger(__name__)

LOOK_S = 2.0
AT_ONCE = 4
"""The most segments rewritten between two passes of the relay, which publishes nothing meanwhile."""
SEGMENT_BYTES = (64 << 10, 16 << 20)
"""The least and the most bytes of a segment."""
PARTS = 8
"""If the limit is small, segments are such that each rank has this many."""
MOST_ROWS = 256
"""Steps that one `omitted` record may stand for: each becomes a row of the database."""


def segment_bytes(limit: int, ranks: int) -> int:
    """Bytes of a segment of each of this host's `ranks`, for a limit of `limit` bytes."""
    least, most = SEGMENT_BYTES
    return max(least, min(most, limit // (PARTS * ranks)))


@dataclass(frozen=True)
class Segment:
    """A file of a rank's events; `base` = offset of its first byte in their stream."""

    path: Path
    base: int
    size: int
    written: int  # when it was last written, ns
    closed: bool  # the rank writes a later one


class Spool:
    """Used by one thread."""

    def __init__(self, limit: int) -> None:
        """`limit` in bytes. Above it remain only records other than spans, and each rank's newest segment."""
        self._limit = limit
        self._bare: set[Path] = set()
        """Segments without spans: there is nothing to drop in them."""
        self._due = float("-inf")
        self._full = False

    def bound(self, files: Iterable[tuple[Path, int]]) -> None:
        """Drops spans of these (folder of an attempt, rank) if all their records take more than the limit. Looks every
        LOOK_S. Raises OSError if a segment cannot be rewritten."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + LOOK_S
        found = [segment for folder, rank in files for segment in _segments(folder, rank)]
        self._bare &= {segment.path for segment in found}
        held = sum(segment.size for segment in found)
        more = [segment for segment in found if segment.closed and segment.path not in self._bare]
        held -= self._drop(sorted(more, key=lambda segment: segment.written)[:AT_ONCE], held - self._limit)
        if held > self._limit and len(more) > AT_ONCE:
            self._due = float("-inf")
        self._warn(held, rest=len(more) - AT_ONCE)

    def _drop(self, some: Iterable[Segment], excess: int) -> int:
        """Drops the spans of `some` until `excess` bytes are free; returns how many are."""
        freed = 0
        for segment in some:
            if freed >= excess:
                break
            freed += drop_spans(segment.path, segment.base)
            self._bare.add(segment.path)
        return freed

    def _warn(self, held: int, rest: int) -> None:
        """Logs once that dropping spans does not help any more."""
        full = held > self._limit and rest <= 0
        if full and not self._full:
            log.warning("records take %s on disk: more than allowed, but no more spans can go", bytes_text(held))
        self._full = full


def _segments(folder: Path, rank: int) -> Iterator[Segment]:
    found = segments(folder, rank)
    for base, path in found:
        status = path.stat()
        yield Segment(path, base, status.st_size, status.st_mtime_ns, closed=base < found[-1][0])


def drop_spans(path: Path, base: int) -> int:
    """Replaces a segment by one without its span records; returns the bytes that this frees, 0 if it has none."""
    data = path.read_bytes()
    shorter, steps = without_spans(data, base)
    if not steps:
        return 0
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(shorter)
        flush(part)  # before the old one goes: also a power failure leaves one of them whole
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    log.info("%s: dropped %d records of steps, %s", path, steps, bytes_text(len(data) - len(shorter)))
    return len(data) - len(shorter)


def without_spans(data: bytes, base: int) -> tuple[bytes, int]:
    """The segment `data`, which begins at byte `base` of its stream, with `omitted` records in place of its span
    records and those of `waits`; and how many these were."""
    parts: list[bytes] = []
    dropped: list[Frame] = []
    at = steps = 0

    def close() -> None:
        if dropped:
            parts.append(_omitted(dropped))
            dropped.clear()

    try:
        for frame in decode(data, base):
            if frame.kind == "waits" or (frame.kind == "spans" and "total" in frame.header):
                steps += 1
                dropped.append(frame)
            else:
                close()
                parts.append(data[at : at + frame.size])
            at += frame.size
            if len(dropped) == MOST_ROWS:
                close()
    except ValueError as error:
        log.warning("the segment that begins at byte %d: %s; what follows stays as it is", base, error)
    close()
    return b"".join([*parts, data[at:]]), steps


def _omitted(dropped: list[Frame]) -> bytes:
    """The record in place of these consecutive span records."""
    traced = [frame.header for frame in dropped if frame.kind == "spans"]
    rows = np.array([(header["step"], header["total"]) for header in traced], OMITTED)
    last = dropped[-1]
    header = {"kind": "omitted", "rank": last.header["rank"], "t": last.header["t"], "end": last.end}
    return encode(header, rows.tobytes())
