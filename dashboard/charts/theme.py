"""Colours and the common layout of figures.

Figures name colours as CSS custom properties (`var(--phase-forward)`); the stylesheet holds each colour once, for light
and dark, and static/js/charts.js puts the computed values in. Plotly itself never sees a `var(...)`.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

from parallel_core.analysis.quantities import count_text, significant
from parallel_core.schedule.ir import COLLECTIVES, P2P, Kind

Figure = dict[str, Any]

LEGEND = (
    ("forward", "forward"),
    ("backward", "backward; compute as a whole"),
    ("weight", "weight gradient on its own"),
    ("recompute", "recomputation"),
    ("communication", "communication"),
    ("optimizer", "optimizer"),
    ("idle", "idle (bubble)"),
    ("other", "data, set-up and the rest"),
)
"""(phase, word) of the one legend a page shows."""

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


def var(name: str) -> str:
    return f"var(--{name})"


def phase_of(kind: int) -> str:
    """Phase whose fill a span of this kind gets; host work (data, set-up) counts as `other`."""
    return _PHASE_OF.get(Kind(kind), "other")


def phase_fill(phase: str) -> str:
    return var("line-strong") if phase == "other" else var(f"phase-{phase}")


def line_of(family: str) -> str:
    """Hue of a strategy family in line charts and scatters."""
    return var(f"line-{family}")


def escape_label(text: str) -> str:
    """A name as Plotly may show it: it renders a subset of HTML in labels."""
    return html.escape(text, quote=False)


SMALL = '<span style="font-size:11px">'
"""Before what stands under a row's name; `</span>` behind it."""


def small(text: str) -> str:
    """Second words of a label, smaller than the first; escaped already."""
    return f"{SMALL}{text}</span>"


def hatch(shape: str, line: str = "surface", size: int = 6) -> dict[str, Any]:
    """Pattern over a fill; `shape` as Plotly spells it."""
    return {"shape": shape, "fgcolor": var(line), "size": size, "solidity": 0.3, "fillmode": "overlay"}


def hatches(shapes: Sequence[str], fills: Sequence[str], line: str = "surface") -> dict[str, Any]:
    """The same of each bar of a trace over its own fill. Laid over, Plotly would look for a line's hue that contrasts
    with the list of fills, and warn that a list is no colour."""
    told = {"shape": list(shapes), "bgcolor": list(fills), "fillmode": "replace", "fgopacity": 0.5}
    return hatch("", line) | told


def layout(height: int, left: int = 8, **more: Any) -> dict[str, Any]:
    """What every figure shares: transparent ground, the page's type, no title (the caption is one), quiet axes."""
    return {
        "height": height,
        "margin": {"l": left, "r": 16, "t": 8, "b": 40},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
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
"""Of all values of an axis that stand side by side on a phone."""


def log_axis(title: str, low: float, high: float) -> dict[str, Any]:
    """A logarithmic axis with the values 1, 2 and 5 of each power between `low` and `high`, as plain numbers."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**power for power in powers for digit in (1, 2, 5) if low <= digit * 10.0**power <= high]
    words = [count_text(round(tick)) if tick >= 1 else significant(tick) for tick in ticks]
    return axis(title, type="log", tickvals=ticks, ticktext=words)


def narrow_log_axis(wide: dict[str, Any]) -> dict[str, Any]:
    """What becomes of a `log_axis` on a phone: every other value where all of them would be written aslant."""
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
