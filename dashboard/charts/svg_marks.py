"""Draws markers and hatches of a figure as SVG elements: each of Plotly's symbols and patterns that figures use."""

from __future__ import annotations

from typing import Any

from dashboard.charts.theme import CLEAR, VAR

IDLE = (
    '<pattern id="hatch-idle" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="6" height="6" fill="var(--phase-idle)"/><path d="M0 0V6" stroke="var(--phase-idle-line)"/></pattern>'
)
SHAPES = {"/": ("M1 0V6", 2.0), "x": ("M1 0V6M0 1H6", 1.5)}
"""Pattern as Plotly spells it -> the path of a tile of 6 x 6 pixels before it is turned by 45 degrees, and its stroke
width."""
LINES = ("surface", "ink-2", "phase-idle-line", "accent")
"""Colours of the lines of patterns; any other is drawn as the second."""


def patterns() -> str:
    """The definitions of all patterns."""
    made = [
        f'<pattern id="{_id(shape, line)}" width="6" height="6" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><path d="{path}" stroke="var(--{line})" stroke-width="{width:g}"/></pattern>'
        for shape, (path, width) in SHAPES.items()
        for line in LINES
    ]
    return f"<defs>{IDLE}{''.join(made)}</defs>"


def pattern(trace: dict[str, Any], i: int) -> str:
    """The id of the pattern over bar `i` of a trace; '' without one."""
    given = trace.get("marker", {}).get("pattern", {})
    shape = str(each(given.get("shape", ""), i))
    if shape not in SHAPES:
        return ""
    named = VAR.fullmatch(str(each(given.get("fgcolor", ""), i)))
    return _id(shape, named[1] if named and named[1] in LINES else LINES[1])


def _id(shape: str, line: str) -> str:
    return f"hatch{'-x' if shape == 'x' else ''}-{line}"


def mark(trace: dict[str, Any], i: int, x: float, y: float) -> str:
    """Marker `i` of a trace with its middle at (x, y)."""
    marker = trace.get("marker", {})
    symbol, size = str(each(marker.get("symbol", "circle"), i)), float(each(marker.get("size", 8), i))
    fill, line = each(marker.get("color"), i), marker.get("line", {})
    edge = each(line.get("color", fill), i)
    if not size or symbol == "arrow":
        return ""
    if symbol.startswith("line-ns"):
        return f'<path d="M{x:.1f} {y - size / 2:.1f}v{size:g}" stroke="{edge}" stroke-width="{line.get("width", 2)}"/>'
    if symbol.startswith("x"):
        thick = line.get("width", 1) if symbol == "x-thin" else size / 3
        return _cross(x, y, size / 2, f'stroke="{edge if symbol == "x-thin" else fill}" stroke-width="{thick:.3g}"')
    hollow = symbol.endswith("open")
    fill = "#fff" if hollow else "none" if fill == CLEAR else fill
    look = f'fill="{fill}" stroke="{edge or fill}" stroke-width="{2 if hollow else line.get("width", 0)}"'
    return _outline(symbol, x, y, size, look)


def _cross(x: float, y: float, half: float, look: str) -> str:
    lines = "".join(f"M{x - half:.1f} {y - sign * half:.1f}L{x + half:.1f} {y + sign * half:.1f}" for sign in (1, -1))
    return f'<path d="{lines}" {look}/>'


def _outline(symbol: str, x: float, y: float, size: float, look: str) -> str:
    """A filled symbol: a triangle, a square, a diamond (a turned square), or a circle."""
    if symbol.startswith("triangle-up"):
        wide, tall = 0.58 * size, size / 2
        return f'<path d="M{x:.1f} {y - tall:.1f}L{x + wide:.1f} {y + tall:.1f}H{x - wide:.1f}Z" {look}/>'
    if symbol.startswith(("square", "diamond")):
        turned = f' transform="rotate(45 {x:.1f} {y:.1f})"' if symbol.startswith("diamond") else ""
        left, top = x - size / 2, y - size / 2
        return f'<rect x="{left:.1f}" y="{top:.1f}" width="{size:g}" height="{size:g}" {look}{turned}/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size / 2:g}" {look}/>'


def each(value: Any, i: int) -> Any:
    """Element `i` of a list; any other value holds for all points."""
    return value[i] if isinstance(value, (list, tuple)) else value
