"""What a run on this host left: how its ranks ended, and their records, which stay on disk until they are asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core import early_end, launch
from parallel_core.analysis.step_waits import Shares, StepWaits, shares_in_turn
from parallel_core.exits import Exit, culprit
from parallel_core.layout import Layout
from parallel_core.no_progress import place
from parallel_core.observe.event_tail import EventTail
from parallel_core.observe.record_files import Frame, decode, last_of, read_stream, segments_by_rank
from parallel_core.observe.records import POINT, SPAN


class RankRecords:
    """The records of one rank of a run, without its `waits`.

    Each iteration reads the files anew, block by block, as the records of a long run may not fit in memory. It raises
    FileNotFoundError once the run's folder is gone.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank

    def __iter__(self) -> Iterator[Frame]:
        return (frame for frame in self._all() if frame.kind != "waits")

    def of(self, kind: str) -> Iterator[Frame]:
        """Yields those of `kind`, which may be `waits`."""
        return (frame for frame in self._all() if frame.kind == kind)

    def last(self, kind: str) -> dict[str, Any] | None:
        """Returns the header of the last record of `kind`; None without one."""
        found = last_of(self._folder, self._rank, kind)
        if found is None:  # it may be farther from the end
            found = next((frame.header for frame in deque(self.of(kind), maxlen=1)), None)
        return found

    def at(self, start: int) -> Frame:
        """Returns the record that begins at byte `start` of the stream."""
        piece = EventTail(self._folder, self._rank).read(start, final=True)
        return next(decode(piece.data, start))

    def _all(self) -> Iterator[Frame]:
        if not self._folder.is_dir():
            raise FileNotFoundError(f"the records of the run in {self._folder} are gone")
        return read_stream(self._folder, self._rank)


@dataclass
class Outcome:
    """The result of a run of `world` ranks. `exits`: in the order in which ranks ended; `submitted`: CLOCK_MONOTONIC
    seconds. All that it says of records is read from `folder`."""

    folder: Path
    submitted: float
    world: int
    exits: list[Exit] = field(default_factory=list)
    message: str = ""
    stood: str = ""
    """For a run that was ended because of missing progress: its schedule, with the position of every rank marked."""

    @classmethod
    def read(cls, folder: Path) -> Outcome:
        """What a run left in `folder`, such as one of the command `train`. How its ranks ended is not stored there:
        `exits` is empty. Raises FileNotFoundError where no records are."""
        ranks = segments_by_rank(folder)
        if not ranks:
            raise FileNotFoundError(f"{folder} holds no records of a run")
        return cls(folder, 0.0, max(ranks) + 1)

    @property
    def frames(self) -> dict[int, RankRecords]:
        """The records of each rank."""
        return {rank: RankRecords(self.folder, rank) for rank in range(self.world)}

    @property
    def ok(self) -> bool:
        """Whether every rank ended with exit code 0."""
        return not self.message and bool(self.exits) and all(one.code == 0 for one in self.exits)

    @property
    def early(self) -> str:
        """A sentence about an end at the time limit; '' where the run trained every step."""
        return early_end.of_rank(self.folder, 0)

    @property
    def diverged(self) -> bool:
        """Whether it was ended because its loss was not finite."""
        return not self.message and self._fault_of_culprit().get("cause") == "not_finite"

    def failure(self) -> str:
        """Returns a sentence about the rank that failed first and by itself; '' where none did."""
        if self.message:
            return self.message
        if (guilty := culprit(self.exits)) is not None:
            fault = self._fault_of_culprit()
            if self.diverged:
                return str(fault["message"])
            what = f"{fault['type']}: {fault['message']}" if fault else launch.describe_exit(guilty.code)
            return f"Rank {guilty.rank} failed{place(self.folder, guilty.rank)}: {what}"
        if any(one.code == launch.EXIT_STOPPED for one in self.exits):
            return f"Its ranks were stopped by SIGTERM, and saved first: --resume {self.folder} goes on."
        return ""

    def _fault_of_culprit(self) -> dict[str, Any]:
        """The header of the `fault` record of the rank that failed first and by itself; empty without one."""
        guilty = culprit(self.exits)
        return (self.last(guilty.rank, "fault") if guilty else None) or {}

    def traceback(self) -> str:
        """Returns the traceback of the rank that failed first and by itself, else of the first one that has any; ''
        where none was left."""
        guilty = culprit(self.exits)
        ranks = [guilty.rank] if guilty else []
        faults = (self.last(rank, "fault") for rank in (*ranks, *(one.rank for one in self.exits if one.code)))
        return next((str(fault["traceback"]) for fault in faults if fault), "")

    def last(self, rank: int, kind: str) -> dict[str, Any] | None:
        """Returns the header of the rank's last record of that kind; None without one."""
        return RankRecords(self.folder, rank).last(kind)

    def headers(self, rank: int, kind: str) -> list[dict[str, Any]]:
        """Returns the headers of all of the rank's records of that kind, in order."""
        return [frame.header for frame in RankRecords(self.folder, rank).of(kind)]

    def series(self, name: str, rank: int = 0) -> np.ndarray:
        """Returns the POINT rows of a metric series of a rank, in step order."""
        return points(RankRecords(self.folder, rank), name)

    def shares(self, layout: Layout) -> Shares:
        """Returns the shares of all steps, read from the records."""
        return shares_in_turn({rank: waits(own.of("waits")) for rank, own in self.frames.items()}, layout)

    def traced(self) -> dict[int, np.ndarray]:
        """Rank -> SPAN rows of its newest traced step; in a successful run all ranks have traced the same steps."""
        newest = {rank: deque(own.of("spans"), maxlen=1) for rank, own in self.frames.items()}
        return {rank: np.frombuffer(frame.blob, SPAN) for rank, found in newest.items() for frame in found}


def points(frames: Iterable[Frame], name: str) -> np.ndarray:
    """Returns the POINT rows of the series `name` in these frames, in order."""
    rows = bytearray()
    for frame in frames:
        if frame.kind == "points":
            for series, part in series_in(frame):
                if series == name:
                    rows += part
    return np.frombuffer(rows, POINT)


def series_in(frame: Frame) -> Iterator[tuple[str, bytes]]:
    """Yields the name of each series in a `points` record, and its POINT rows as bytes."""
    at = 0
    for name, count in frame.header["series"]:
        size = count * POINT.itemsize
        yield name, frame.blob[at : at + size]
        at += size


def waits(frames: Iterable[Frame]) -> Iterator[StepWaits]:
    """Yields what each `waits` record among these frames of one rank holds."""
    return (StepWaits.unpack(frame.blob, frame.header["steps"]) for frame in frames if frame.kind == "waits")
