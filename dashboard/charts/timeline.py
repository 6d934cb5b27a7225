"""The timeline of a step of any size: bars where they can be told apart, else bins.

Steps too long for bars are kept in memory for a while, with their bins: every zoom asks for the same one again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from dashboard.charts import gantt, heatmap
from dashboard.charts.chart import Chart
from dashboard.charts.gantt import MAX_BARS
from dashboard.charts.gantt_bars import Spans, inside, length
from dashboard.charts.heatmap import Window
from dashboard.charts.theme import var
from parallel_core.analysis.bins import Bins
from parallel_core.analysis.breakdown import Account, Breakdown, accounts, mean
from parallel_core.analysis.names import COMPONENT_NAMES
from parallel_core.analysis.quantities import ns_text, percent_text
from parallel_core.analysis.waits import Waited, step_start, waited_if_whole
from parallel_core.layout import Layout

KEPT_BYTES = 192 << 20
"""Of spans and what was made of them; a million spans take about 55 MB."""
MAX_MS = 1e9
"""Longer than any step: far more would not be a time in nanoseconds any more."""


def window_of(given: Mapping[str, str]) -> Window | None:
    """The window that an address asks for with `from` and `to`, ms; None where they are absent or make none."""
    try:
        low, high = float(given.get("from", "")), float(given.get("to", ""))
    except ValueError:
        return None
    return (low, high) if -MAX_MS < low < high < MAX_MS else None


class Lit(NamedTuple):
    """A span to look at: its rank, ms from the start of the step."""

    rank: int
    begin: float
    end: float

    @property
    def query(self) -> str:
        """As an address has it."""
        return f"{self.rank}:{self.begin}:{self.end}"


def lit_of(given: Mapping[str, str]) -> Lit | None:
    """The span that an address asks for with `lit` = rank:from:to; None where it names none."""
    rank, *ends = given.get("lit", "").split(":")
    if not rank.isdecimal() or len(rank) > 5 or len(ends) != 2:
        return None
    found = window_of({"from": ends[0], "to": ends[1]})
    return Lit(int(rank), *found) if found else None


ALIKE = 0.98
"""Of the axis: a mean rank's step that takes so much of it need not be told from it."""
FRAME = 0.98
"""Height of the frame around a span."""


