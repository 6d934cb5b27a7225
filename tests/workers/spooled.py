"""What the tests of the spool share: the records of a rank that traces every step, in segments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from parallel_core.observe.record_files import FileSink, Frame, decode, segments
from parallel_core.observe.records import POINT, SPAN

SEGMENT = 16 << 10
SPANS = 40


def record(folder: Path, rank: int = 0, steps: int = 300) -> None:
    """Traces every step, and reports the points of ten at a time; each time into segments of the same sizes."""
    sink = FileSink(folder, rank, SEGMENT)
    for step in range(steps):
        sink.emit("spans", np.zeros(SPANS, SPAN).tobytes(), step=step, count=SPANS, total=SPANS + rank, t=1.5)
        if step % 10 == 9:
            sink.emit("points", np.zeros(10, POINT).tobytes(), series=[["loss", 10]], t=1.5)
    sink.emit("exit", code=0, t=1.5)
    sink.close()


def frames(folder: Path, rank: int = 0) -> Iterator[Frame]:
    for base, path in segments(folder, rank):
        yield from decode(path.read_bytes(), base)


def others(folder: Path, rank: int = 0) -> list[tuple[object, bytes, int]]:
    return [(f.header, f.blob, f.end) for f in frames(folder, rank) if f.kind not in ("spans", "omitted")]
