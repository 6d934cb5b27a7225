"""Bounds what the records of all attempts take on this host's disk, also while nobody takes them: the oldest spans go.

A rank begins a new file from time to time (a *segment*: observe.record_files). Above the limit, the oldest
segments that no rank writes any more are rewritten one by one without their records of spans and of `waits`: `omitted`
records in their place say which steps of the rank the spans were of, and how many each had; in place of `waits` alone
they have no rows. All other records stay. Segments that were published go first, and once they have no spans any more
they do not count: nothing else would make room for them. Without a dashboard nothing is published.

That holds at every moment, whoever is killed: a segment is replaced at once by the whole shorter one. Offsets in the
stream do not change, and what was dropped is part of the stream, so it reaches the controller once, as all records do:
where spans had been published before they were dropped, its cursor is behind them, and it skips their count.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from parallel_core.analysis.quantities import bytes_text
from parallel_core.checkpoint.folder import flush
from parallel_core.observe.record_files import Frame, encode, segments_by_rank, skim
from parallel_core.observe.records import OMITTED

log = logging.getLogger(__name__)

LOOK_S = 2.0
AT_ONCE_S = 0.5
"""Seconds of dropping between two passes of the relay, which publishes nothing meanwhile; of a segment that takes
longer, all of it."""
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
class Recorded:
    """What the ranks of an attempt have recorded on this host."""

    folder: Path
    published: Mapping[int, int]
    """Rank -> offset in the stream of its events up to which they were published."""
    over: bool = False  # no process writes them any more
    sent: bool = False  # all of them were published


class Segment(NamedTuple):
    """A file of a rank's events; `base` = offset of its first byte in their stream."""

    path: str
    base: int
    size: int
    written: int = 0  # when it was last written, ns
    closed: bool = True  # the rank does not write it any more
    published: bool = False
    bare: bool = False  # without spans

    @property
    def counted(self) -> int:
        """Its bytes, as far as the limit is about them."""
        return 0 if self.bare and self.published else self.size


class Spool:
    """Used by one thread."""

    def __init__(self, limit: int) -> None:
        """`limit` in bytes. Above it remain only records other than spans, and the segment that each rank writes."""
        self._limit = limit
        self._bare: dict[str, int] = {}
        """Segments without spans, and their bytes: there is nothing to drop in them, and they never change."""
        self._failed: set[str] = set()
        """Segments that could not be rewritten: they are tried again after all others."""
        self._due = float("-inf")
        self._full = False

    def bound(self, attempts: Iterable[Recorded], *, last: bool = False) -> bool:
        """Drops spans of these if all their records take more than the limit. Looks every LOOK_S, and then drops for
        about AT_ONCE_S, the `last` time at once and until none are left; returns whether there is more to drop. Raises
        OSError if a segment cannot be rewritten, after the others: what has few spans may need more room than a full
        disk has, where most need next to none."""
        if time.monotonic() < self._due and not last:
            return False
        self._due = time.monotonic() + LOOK_S
        found = [segment for one in attempts for segment in self._segments(one)]
        self._bare = {segment.path: segment.size for segment in found if segment.bare}
        held = sum(segment.counted for segment in found)
        more = [segment for segment in found if segment.closed and not segment.bare] if held > self._limit else []
        rest = deque(sorted(more, key=lambda one: (one.path in self._failed, not one.published, one.written)))
        until, failed = time.monotonic() + AT_ONCE_S, []
        while rest and held > self._limit:
            segment = rest.popleft()
            try:
                held -= self._drop(segment)
            except OSError as error:
                self._failed.add(segment.path)
                failed.append(error)
            if time.monotonic() >= until and not last:
                break
        again = held > self._limit and bool(rest)
        if again:
            self._due = float("-inf")
        self._warn(held, again)
        if failed:
            raise failed[0]
        return again

    def _segments(self, one: Recorded) -> Iterator[Segment]:
        for rank, files in segments_by_rank(one.folder).items():
            published = one.published.get(rank)
            if published is None:
                continue
            ends = [base for base, _ in files[1:]]
            for (base, entry), end in zip(files, [*ends, None], strict=True):
                path, closed = entry.path, one.over or end is not None
                sent = one.sent if end is None else end <= published
                if (bare := self._bare.get(path)) is not None:
                    yield Segment(path, base, bare, published=sent, bare=True)
                else:
                    status = entry.stat()
                    yield Segment(path, base, status.st_size, status.st_mtime_ns, closed, sent)

    def _drop(self, segment: Segment) -> int:
        """Drops its spans; returns how many of its bytes do not count any more."""
        freed = drop_spans(Path(segment.path), segment.base)
        self._bare[segment.path] = segment.size - freed
        return segment.size if segment.published else freed

    def _warn(self, held: int, again: bool) -> None:
        """Logs once that dropping spans does not help any more."""
        full = held > self._limit and not again
        if full and not self._full:
            log.warning("records take %s on disk: more than allowed, but no more spans can go", bytes_text(held))
        self._full = full


def drop_spans(path: Path, base: int) -> int:
    """Replaces a segment by one without its span records; returns the bytes that this frees, 0 if it has none."""
    part = path.with_name(path.name + ".part")
    with path.open("rb") as source:
        if not _has_spans(source, base):
            return 0
        try:
            with part.open("wb") as target:
                steps = without_spans(source, target, base)
            flush(part)  # before the old one goes: also a power failure leaves one of them whole
            freed = path.stat().st_size - part.stat().st_size
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
    log.info("%s: dropped %d records of steps, %s", path, steps, bytes_text(freed))
    return freed


def _has_spans(source: IO[bytes], base: int) -> bool:
    with contextlib.suppress(ValueError):
        return any(map(_droppable, skim(source, base)))
    return False


def without_spans(source: IO[bytes], target: IO[bytes], base: int) -> int:
    """Copies the segment `source`, which begins at byte `base` of its stream, with `omitted` records in place of its
    records of spans and of `waits`; returns how many these were. Of them it reads only the headers."""
    dropped: list[Frame] = []
    at = steps = 0

    def close() -> None:
        if dropped:
            target.write(_omitted(dropped))
            dropped.clear()

    try:
        for frame in skim(source, base):
            if _droppable(frame):
                steps += 1
                dropped.append(frame)
            else:
                close()
                source.seek(at)
                target.write(source.read(frame.size))
            at += frame.size
            if len(dropped) == MOST_ROWS:
                close()
    except ValueError as error:
        log.warning("the segment that begins at byte %d: %s; what follows stays as it is", base, error)
    close()
    source.seek(at)
    shutil.copyfileobj(source, target)
    return steps


def _droppable(frame: Frame) -> bool:
    """Whether it has the spans of a step, for which an OMITTED row can stand, or when ranks met, which needs none."""
    row = frame.header.get("step"), frame.header.get("total")
    counted = all(type(number) is int and 0 <= number < 1 << 31 for number in row)
    return frame.kind == "waits" or (frame.kind == "spans" and counted)


def _omitted(dropped: list[Frame]) -> bytes:
    """The record in place of these consecutive span records."""
    traced = [frame.header for frame in dropped if frame.kind == "spans"]
    rows = np.array([(header["step"], header["total"]) for header in traced], OMITTED)
    last = dropped[-1]
    header = {"kind": "omitted", "rank": last.header.get("rank"), "t": last.header.get("t"), "end": last.end}
    return encode(header, rows.tobytes())
