"""A thin lane between the Gantt charts of two runs: the operations of one rank in which they differ.

Its upper half has those of the first run, at their times, its lower half those of the second. An operation that the
other run does not have is filled; one that stands elsewhere in the other's order is hatched. Where spans of a run were
dropped, nothing is said of what only the other one has: it may have been among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from dashboard.charts import theme
from dashboard.charts.gantt import GAP, MANY
from dashboard.charts.theme import Figure, var
from parallel_core.analysis.align import Status
from parallel_core.analysis.quantities import count_text, significant
from parallel_core.schedule.ir import Kind
from parallel_core.schedule.text import WORDS

MOST = 500
"""The most bars of the lane: of more, the longest are drawn."""
HALF = 0.15
"""Height of each half of the lane, in rows: both fit into the space between two runs (`gantt.GAP`)."""
RUNS = ("first", "second")
IN_WORDS = "between the runs, operations that only one of them has (filled) or that stand elsewhere (hatched)"


class Lane(NamedTuple):
    """The operations of rank `rank` of one run in order of their start, what the alignment says of each, the first
    instant of the run's step, and how many of the rank's recorded spans of that step were kept. There may be fewer
    `statuses` than `rows` (see `align.MOST`)."""

    rank: int
    rows: NDArray[np.void]
    statuses: Sequence[Status]
    zero: int
    kept: int
    recorded: int

    def differing(self, other: Lane) -> list[int]:
        """Indices of the operations that differ from those of `other`."""
        unlike = {"moved_a", "moved_b"} if other.kept < other.recorded else {*get_args(Status)} - {"same"}
        return [i for i, status in enumerate(self.statuses) if status in unlike]


def add(figure: Figure, lanes: tuple[Lane, Lane], ranks: int) -> str:
    """Draws the lane below the `ranks` rows of the first run; returns words on how many operations differ."""
    middle = ranks - 1 + (1 + GAP) / 2
    found = [(side, i) for side, lane in enumerate(lanes) for i in lane.differing(lanes[1 - side])]
    found.sort(key=lambda one: -_length(lanes[one[0]], one[1]))
    for moved in (False, True):
        drawn = [(side, i) for side, i in found[:MOST] if lanes[side].statuses[i].startswith("moved") is moved]
        if drawn:
            figure["data"].append(_trace(lanes, drawn, middle, moved))
    axis, meta, rank = figure["layout"]["yaxis"], figure["layout"]["meta"], lanes[0].rank
    if found:
        axis["tickvals"], axis["ticktext"] = [*axis["tickvals"], middle], [*axis["ticktext"], theme.small("differ")]
    meta["canvas"] = meta["canvas"] or meta["shown"] + len(found[:MOST]) >= MANY
    total = sum(len(lane.statuses) for lane in lanes)
    longest = f", the {count_text(MOST)} longest drawn" if len(found) > MOST else ""
    differ = f"{count_text(len(found))} of {count_text(total)} operations of rank {rank} of both differ{longest}"
    return "; ".join([differ, *_dropped(lanes)])


def _dropped(lanes: tuple[Lane, Lane]) -> list[str]:
    """For each run of which spans were dropped: how many are left, and what is therefore not counted."""
    return [
        f"{count_text(lane.kept)} of {count_text(lane.recorded)} of its spans were kept of the {own} run, "
        f"so what only the {other} has is not counted"
        for lane, own, other in zip(lanes, RUNS, RUNS[::-1], strict=True)
        if lane.kept < lane.recorded
    ]


def _length(lane: Lane, i: int) -> int:
    return int(lane.rows["end"][i]) - int(lane.rows["start"][i])


def _trace(lanes: tuple[Lane, Lane], drawn: Sequence[tuple[int, int]], middle: float, moved: bool) -> dict[str, Any]:
    """The bars of the operations `drawn`, (index of the lane, index in it), which have all moved or none of them."""
    begun = [(int(lanes[side].rows["start"][i]) - lanes[side].zero) / 1e6 for side, i in drawn]
    marker: dict[str, Any] = {"color": var("accent-soft" if moved else "accent")}
    marker["line"] = {"width": 0.5, "color": var("surface")}
    if moved:
        marker["pattern"] = theme.hatch("/", "accent")
    return {
        "type": "bar",
        "orientation": "h",
        "name": "moved" if moved else "alone",
        "base": np.round(begun, 4).tolist(),
        "x": np.round([max(_length(lanes[side], i), 1) / 1e6 for side, i in drawn], 4).tolist(),
        "y": [middle + (side - 0.5) * HALF for side, _ in drawn],
        "width": [HALF] * len(drawn),
        "textposition": "none",
        "marker": marker,
        "customdata": [_said(lanes[side], side, i) for side, i in drawn],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _said(lane: Lane, side: int, i: int) -> str:
    """The hover text of operation `i` of the first (`side` 0) or the second run."""
    row, (own, other) = lane.rows[i], (RUNS, RUNS[::-1])[side]
    kind = Kind(int(row["kind"]))
    which = f" {row['micro_batch']}" if row["micro_batch"] >= 0 else ""
    moved = lane.statuses[i].startswith("moved")
    how = f"stands elsewhere in the order of the {other} run" if moved else f"the {other} run has none"
    where = f"{own} run, rank {lane.rank}, stage {row['stage']}: {WORDS.get(kind, kind.name)}{which}"
    return (
        f"{where}<br>{how}<br>{significant(_length(lane, i) / 1e6)} ms at {(int(row['start']) - lane.zero) / 1e6:.2f}"
    )
