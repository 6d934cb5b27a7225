"""Texts of the bars of a Gantt chart: the number inside a bar, and the hover text."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from parallel_core.analysis.quantities import bytes_text, plural_text, significant
from parallel_core.analysis.waits import BLOCKING
from parallel_core.schedule.ir import COMPUTE, Kind
from parallel_core.schedule.text import WORDS

HIDDEN = frozenset({Kind.STEP})
"""Kinds that are only the background of the other bars."""


TRACED, REPLAYED, PREDICTED = "One traced step", "One traced step and its replay", "One predicted step"
"""What a Gantt chart shows, in words."""


class Words(NamedTuple):
    """Names of the unit, the axis and the rows of a figure."""

    unit: str = "ms"
    axis: str = "ms from the start of the step"
    row: str = "rank"


MEASURED = Words()
IN_SECONDS = Words("s", "s from the start of the step")
"""For `gantt_bars.in_seconds`."""


def number(kind: Kind, row: np.void, least: float) -> str:
    """Returns the micro-batch's number where it fits, else '': even a hidden text costs the browser as much as ten
    bars."""
    if kind not in COMPUTE or row["micro_batch"] < 0:
        return ""
    number, (low, high) = str(row["micro_batch"]), row["room"]
    return number if high - low >= least * len(number) else ""


def waits_in(kind: Kind, row: Any, words: Words) -> str:
    """The hover text of a wait."""
    whom = f" for {words.row} {row['for']}" if row["for"] >= 0 else ""
    which = f" {row['micro_batch']}" if row["micro_batch"] >= 0 else ""
    where = f"{words.row} {row['rank']}, stage {row['stage']}: waits{whom} in {WORDS.get(kind, kind.name)}{which}"
    return f"{where}<br>{significant(row['waited'])} {words.unit} at {row['start']:.2f}"


def hover(kind: Kind, row: Any, words: Words) -> str:
    """The hover text of a bar."""
    took = f"{significant(row['end'] - row['start'])} {words.unit}"
    if kind in HIDDEN:
        return f"{words.row} {row['rank']}: step of {took}"
    which = f" {row['micro_batch']}" if row["micro_batch"] >= 0 else ""
    said = [f"{words.row} {row['rank']}, stage {row['stage']}: {WORDS.get(kind, kind.name)}{which}"]
    said.append(f"{took} at {row['start']:.2f}")
    if row["version"]:
        said.append(f"weights of {plural_text(row['version'], 'micro-batch')}")
    if row["bytes"]:
        said.append(bytes_text(int(row["bytes"])))
    if row["waited"] > 0:
        whom = f" for {words.row} {row['for']}" if row["for"] >= 0 else ""
        said.append(f"waited {significant(row['waited'])} {words.unit}{whom}{' before' if kind in BLOCKING else ''}")
    return "<br>".join(said)
