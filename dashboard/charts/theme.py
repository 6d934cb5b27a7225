"""Colours and the common layout of figures.

Figures name colours as CSS custom properties (`var(--phase-forward)`); the stylesheet holds each colour once, for light
and dark, and static/js/charts.js replaces the names with computed values. Plotly itself never sees a `var(...)`.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from typing import Any

from parallel_core.analysis.quantities import count_text, significant
from parallel_core.schedule.ir import COLLECTIVES, P2P, Kind

Figure = dict[str, Any]
CLEAR = "rgba(0,0,0,0)"
"""No fill, as Plotly spells it."""

LEGEND = (
    ("forward", "forward"),
    ("backward", "backward"),
    ("weight", "weight gradient on its own"),
    ("recompute", "recomputation"),
    ("communication", "communication"),
    ("optimizer", "optimizer"),
    ("idle", "idle (bubble)"),
    ("other", "data, set-up and the rest"),
)
"""(phase, word): the page's one legend."""

_PHASE_OF = {
    Kind.F: "forward",
    Kind.R: "recompute",
    Kind.B: "backward",
    Kind.W: "weight",
    Kind.BW: "backward",
    Kind.PAIR: "backward",
    Kind.OPT_STEP: "optimizer",
    **dict.fromkeys(P2P | COLLECTIVES, "communication"),
}


VAR = re.compile(r"var\(--([\w-]+)\)")
"""What `var` makes; the group is the name."""


def var(name: str) -> str:
    return f"var(--{name})"


def phase_of(kind: int) -> str:
    """The phase in whose colour a span of this kind is drawn; host work (data, set-up) counts as `other`."""
    return _PHASE_OF.get(Kind(kind), "other")


def phase_fill(phase: str) -> str:
    return var("line-strong") if phase == "other" else var(f"phase-{phase}")


PREDICTED_LINE = 1.5
"""Width of the outline of what is predicted, in px."""


def soft(fill: str) -> str:
    """The light shade of a fill, inside the outline of what is predicted."""
    return fill.replace(")", "-soft)")


def outlined(fill: str) -> dict[str, Any]:
    """The marker of predicted bars: an outline in the colour of `fill` over a light shade of it."""
    return {"color": soft(fill), "line": {"width": PREDICTED_LINE, "color": fill}}


def line_of(family: str) -> str:
    """Colour of a strategy family in line charts and scatters."""
    return var(f"line-{family}")


def escape_label(text: str) -> str:
    """Escapes a name for a Plotly label: Plotly renders a subset of HTML there."""
    return html.escape(text, quote=False)


SMALL = '<span style="font-size:0.85em">'
"""Opening tag of the text below a row's name, which is smaller on a phone: this is, too."""


def small(text: str) -> str:
    """The second line of a label, smaller than the first; `text` is escaped already."""
    return f"{SMALL}{text}</span>"


def hatch(shape: str, line: str = "surface", size: int = 6) -> dict[str, Any]:
    """A pattern over a fill; `shape` as Plotly spells it."""
    return {"shape": shape, "fgcolor": var(line), "size": size, "solidity": 0.3, "fillmode": "overlay"}


def hatches(shapes: Sequence[str], fills: Sequence[str], line: str = "surface") -> dict[str, Any]:
    """The same for a trace whose bars each have their own fill; over a clear one, lines in another colour than the
    page's.

    Uses "replace": with "overlay", Plotly would look for a line colour that contrasts with the list of fills, and warn
    that a list is no colour. With a list of marker colours, Plotly draws the lines in these and nothing between them;
    reports draw them as given here.
    """
    lines = [var("ink-2" if fill == CLEAR else line) for fill in fills]
    each = {"shape": list(shapes), "fgcolor": lines, "bgcolor": list(fills), "fillmode": "replace", "fgopacity": 0.5}
    return hatch("") | each


def legend_above() -> dict[str, Any]:
    """A legend in a row above the figure, from its left edge."""
    return {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 12}}


def layout(height: int, left: int = 8, **more: Any) -> dict[str, Any]:
    """The layout that all figures share: transparent ground, the page's font, no title (the caption is one), plain
    axes."""
    return {
        "height": height,
        "margin": {"l": left, "r": 16, "t": 8, "b": 40},
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "font": {"family": var("sans"), "size": 13, "color": var("ink")},
        "hoverlabel": {"bgcolor": var("surface"), "bordercolor": var("line-strong"), "font": {"color": var("ink")}},
        "showlegend": False,
        "dragmode": "zoom",
        "separators": ".\N{NO-BREAK SPACE}",
        **more,
    }


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    return {
        "title": {"text": title, "font": {"size": 13, "color": var("ink-2")}, "standoff": 8},
        "gridcolor": var("grid"),
        "zerolinecolor": var("line-strong"),
        "linecolor": var("line"),
        "tickfont": {"color": var("ink-2")},
        "automargin": True,
        "fixedrange": False,
        "ticks": "",
        "separatethousands": True,
        "minexponent": 6,
        **more,
    }


NARROW_CHARACTERS = 24
"""The most characters that the tick labels of an axis may have together on a phone."""


def log_axis(title: str, low: float, high: float) -> dict[str, Any]:
    """A logarithmic axis with ticks at 1, 2 and 5 of each power of ten between `low` and `high`, as plain numbers."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**power for power in powers for digit in (1, 2, 5) if low <= digit * 10.0**power <= high]
    words = [count_text(round(tick)) if tick >= 1 else significant(tick) for tick in ticks]
    return axis(title, type="log", tickvals=ticks, ticktext=words)


def narrow_log_axis(wide: dict[str, Any]) -> dict[str, Any]:
    """The changes to a `log_axis` on a phone: every other tick, where the labels of all of them would be slanted."""
    step = 2 if sum(map(len, wide["ticktext"])) > NARROW_CHARACTERS else 1
    return {"tickangle": 0, "tickvals": wide["tickvals"][::step], "ticktext": wide["ticktext"][::step]}


def rows_axis(labels: list[str], **more: Any) -> dict[str, Any]:
    """A vertical axis with one named row a unit, the first on top. Labels are already escaped."""
    return axis(
        tickvals=list(range(len(labels))),
        ticktext=labels,
        range=[len(labels) - 0.4, -0.6],
        showgrid=False,
        zeroline=False,
        fixedrange=True,
        **{"tickfont": {"color": var("ink"), "size": 13}, **more},
    )
