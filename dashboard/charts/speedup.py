"""Speedup over the baseline: bars with whiskers, fastest on top, and a tick at the ideal speedup of each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboard.charts import theme
from dashboard.charts.chart import (
    MAX_TICK,
    Chart,
    Entry,
    row_height,
    row_labels,
    rows_said,
    run_column,
    standing,
    ticks,
)
from dashboard.charts.theme import var
from parallel_core.analysis.disturbance import is_disturbed
from parallel_core.analysis.quantities import percent_text, plural_text, ratio_text
from parallel_core.analysis.stats import Speedup

MAX_CHARACTERS = 44
"""Length of a status in the figure; the table has all of it."""
NARROW = 1.25
"""Factor by which the axis is longer on a phone, because text takes more of it."""
GAP, NARROW_GAP, WORD, DIAMOND = 0.02, 0.045, 0.15, 0.04
"""As parts of the furthest mark: the space before a ratio in words, on a phone, too, that which it takes, and half of a
diamond, which has the same pixels on a phone's axis of some 200."""
NONE_COMPARED = "No speed is compared here."
COLUMNS = ("speedup", "10 % to 90 %", "ideal", "of ideal", "CPU used by others")
AT_PACE = "at the baseline's pace"
"""Name of the marks of `Entry.at_pace`, and of the table's last column where there are any."""


def chart(entries: Sequence[Entry], title: str, source: str) -> Chart:
    """`entries` in drawing order. Measured bars are solid, those of running runs outlined; hatching "/" marks
    recomputation and "x" a measurement disturbed by other processes."""
    drawn = standing(entries)
    furthest, room = max(map(_reach, drawn), default=1) or 1, _room(drawn)
    figure = {
        "data": [t for t in (_bars(drawn), _ideal(drawn), _at_pace(drawn), _unity(drawn), _words(drawn)) if t],
        "layout": theme.layout(
            row_height(len(drawn)),
            xaxis=theme.axis(
                "times the baseline",
                range=[0, room * furthest],
                ticksuffix="x",
            ),
            yaxis=theme.rows_axis(ticks(drawn)),
            bargap=0.25,
            meta={"narrow": {"xaxis": {"range": [0, NARROW * room * furthest]}}, "empty": NONE_COMPARED},
        ),
    }
    subtitle = "Speedup over the baseline; bar = median, whisker = 10 % to 90 %, tick = ideal"
    if any(entry.at_pace for entry in drawn):
        subtitle += f"; diamond = {AT_PACE} of the host"
    noisy = [entry for entry in entries if entry.disturbed and entry.speed]
    if said := next((entry for entry in noisy if is_disturbed(entry.others)), None):
        subtitle += f"; cross-hatched = disturbed, +{percent_text(said.others or 0)} = of one device used by others"
    elif noisy:
        subtitle += f"; cross-hatched = disturbed: {noisy[0].disturbed_by}"
    subtitle += rows_said(entries)
    return Chart("speedup", title, subtitle, source, figure, *_table(entries))


def _table(entries: Sequence[Entry]) -> tuple[Sequence[str], list[list[str]]]:
    """Returns the columns and rows of the table."""
    rows = [_row(entry) for entry in entries]
    if not any(entry.at_pace for entry in entries):
        return (run_column(entries), *COLUMNS), rows
    corrected = [ratio_text(entry.at_pace) if entry.at_pace else "" for entry in entries]
    return (run_column(entries), *COLUMNS, AT_PACE), [[*row, last] for row, last in zip(rows, corrected, strict=True)]


def _bars(entries: Sequence[Entry]) -> dict[str, Any] | None:
    drawn = [(y, entry, entry.speed) for y, entry in enumerate(entries) if entry.speed]
    if not drawn:
        return None
    fastest = max(drawn, key=lambda item: item[2].ratio)[1]
    fills = [_fill(entry, fastest) for _, entry, _ in drawn]
    return {
        "type": "bar",
        "orientation": "h",
        "name": "speedup",
        "y": [y for y, _, _ in drawn],
        "x": [speed.ratio for _, _, speed in drawn],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [None if speed.few else speed.high - speed.ratio for _, _, speed in drawn],
            "arrayminus": [None if speed.few else speed.ratio - speed.low for _, _, speed in drawn],
            "color": var("ink"),
            "thickness": 1.25,
            "width": 3,
        },
        "marker": {
            # Pages draw a hatch in the bar's own colour, which must not be clear.
            "color": [_edge(e, fastest) if _pattern(e) else fill for (_, e, _), fill in zip(drawn, fills, strict=True)],
            "line": {"color": [_edge(entry, fastest) for _, entry, _ in drawn], "width": 1.5},
            "pattern": theme.hatches([_pattern(entry) for _, entry, _ in drawn], fills),
        },
        "customdata": [theme.escape_label(entry.label) for _, entry, _ in drawn],
        "hovertemplate": "%{customdata}: %{x:.2f}x<extra></extra>",
    }


def _fill(entry: Entry, fastest: Entry) -> str:
    if not entry.done:
        return theme.CLEAR
    return var("accent") if entry is fastest else var("bar")


def _edge(entry: Entry, fastest: Entry) -> str:
    return var("accent") if entry is fastest else var("bar")


def _pattern(entry: Entry) -> str:
    if entry.disturbed:
        return "x"
    return "/" if entry.recompute and entry.done else ""


def _ideal(entries: Sequence[Entry]) -> dict[str, Any] | None:
    known = [(y, entry.ideal) for y, entry in enumerate(entries) if entry.ideal and entry.speed]
    if not known:
        return None
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "ideal",
        "y": [y for y, _ in known],
        "x": [ideal for _, ideal in known],
        "marker": {"symbol": "line-ns", "size": 14, "line": {"width": 2.5, "color": var("ink")}},
        "hovertemplate": "ideal %{x:.2f}x<extra></extra>",
    }


