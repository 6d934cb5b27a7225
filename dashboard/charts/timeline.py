"""The timeline of a step of any size: bars where they can be told apart, else bins.

Steps too long for bars are cached for a while with their bins, because every zoom requests the same step again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
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
from parallel_core.analysis.quantities import ns_text, percent_text, step_text
from parallel_core.analysis.waits import Causes, Waited, step_start, waited, waited_if_whole
from parallel_core.layout import Layout

KEPT_BYTES = 192 << 20
"""The most that cached spans and what was computed from them may take; a million spans take about 55 MB."""
MAX_MS = 1e9
"""Longer than any step; much larger values would not fit into nanoseconds."""


def window_of(given: Mapping[str, str]) -> Window | None:
    """The window in the query parameters `from` and `to` (ms); None where they are absent or not a window."""
    try:
        low, high = float(given.get("from", "")), float(given.get("to", ""))
    except ValueError:
        return None
    return (low, high) if -MAX_MS < low < high < MAX_MS else None


class Lit(NamedTuple):
    """A highlighted span: its rank, and ms from the start of the step."""

    rank: int
    begin: float
    end: float

    @property
    def query(self) -> str:
        """The value of the query parameter `lit`."""
        return f"{self.rank}:{self.begin}:{self.end}"


def lit_of(given: Mapping[str, str]) -> Lit | None:
    """The highlighted span in the query parameter `lit` = rank:from:to; None where it names none."""
    rank, *ends = given.get("lit", "").split(":")
    if not rank.isdecimal() or len(rank) > 5 or len(ends) != 2:
        return None
    found = window_of({"from": ends[0], "to": ends[1]})
    return Lit(int(rank), *found) if found else None


FRAME = 0.98
"""Height of the frame around a span, in rows."""


def _outline(row: int, begin: float, end: float) -> dict[str, Any]:
    """A frame in a row of the first run, from `begin` to `end` in ms."""
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
    """The spans of one step by rank. With the `layout` of its ranks it is also known who waited for whom."""

    def __init__(
        self,
        spans: Spans,
        layout: Layout | None = None,
        hosts: Sequence[str] = (),
        met: Mapping[int, Causes] | None = None,
    ) -> None:
        """`hosts` = the host of each rank, if there are several; `met` = who came last to the collectives of
        an imported job without a known layout."""
        self.spans, self._layout, self._hosts, self._met = spans, layout, hosts, met
        self.layout = layout or Layout.unknown(max(spans, default=0) + 1)
        """Without a given layout, every rank is treated on its own."""
        self.total = sum(map(len, spans.values()))

    @property
    def long(self) -> bool:
        """Whether there are too many spans for bars."""
        return self.total > MAX_BARS

    @property
    def size(self) -> int:
        """Bytes in memory, with what is computed from the spans."""
        return self.total * 80 + len(self.spans) * heatmap.FINEST * 8 * (len(heatmap.PHASES) + 1)

    @cached_property
    def bins(self) -> Mapping[int, Bins]:
        return heatmap.finest(self.spans, self.waited)

    @cached_property
    def waited(self) -> Mapping[int, Waited]:
        return waited(self.spans, self.layout, self._met) if self._met else waited_if_whole(self.spans, self._layout)

    def part(self, ranks: Collection[int]) -> Step:
        """Some of its ranks, with what is known only from all of them: their waits and accounts."""
        of = Step({rank: self.spans[rank] for rank in ranks}, self._layout, self._hosts)
        of.waited = {rank: self.waited[rank] for rank in ranks if rank in self.waited}
        of.accounts = {rank: self.accounts[rank] for rank in ranks}
        return of

    @property
    def places(self) -> dict[int, str]:
        """Where each rank is in the mesh, in words: its position on the axes that are split, and its host."""
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
        """By rank: what the step consists of, and the account's further figures."""
        return accounts(self.spans, self.layout, self._met)

    @property
    def pace(self) -> str:
        """Says how long a rank's step took; that is less than the axis, and than What if's step, where ranks begin or
        end at different times: then it is called a mean."""
        return self._took("a step")

    def _took(self, which: str) -> str:
        one, whole = mean(self.breakdown.values()).total, length(self.spans)
        said = ns_text(one)
        return f"{said} {which}" + (", on average over the ranks" if said != ns_text(whole) else "")

    def finding(self, untraced: Callable[[float], str] | None = None, number: int | None = None) -> str:
        """The pace, the share of computing and the largest other part, as a sentence.

        `untraced` names the time that no span covers, from its nanoseconds. `number` = the step, to be named where the
        run has other steps, whose median may differ.
        """
        parts = mean(self.breakdown.values())
        named = {name: ns for name, ns in parts.as_dict().items() if name != "compute"}
        second = max(named, key=lambda name: named[name])
        word = untraced(parts.other) if untraced and second == "other" else COMPONENT_NAMES[second]
        shares = percent_text(parts.share("compute")), percent_text(parts.share(second))
        pace = self.pace if number is None else self._took(f"in {step_text(number)}")
        return f"{pace}: {shares[0]} compute, {shares[1]} {word}."

    @property
    def breakdown(self) -> Mapping[int, Breakdown]:
        return {rank: account.parts for rank, account in self.accounts.items()}

    def in_view(self, window: Window | None) -> int:
        """The number of spans that overlap the window."""
        if window is None:
            return self.total
        zero = step_start(self.spans)
        return sum(int(inside(rows, zero, window).sum()) for rows in self.spans.values())

    def chart(self, title: str, source: str, window: Window | None = None, lit: Lit | None = None) -> Chart:
        """Bars, or a heatmap where more than MAX_BARS spans are in view. Bars of a short step always show all of it;
        `lit` is outlined among bars."""
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
        made.figure["layout"]["meta"]["addressed"] = True  # the page's address has the window it is zoomed to
        return made


_kept: OrderedDict[Hashable, Step] = OrderedDict()
_lock = threading.Lock()


def _stages(held: Sequence[int]) -> str:
    """Names the stages that a pipeline rank holds: several, if the schedule loops or has the form of a V."""
    if len(held) == 1:
        return f"stage {held[0]}"
    return f"stages {held[0]}, {held[1]}" if len(held) == 2 else f"stages {held[0]} … {held[-1]}"


def forget() -> None:
    """Clears the cache of steps; called where a key may come to name other content."""
    with _lock:
        _kept.clear()


def kept(key: Hashable, read: Callable[[], Step]) -> Step:
    """Returns the step that `read` returns; a long one is cached under `key`, which must identify its content."""
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
