"""The zero-bubble tables of one model on the Accuracy page: predicted bubble rates, and orders found by our search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallel_core.analysis.quantities import minus_text, plural_text
from parallel_core.plan.cluster.published_orders import LIMITS, Searched
from parallel_core.plan.cluster.zero_bubble import PREDICTED, BubbleRow
from parallel_core.searches.bubbles import Answer


@dataclass(frozen=True)
class Table:
    """`title` = its finding; the first cell of a row names the row."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables_of(model: str, found: Answer) -> list[Table]:
    """The tables of what was predicted and what was searched for one model."""
    return [_predicted(model, found.predicted), _found(model, found.orders)]


def _predicted(model: str, rows: Sequence[BubbleRow]) -> Table:
    worst = max(abs(row.points(name)) for row in rows for name in PREDICTED)
    columns = ["micro-batches", "T_W derived (profiled)", "T_comm derived (profiled)", *PREDICTED]
    title = f"{model}: {plural_text(len(rows), 'row')}, worst {worst:.2f} percentage points"
    return Table(title, columns, [_cells(row) for row in rows])


def _cells(row: BubbleRow) -> list[str]:
    derived = [
        f"{_percent(row.weights)} ({_percent(row.profiled_weights)})",
        f"{_percent(row.message)} ({_percent(row.profiled_message)})",
    ]
    rates = (_against(row.predicted[name], row.measured[name], row.points(name)) for name in PREDICTED)
    return [_row_name(row), *derived, *rates]


def _found(model: str, every: Sequence[Searched]) -> Table:
    longer, equal = sum(one.longer for one in every), sum(one.equal for one in every)
    shorter = len(every) - longer - equal
    title = (
        f"{model}, our order against the published automatic scheduler at equal memory: "
        f"shorter in {shorter} of {len(every)}, equal in {equal}, longer in {longer or 'none'}"
    )
    columns = ["micro-batches", *(f"room for {times}p, {name}" for name, times in LIMITS.items()), "no order below"]
    pairs = [every[i : i + len(LIMITS)] for i in range(0, len(every), len(LIMITS))]
    return Table(title, columns, [_pair(pair) for pair in pairs])


def _pair(pair: Sequence[Searched]) -> list[str]:
    rates = (_against(one.found, one.published, one.points) for one in pair)
    return [_row_name(pair[0]), *rates, ", ".join(_percent(one.least) for one in pair)]


def _row_name(row: BubbleRow | Searched) -> str:
    return f"{row.stages} stages, {row.micro_batches}"


def _against(ours: float, published: float, points: float) -> str:
    return f"{_percent(ours)} against {_percent(published)} ({_points(points)})"


def _points(points: float) -> str:
    """A difference in percentage points with its sign; without one where it rounds to zero."""
    text = f"{points:+.2f}"
    return "0.00" if float(text) == 0 else minus_text(text)


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"
