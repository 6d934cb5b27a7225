"""`python -m parallel_core.traces OUT NAME FILE NAME FILE...`: reads traces in a separate process, whose memory can be
limited.

Prints a line of JSON now and then, {"read": bytes, "of": bytes}. Writes to OUT `report.json` and, for each rank and
step, `<rank>-<step>.npy` with its SPAN rows and `<rank>-<step>.json` with the names of operators and kernels, their
numbers, and the process groups of its collectives. Exit code EXIT_MEMORY: out of memory.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Iterable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.analysis.quantities import plural_text
from parallel_core.observe.records import LANES
from parallel_core.processes import EXIT_MEMORY, die_with_told_parent
from parallel_core.traces import kineto, trainyard_export
from parallel_core.traces.collect import KEPT, Collected
from parallel_core.traces.exported_job import join_own
from parallel_core.traces.job_trace import JobTrace, join, ranks_of, world_of
from parallel_core.traces.stream import EventStream, Limits

EVERY_S = 0.5
USUAL = Limits()


class Progress:
    """Prints to stdout how many bytes of all files have been read."""

    def __init__(self, total: int) -> None:
        self._total, self._before, self._told = total, 0, 0.0

    def at(self, read: int) -> None:
        """Reports `read` bytes of the current file, at most once every EVERY_S."""
        if time.monotonic() - self._told > EVERY_S:
            self._told = time.monotonic()
            sys.stdout.write(json.dumps({"read": self._before + read, "of": self._total}) + "\n")
            sys.stdout.flush()

    def past(self, size: int) -> None:
        """Adds a file of `size` bytes that has been read completely."""
        self._before += size


def read_all(files: list[tuple[str, Path]], limits: Limits = USUAL) -> JobTrace:
    """Reads the traces in `files`, (display name, path) pairs, as one job."""
    progress = Progress(sum(path.stat().st_size for _, path in files))
    theirs: list[tuple[str, dict[str, Any], kineto.RankTrace]] = []
    ours: list[tuple[str, trainyard_export.OwnStep]] = []
    for name, path in files:
        found, header = _one(path, limits, progress)
        progress.past(path.stat().st_size)
        if isinstance(found, trainyard_export.OwnStep):
            ours.append((name, found))
        else:
            theirs.append((name, header, found))
    if any(step.spans for _, step in ours):
        return join_own(ours, [name for name, _, _ in theirs])
    ranks = ranks_of([(name, header) for name, header, _ in theirs])
    out = join([(name, rank, trace) for (name, _, trace), rank in zip(theirs, ranks, strict=True)])
    out.notes += [f"{name}: {note}" for name, step in ours for note in step.notes or ["There are no spans in it."]]
    return out


def _one(
    path: Path, limits: Limits, progress: Progress
) -> tuple[kineto.RankTrace | trainyard_export.OwnStep, dict[str, Any]]:
    """Returns the contents of a file, and the header values outside of its event list.

    The values before the events tell whether Trainyard exported the file. Where they come after the events instead,
    the file is read a second time.
    """
    header: dict[str, Any] = {}
    for _ in range(2):
        with path.open("rb") as file:
            stream = EventStream(file, limits, progress.at, header, _keeps)
            events = iter(stream)
            first = list(islice(events, 1))
            if trainyard_export.is_own(header):
                step = trainyard_export.read(chain(first, events), header)
                step.notes = stream.notes + step.notes
                return step, header
            trace = _read_kineto(stream, chain(first, events))
            if not trainyard_export.is_own(header):
                break
    return trace, header


def _keeps(event: dict[str, Any]) -> bool:
    kind = event.get("cat")
    return isinstance(kind, str) and (kind in KEPT or kind in LANES) and event.get("ph") == "X"


def _read_kineto(stream: EventStream, events: Iterable[dict[str, Any]]) -> kineto.RankTrace:
    collected = Collected(events)
    trace = kineto.read(collected)
    trace.partial |= bool(stream.notes)
    if collected.odd:
        stream.notes.append(f"Left out, for want of a sensible time: {plural_text(collected.odd, 'event')}.")
    missing = bool(stream.notes) and not trace.steps
    trace.notes = stream.notes if missing else stream.notes + trace.notes
    trace.host = str(stream.header.get("host_name", ""))
    trace.world = world_of(stream.header)
    trace.move(_base(stream.header))
    return trace


def _base(header: dict[str, Any]) -> int:
    """Returns the time in ns that the trace's times are relative to; 0 where it is not given or would overflow."""
    base = header.get("baseTimeNanoseconds", 0)
    return base if isinstance(base, int) and abs(base) < 1 << 61 else 0


def write(found: JobTrace, folder: Path) -> None:
    """Writes the result of `read_all` into a folder."""
    report = {
        "notes": found.notes,
        "recorded": found.recorded,
        "ranks": {rank: {"file": found.files[rank], **_about(trace)} for rank, trace in sorted(found.ranks.items())},
    }
    for rank, trace in found.ranks.items():
        for step, rows in trace.steps.items():
            np.save(folder / f"{rank}-{step}.npy", rows)
            sequences = {
                "operators": trace.operations.get(step, []),
                "kernels": trace.kernels.get(step, []),
                "begun": trace.begun.get(step, {}),
                "groups": trace.groups.get(step, []),
            }
            (folder / f"{rank}-{step}.json").write_text(json.dumps(sequences))
    (folder / "report.json").write_text(json.dumps(report))


def _about(trace: kineto.RankTrace) -> dict[str, Any]:
    return {
        "files": trace.files,
        "device": trace.device,
        "raw": trace.raw,
        "top": trace.top,
        "counted": trace.counted,
        "partial": trace.partial,
        "world": trace.world,
        "steps": {step: len(rows) for step, rows in trace.steps.items()},
    }


def main(arguments: list[str]) -> int:
    """Reads and writes `OUT NAME PATH NAME PATH ...`, where NAME is what people call the file; returns the exit code.

    Name and path are arguments of their own: either may hold any character.
    """
    gc.disable()  # millions of small objects without cycles, which the collector would scan again and again
    folder, files = Path(arguments[0]), zip(arguments[1::2], map(Path, arguments[2::2]), strict=True)
    try:
        write(read_all(list(files)), folder)
    except MemoryError:
        return EXIT_MEMORY
    return 0


if __name__ == "__main__":
    die_with_told_parent()
    sys.exit(main(sys.argv[1:]))
