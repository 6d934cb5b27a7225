"""The Operators tab: the operations of two ranks of a run, or of one rank in two runs, aligned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from dashboard.numbers import number
from dashboard.runs import selectors, traces
from dashboard.runs.models import Run
from dashboard.runs.traces import Trace
from parallel_core.analysis.align import Alignment, Name, Row, Side, align_sides, sentence
from parallel_core.schedule.ir import Kind
from parallel_core.schedule.text import WORDS

SHOWN = 300
"""The most rows of the table."""


def status_words(names: Sequence[str]) -> dict[str, str]:
    """Status of a row -> its word, for two sides with these names."""
    only = {f"only_{side}": f"only on {name}" for side, name in zip("ab", names, strict=True)}
    return {"same": "same", "moved_a": "moved", "moved_b": "moved"} | only


def context(run: Run, step: int | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """`?a=` and `?b=` are ranks; `?other=` is another run, of which `b` is then a rank."""
    mine = traces.trace(run, step)
    other_run = _other(given.get("other"))
    other = mine if other_run is None else traces.typical(other_run) or traces.trace(other_run, None)
    if mine is None or other is None:
        return {"operators": None, "dropped": selectors.dropped_text(run, step) if mine is None else ""}
    a, b = _rank(given.get("a"), mine, 0), _rank(given.get("b"), other, 0 if other_run else min(1, max(other.spans)))
    names = (f"rank {a}", f"rank {b}" if other_run is None else f"rank {b} of run {other_run.pk}")
    found, said, rows = compared(_side(mine, a), _side(other, b), names)
    return {
        "operators": found,
        "operators_sentence": said,
        "operator_rows": rows,
        "operator_names": names,
        "operator_ranks": [sorted(mine.spans), sorted(other.spans)],
        "rank_a": a,
        "rank_b": b,
        "other_run": other_run,
        "shown": min(SHOWN, len(found.rows)),
        "operators_step": mine.step,
    }


def compared(a: Side, b: Side, names: tuple[str, str]) -> tuple[Alignment, str, list[tuple[str, str, str, str]]]:
    """Both sides aligned, the sentence about them, and rows (status, its word, left, right)."""
    found = align_sides(a, b)
    return found, sentence(a, b, found, names), _rows(found, status_words(names))


def _other(text: Any) -> Run | None:
    """The run named in the query; None if there is no such run."""
    return Run.objects.filter(pk=asked).first() if (asked := number(text)) is not None else None


def _rank(text: Any, trace: Trace, usual: int) -> int:
    return next((rank for rank in (number(text), usual) if rank is not None and rank in trace.spans), min(trace.spans))


def _side(trace: Trace, rank: int) -> Side:
    return Side(trace.trained, rank, trace.spans[rank])


def around_differences(found: Alignment) -> list[Row]:
    """All rows, or if there are more than SHOWN, those around the first difference."""
    rows = list(found.rows)
    if len(rows) <= SHOWN:
        return rows
    first = next((i for i, row in enumerate(rows) if row.status != "same"), 0)
    begin = max(0, min(first - 5, len(rows) - SHOWN))
    return rows[begin : begin + SHOWN]


def _rows(found: Alignment, said: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    """(status, its word, left, right) of each row shown."""
    return folded((row.status, said[row.status], _words(row.a), _words(row.b)) for row in around_differences(found))


def folded(rows: Iterable[tuple[str, str, str, str]]) -> list[tuple[str, str, str, str]]:
    """Joins equal consecutive rows (a batch norm's in every layer) into one, with their number."""
    out = []
    for (status, word, *sides), same in groupby(rows):
        times = f" x {count}" if (count := len(list(same))) > 1 else ""
        left, right = (f"{side}{times}" if side else "" for side in sides)
        out.append((status, word, left, right))
    return out


def _words(name: Name | None) -> str:
    if name is None:
        return ""
    kind, chunk, micro_batch = name
    which = f" {micro_batch}" if micro_batch >= 0 else ""
    where = f", chunk {chunk}" if chunk else ""
    return f"{WORDS.get(Kind(kind), Kind(kind).name)}{which}{where}"