def _at_pace(entries: Sequence[Entry]) -> dict[str, Any] | None:
    """Marks of `Entry.at_pace`; outlined, as it is not a measurement but a ratio corrected by the reference work."""
    known = [(y, entry.at_pace) for y, entry in enumerate(entries) if entry.at_pace]
    if not known:
        return None
    return {
        "type": "scatter",
        "mode": "markers",
        "name": AT_PACE,
        "y": [y for y, _ in known],
        "x": [ratio for _, ratio in known],
        "marker": {
            "symbol": "diamond",
            "size": 9,
            "color": var("surface"),
            "line": {"width": 1.5, "color": var("ink")},
        },
        "hovertemplate": f"{AT_PACE} %{{x:.2f}}x<extra></extra>",
    }


def _unity(entries: Sequence[Entry]) -> dict[str, Any] | None:
    """The baseline's speed as a line down to the last measured row: rows below have text about runs without a bar."""
    last = max((y for y, entry in enumerate(entries) if entry.speed), default=-1)
    if last < 0:
        return None
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [1, 1],
        "y": [-0.6, last + 0.5],
        "line": {"color": var("line-strong"), "width": 1, "dash": "dot"},
        "hoverinfo": "skip",
    }


def _words(entries: Sequence[Entry]) -> dict[str, Any] | None:
    """Text of each row: the ratio after bar, whisker and tick, or what a run without a final measurement is doing."""
    said = [(y, entry, _words_of(entry, _told_before(entries, y))) for y, entry in enumerate(entries)]
    if not any(words for _, _, words in said):
        return None
    reach = max((_reach(entry) for entry in entries), default=0.0)
    return {
        "type": "scatter",
        "mode": "text",
        "y": [y for y, _, _ in said],
        "x": [_text_start(entry, reach) for _, entry, _ in said],
        "text": [words for _, _, words in said],
        "textposition": "middle right",
        "textfont": {"color": var("ink"), "size": 12},
        "meta": {
            "narrow": {
                "text": [_words_of(entry, narrow=True) for entry in entries],
                "x": [_text_start(entry, reach, NARROW_GAP) for _, entry, _ in said],
            }
        },
        "hoverinfo": "skip",
        "cliponaxis": False,
    }


def _told_before(entries: Sequence[Entry], y: int) -> bool:
    """Whether a row above says already what this one waits for: of a study's runs all may wait for the same."""
    status = _short(entries[y].status)
    return status.startswith("queued: ") and status in {_short(entry.status) for entry in entries[:y]}


def _text_start(entry: Entry, reach: float, least: float = GAP) -> float:
    """Where the text of a row begins: after everything drawn in it, or after its bar if there is room before the
    ideal's tick; and never across the baseline's line."""
    gap = least * reach
    if not entry.speed:
        return gap
    measured = max(_end(entry.speed), entry.at_pace + DIAMOND * reach if entry.at_pace else 0)
    at = max(measured, entry.ideal or 0)
    if entry.ideal and measured + gap + WORD * reach < entry.ideal and not (entry.status or entry.disturbed):
        at = measured
    at += gap
    return 1 + gap if at < 1 < at + WORD * reach else at


def _reach(entry: Entry) -> float:
    """Where the marks of the row end on the axis; 0 without a speedup."""
    return max(_end(entry.speed), entry.ideal or 0, entry.at_pace or 0) if entry.speed else 0.0


def _end(speed: Speedup) -> float:
    """Where the bar ends, with its whisker if there are enough steps for one."""
    return speed.ratio if speed.few else speed.high


def _room(entries: Sequence[Entry]) -> float:
    """How far the axis goes beyond the furthest mark, as a factor, so that the text after it is not cut."""
    if any(entry.speed and entry.status for entry in entries):
        return 1.85
    if not any(entry.speed and entry.disturbed for entry in entries):
        return 1.22
    return 1.65 if max(map(len, row_labels([entry.name for entry in entries]))) > MAX_TICK else 1.45


def _words_of(entry: Entry, narrow: bool = False) -> str:
    """`narrow`: of a status only its first word, as a phone has no room for more."""
    ratio = f"<b>{ratio_text(entry.speed.ratio)}</b>" if entry.speed else ""
    # Only beside a ratio: alone it would look like one.
    others = f"+{percent_text(entry.others or 0)}" if entry.speed and is_disturbed(entry.others) else ""
    status = entry.status.partition(": ")[0] if narrow else _short(entry.status)
    return "  ".join(word for word in (ratio, theme.escape_label(status), others) if word)


def _short(status: str) -> str:
    """The whole status, or its clauses that fit into MAX_CHARACTERS."""
    if len(status) <= MAX_CHARACTERS:
        return status
    clause = max(status.rfind(mark, 0, MAX_CHARACTERS) for mark in (": ", ", ", ". "))
    return status[:clause] if clause > MAX_CHARACTERS // 2 else f"{status[: MAX_CHARACTERS - 1]}…"


def _row(entry: Entry) -> list[str]:
    speed = entry.speed
    if speed is None:
        return [entry.in_table, entry.status or "not measured", *[""] * (len(COLUMNS) - 1)]
    noise = " (within noise)" if speed.within_noise and not entry.baseline else ""
    whiskers = f"{ratio_text(speed.low)} to {ratio_text(speed.high)}"
    return [
        entry.in_table,
        ratio_text(speed.ratio) + noise,
        plural_text(speed.n, "timed step") if speed.few else whiskers,
        ratio_text(entry.ideal) if entry.ideal else "",
        percent_text(speed.ratio / entry.ideal) if entry.ideal else "",
        percent_text(entry.others) if entry.others is not None else "",
    ]