def _outline(row: int, begin: float, end: float) -> dict[str, Any]:
    """A frame around what stands in a row of the first run between two moments, ms."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": "lit",
        "base": [begin],
        "x": [end - begin],
        "y": [row],
        "width": [FRAME],
        "marker": {"color": "rgba(0,0,0,0)", "line": {"width": 3, "color": var("accent")}},
        "hoverinfo": "skip",
    }


class Step:
    """The spans of one step by rank; with the `layout` of its ranks it is known who waited for whom."""

    def __init__(self, spans: Spans, layout: Layout | None = None, hosts: Sequence[str] = ()) -> None:
        """`hosts` = that of each rank, where there are several."""
        self.spans, self._layout, self._hosts = spans, layout, hosts
        self.layout = layout or Layout.unknown(max(spans, default=0) + 1)
        """Without one given every rank stands for itself."""
        self.total = sum(map(len, spans.values()))

    @property
    def long(self) -> bool:
        """Too many spans for bars."""
        return self.total > MAX_BARS

    @property
    def size(self) -> int:
        """Bytes, with what is made of it."""
        return self.total * 80 + len(self.spans) * heatmap.FINEST * 8 * (len(heatmap.LAYERS) + 2)

    @cached_property
    def bins(self) -> Mapping[int, Bins]:
        return heatmap.finest(self.spans, self.waited)

    @cached_property
    def waited(self) -> Mapping[int, Waited]:
        return waited_if_whole(self.spans, self._layout)

    @property
    def places(self) -> dict[int, str]:
        """Where each rank stands in the mesh: of the axes that are split; ranks of a stage are neighbours."""
        if self._layout is None:
            return {}
        layout, out = self._layout, {}
        for rank in self.spans:
            here = layout.coords(rank)
            split = [_stages(layout.stages_of(here.place))] if layout.pp > 1 else []
            named = (
                ("replica", layout.replicas[here.place], here.replica),
                ("tensor", layout.widths[here.place], here.tensor),
            )
            split += [f"{name} {i}" for name, n, i in named if n > 1]
            split += [self._hosts[rank]] if self._hosts else []
            out[rank] = ", ".join(split)
        return {rank: text for rank, text in out.items() if text}

    @cached_property
    def accounts(self) -> Mapping[int, Account]:
        """Where the step of each rank went, and what stands beside that."""
        return accounts(self.spans, self.layout)

    @property
    def pace(self) -> str:
        """How long a rank's step is. It is shorter than the axis where ranks begin or end apart."""
        return self._took("a step")

    def _took(self, which: str) -> str:
        one, whole = mean(self.breakdown.values()).total, length(self.spans)
        return f"{ns_text(one)} {which}" + (", on average over the ranks" if one < ALIKE * whole else "")

    def finding(self, untraced: Callable[[float], str] | None = None, number: int | None = None) -> str:
        """The pace, and of what a rank's step is most; `untraced` names what no span covers, of its nanoseconds. Of a
        run that has others beside it, the `number` of the step: its median may be another."""
        parts = mean(self.breakdown.values())
        named = {name: ns for name, ns in parts.as_dict().items() if name != "compute"}
        second = max(named, key=lambda name: named[name])
        word = untraced(parts.other) if untraced and second == "other" else COMPONENT_NAMES[second]
        shares = percent_text(parts.share("compute")), percent_text(parts.share(second))
        pace = self.pace if number is None else self._took(f"in step {number}")
        return f"{pace}: {shares[0]} compute, {shares[1]} {word}."

    @property
    def breakdown(self) -> Mapping[int, Breakdown]:
        return {rank: account.parts for rank, account in self.accounts.items()}

    def in_view(self, window: Window | None) -> int:
        """Spans that touch the window."""
        if window is None:
            return self.total
        zero = step_start(self.spans)
        return sum(int(inside(rows, zero, window).sum()) for rows in self.spans.values())

    def chart(self, title: str, source: str, window: Window | None = None, lit: Lit | None = None) -> Chart:
        """Bars, or a heatmap of more than MAX_BARS spans in view; a short step is always shown whole. Among bars `lit`
        is outlined."""
        if self.long and self.in_view(window) > MAX_BARS:
            made = heatmap.chart(self.spans, title, source, window, self.bins, self.waited)
        else:
            shown = window if self.long else None
            made = gantt.chart(
                [("", self.spans)], title, source, window=shown, waited=[self.waited], places=self.places
            )
            if lit is not None and lit.rank in self.spans:
                made.figure["data"].append(_outline(sorted(self.spans).index(lit.rank), lit.begin, lit.end))
                made = replace(made, subtitle=f"{made.subtitle}; outlined: what the finding is about")
        made.figure["layout"]["meta"]["addressed"] = True  # what it is zoomed to stands in the page's address
        return made


_kept: OrderedDict[Hashable, Step] = OrderedDict()
_lock = threading.Lock()


def _stages(held: Sequence[int]) -> str:
    """Those of a pipeline rank, which in a loop or a V has several."""
    if len(held) == 1:
        return f"stage {held[0]}"
    return f"stages {held[0]}, {held[1]}" if len(held) == 2 else f"stages {held[0]} … {held[-1]}"


def forget() -> None:
    """Lets go of every step that is remembered: where a key may come to name other content."""
    with _lock:
        _kept.clear()


def kept(key: Hashable, read: Callable[[], Step]) -> Step:
    """The step that `read` gives; a long one is remembered by `key`, which must name its content."""
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    step = read()
    if step.long:
        with _lock:
            _kept[key] = step
            while len(_kept) > 1 and sum(own.size for own in _kept.values()) > KEPT_BYTES:
                _kept.popitem(last=False)
    return step
