"""Many lines in one chart: the first few in colours, with their names, and all others grey behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from dashboard.charts import theme

MOST_APART = 12
"""The most lines that can each have a look, and a name in the legend, of their own."""
LEADERS = 5
"""How many lines have a colour where there are too many."""
HUES = ("line-dp", "line-tp", "line-pp", "line-combined", "phase-recompute")
FAINT = 0.45
"""Opacity of grey lines."""


class Line(Protocol):
    """What is asked of a line: the run that it is of (None: of something else), and whether that is the baseline."""

    @property
    def run(self) -> int | None: ...

    @property
    def baseline(self) -> bool: ...


Some = TypeVar("Some", bound=Line)


def too_many(lines: Sequence[Line], looks: int) -> bool:
    """Whether lines of runs, which have so many `looks`, could not be told apart."""
    most = LEADERS if looks == 1 else MOST_APART
    return len(lines) > most and all(line.run is not None for line in lines)


def leading(lines: Sequence[Some]) -> list[Some]:
    """Those that get a colour: the first ones, and the baseline."""
    return [line for i, line in enumerate(lines) if i < LEADERS or line.baseline]


def in_drawing_order(lines: Sequence[Some]) -> list[Some]:
    """The lines with the grey ones first, so that the others are drawn over them, the first of all on top."""
    lead = leading(lines)
    ahead = {line.run for line in lead}
    return [*(line for line in lines if line.run not in ahead), *reversed(lead)]


def coloured(traces: Sequence[dict[str, Any]], lines: Sequence[Line], leaders: Sequence[Line]) -> list[dict[str, Any]]:
    """The traces of `lines`: grey, without a name in the legend, but for those of the `leaders`, first of all first.
    The baseline has the colour of text."""
    out = []
    places = {line.run: place for place, line in enumerate(leaders)}
    usual = {line.run: trace["line"]["color"] for trace, line in zip(traces, lines, strict=True)}
    others = [line.run for line in leaders if not line.baseline]
    hues = dict(zip(others, _hues([usual[run] for run in others]), strict=True))
    for trace, line in zip(traces, lines, strict=True):
        place = places.get(line.run)
        if place is None:
            grey = {**trace["line"], "color": theme.var("line-strong"), "width": 1.25}
            out.append(trace | {"line": grey, "opacity": FAINT, "showlegend": False})
            continue
        hue = "ink" if line.baseline else hues[line.run]
        name = f"{trace['name']}, baseline" if line.baseline else trace["name"]
        bold = {**trace["line"], "color": theme.var(hue), "width": 2.25}
        out.append(trace | {"line": bold, "name": name, "legendrank": 1 + place})
    return out


def _hues(usual: Sequence[str]) -> list[str]:
    """Another hue for each of at most LEADERS lines, the first of all first: that of its `usual` colour, as in other
    charts of the page, unless it is none of HUES or a line before it has that."""
    own = [colour.removeprefix("var(--").removesuffix(")") for colour in usual]
    kept = [hue if hue in HUES and hue not in own[:place] else "" for place, hue in enumerate(own)]
    free = iter(hue for hue in reversed(HUES) if hue not in kept)
    return [hue or next(free) for hue in kept]


def words(count: int, leaders: Sequence[Line], which: str) -> str:
    """Says which of `count` lines are coloured; `which` = what the first of them are, such as "fastest"."""
    few = sum(not line.baseline for line in leaders)
    base = " and the baseline" if few < len(leaders) else ""
    return f"coloured: the {few} {which}{base}; grey: the other {count - len(leaders)}, named at the pointer"
