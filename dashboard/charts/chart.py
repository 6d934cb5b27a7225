"""What a page shows of a chart: the figure, its finding in words, where the numbers come from, and the numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from dashboard.charts.svg import drawn
from dashboard.charts.theme import Figure, escape_label
from parallel_core.analysis.breakdown import Breakdown
from parallel_core.analysis.disturbance import is_disturbed
from parallel_core.analysis.host_drift import UNEVEN, Pace, at_pace
from parallel_core.analysis.quantities import percent_text
from parallel_core.analysis.sentences import Result
from parallel_core.analysis.stats import Speedup, Stats

ALL = ": “All values” shows them"
"""Follows in a source the number of values above the first view; the name of the button as in chart_buttons.js."""


@dataclass(frozen=True)
class Chart:
    """`title` is the finding (a whole sentence), `subtitle` quantity and unit, `source` e.g. "measured, 40 steps".

    `columns` and `rows` are the same numbers as text, for the table under the chart. Nothing here is escaped but the
    names inside `figure`.
    """

    key: str
    title: str
    subtitle: str
    source: str
    figure: Figure
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()

    @property
    def height(self) -> int:
        """Pixels; the page keeps this much room before the figure is drawn."""
        return int(self.figure["layout"]["height"])

    @property
    def script_id(self) -> str:
        """Id of the JSON script that holds the figure in a page."""
        return f"figure-{self.key}"

    @property
    def printed_source(self) -> str:
        """The source without what only a page with scripts has."""
        return self.source.replace(ALL, "")

    @property
    def picture(self) -> str:
        """The figure as SVG, for pages without scripts; '' where it is of a kind that is not drawn there."""
        return drawn(self.figure)

    @property
    def empty(self) -> bool:
        return not self.figure["data"]

    def as_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)} | {"height": self.height}


@dataclass(frozen=True)
class Entry:
    """One run as a row of a chart. `result` is None until it was measured; until then `status` says what it does."""

    label: str
    family: str = "single"
    recompute: bool = False
    baseline: bool = False
    result: Result | None = None
    speed: Speedup | None = None
    ideal: float | None = None
    """Ideal speedup over the baseline."""
    others: float | None = None
    """Of its devices, the one that other processes used most during the timed steps: the share they used."""
    processes: int = 0
    """Other processes on one of its GPUs in the timed steps: what they used of it is not known."""
    pace: Pace | None = None
    """How fast its devices were during the timed steps, by the reference work."""
    drift: float | None = None
    """How many times longer than in the baseline a device took for the reference work, without the influence of other
    devices."""
    done: bool = True
    ended: str = ""
    """How it ended without a result (`failed`): its numbers cover the steps until then and are not compared with
    others."""
    status: str = ""
    twin: str = ""
    """Equal in two entries that differ only in recomputation."""
    worst_rank: int | None = None
    """The rank whose memory `result` holds."""
    own: Stats | None = None
    """Seconds of the run's own steps, however many samples they train; `result.step` is for the baseline's batch."""
    scaled_to: int | None = None
    """The baseline's batch, if the run's own is another: `result.step` is the time for so many samples."""
    traced_median: float | None = None
    """Seconds: the median of the run's own steps, for comparison with its traced step."""
    predicted: int | None = None
    """Predicted bytes on the worst rank."""
    layers: int = 0
    largest: int | None = None
    """Predicted: the most layers that would fit into a device's memory."""
    no_largest: str = ""
    """Why `largest` cannot be predicted on any device; '' where it can."""
    short: str = ""
    """The label without the names of the `fields` by which the page's runs are called; '' where it is whole."""
    fields: str = ""
    """The names of those fields, which are said once."""
    whole: str = ""
    """The label with the middles of its long words; '' if none was left out."""

    @property
    def name(self) -> str:
        """The label beside an axis, or below a heading, that has the `fields`."""
        return self.short or self.label

    @property
    def in_table(self) -> str:
        """The label for a column of a table, which has room for whole words."""
        return self.short or self.whole or self.label

    @property
    def compared(self) -> Result | None:
        """The result if it may be compared with other runs in bars and titles, else None."""
        return None if self.ended else self.result

    @property
    def breakdown(self) -> Breakdown | None:
        """What its traced step consists of; None until it has a result, or if none was traced."""
        return self.result.breakdown if self.result else None

    @property
    def marked(self) -> str:
        """The label for charts of the run's own measurements: followed by how the run ended, if it has no result."""
        return self._with_end(self.label)

    @property
    def marked_in_table(self) -> str:
        """The same with whole words."""
        return self._with_end(self.whole or self.label)

    def _with_end(self, text: str) -> str:
        return f"{text}, {self.ended}" if self.ended else text

    @property
    def disturbed(self) -> bool:
        return is_disturbed(self.others) or self.processes > 0

    @property
    def disturbed_by(self) -> str:
        """`others used 31 %`, or `other processes on one GPU: 2`; '' if it was not disturbed."""
        if is_disturbed(self.others):
            return f"others used {percent_text(self.others or 0)}"
        return f"other processes on one GPU: {self.processes}" if self.processes else ""

    @property
    def at_pace(self) -> float | None:
        """The speedup corrected to the host's pace in the baseline; None if the pace was the same or is not known."""
        if not self.speed or self.drift is None or 1 / (1 + UNEVEN) <= self.drift <= 1 + UNEVEN:
            return None
        return at_pace(self.speed.ratio, self.drift)

    @property
    def state(self) -> str:
        """The status without the part that changes with every step, so that charts do not change with it."""
        return self.status.partition(":")[0]

    @property
    def of_ideal(self) -> float | None:
        """Speedup as a part of the ideal speedup."""
        return self.speed.ratio / self.ideal if self.speed and self.ideal else None

    @property
    def bubble(self) -> float | None:
        """The bubble's share of the traced step."""
        return self.result.breakdown.share("bubble") if self.result and self.result.breakdown else None

    @property
    def communication(self) -> float | None:
        """Share of the traced step that is communication not hidden by computing."""
        return self.result.breakdown.share("communication") if self.result and self.result.breakdown else None


MAX_TICK = 28
"""Characters of a row's label that is cut: its middle is left out, as labels differ at their ends."""
WHOLE_TICK = 32
"""Up to so many, a label stays whole: that it is cut costs the reader more than it gives the bars."""


def ticks(entries: Sequence[Entry]) -> list[str]:
    """The rows' labels in a figure, as `row_labels`; the baseline is bold."""
    texts = row_labels([entry.name for entry in entries])
    return [f"<b>{text}</b>" if entry.baseline else text for entry, text in zip(entries, texts, strict=True)]


def named_by(entries: Sequence[Entry]) -> str:
    """The fields by which the entries' short names are to be read; '' where all names are whole."""
    return next((entry.fields for entry in entries if entry.fields), "")


def rows_said(entries: Sequence[Entry]) -> str:
    """What a subtitle adds about the labels of the rows."""
    fields = named_by(entries)
    return f"; rows: {fields}" if fields else ""


def run_column(entries: Sequence[Entry]) -> str:
    """The heading of the column with the entries' names."""
    fields = named_by(entries)
    return f"run: {fields}" if fields else "run"


def column_of_runs(columns: Sequence[str]) -> int | None:
    """The place of the column that `run_column` heads; None if no row is of a run."""
    return next((i for i, name in enumerate(columns) if name == "run" or name.startswith("run: ")), None)


def row_labels(names: Sequence[str]) -> list[str]:
    """Names as labels of a figure, escaped; long ones are cut, but not one that would then be as another, nor one that
    is no longer than that."""
    short = [cut(name) for name in names]
    alike = {text for text, count in Counter(short).items() if count > 1}
    whole = max((len(name) for name, text in zip(names, short, strict=True) if text in alike), default=0)
    return [escape_label(name if len(name) <= whole else text) for name, text in zip(names, short, strict=True)]


def cut(label: str) -> str:
    """The label without its middle, if it is longer than WHOLE_TICK."""
    if len(label) <= WHOLE_TICK:
        return label
    head = MAX_TICK // 2
    return f"{label[:head].rstrip()}…{label[head + 1 - MAX_TICK :].lstrip()}"


def pairs(entries: Sequence[Entry]) -> list[tuple[Entry, Entry]]:
    """Returns (plain, recomputing) runs that differ in nothing else; where there are several plain runs, the first."""
    plain = {e.twin: e for e in reversed(entries) if e.twin and not e.recompute}
    return [(plain[e.twin], e) for e in entries if e.recompute and e.twin in plain]


def standing(entries: Sequence[Entry]) -> list[Entry]:
    """Returns the entries that get a row in charts of results.

    Runs that ended without a result get none; tables and verdicts name them.
    """
    return [entry for entry in entries if not entry.ended]


def row_height(count: int) -> int:
    """Pixels for a chart of `count` rows: 330 (the first screen) for 5 to 12 of them, less for few, more for many."""
    return max(22 * count + 48, min(330, 56 * count + 64))
