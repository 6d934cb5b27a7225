"""The Operators tab: the operations of two ranks of a run, or of one rank in two runs, aligned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from dashboard.numbers import number
from dashboard.runs import selectors
from dashboard.runs.models import Run
from dashboard.runs.tracing import traces
from dashboard.runs.tracing.traces import Trace
from parallel_core.analysis.align import Alignment, Name, Row, Side, align_sides, sentence
from parallel_core.analysis.quantities import few_text, sentence_text, step_text
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
    if other_run is None and len(mine.spans) == 1:
        return {"operators": None, "alone": _alone(mine)}
    ranks = [sorted(mine.spans), sorted(other.spans)]
    apart = (_rank(given, name, of) for name, of in zip("ab", ranks, strict=True))
    a, b = two_ranks(ranks[0], given) if other_run is None else apart
    names = (f"rank {a}", f"rank {b}" if other_run is None else f"rank {b} of run {other_run.pk}")
    found, said, rows = compared(_side(mine, a), _side(other, b), names)
    return {
        "operators": found,
        "operators_sentence": said,
        "operator_rows": rows,
        "operator_names": names,
        "operator_ranks": ranks,
        "rank_a": a,
        "rank_b": b,
        "other_run": other_run,
        "shown": min(SHOWN, len(found.rows)),
        "operators_step": mine.step,
        "operators_of": _recorded_by(mine),
    }


def compared(a: Side, b: Side, names: tuple[str, str]) -> tuple[Alignment, str, list[tuple[str, str, str, str]]]:
    """Both sides aligned, the sentence about them, and rows (status, its word, left, right)."""
    found = align_sides(a, b)
    return found, sentence(a, b, found, names), _rows(found, status_words(names))


def _other(text: Any) -> Run | None:
    """The run named in the query; None if there is no such run."""
    return Run.objects.filter(pk=asked).first() if (asked := number(text)) is not None else None


def two_ranks(ranks: Sequence[int], given: Mapping[str, Any]) -> tuple[int, int]:
    """`?a=` and `?b=`; in place of one that is not among `ranks`, of which there are two or more, the first that is not
    the other one."""
    a, b = ((rank if rank in ranks else None) for rank in (number(given.get("a")), number(given.get("b"))))
    a = next(rank for rank in ranks if rank != b) if a is None else a
    return a, next(rank for rank in ranks if rank != a) if b is None else b


def _rank(given: Mapping[str, Any], name: str, ranks: Sequence[int]) -> int:
    asked = number(given.get(name))
    return asked if asked is not None and asked in ranks else ranks[0]


def _recorded_by(trace: Trace) -> str:
    """Which ranks of the run have spans of the step, as a sentence; '' if all have."""
    if len(trace.spans) == trace.layout.world:
        return ""
    here, why = sorted(trace.spans), selectors.missing_text(trace.run, trace.step)
    which = f"{len(here)} of {trace.layout.world} ranks are here: {few_text(here)}"
    said = f"Of {step_text(trace.step)}, the spans of {which}."
    return f"{said} {sentence_text(why)}" if why else said


def _alone(trace: Trace) -> str:
    """Why the only rank with spans of the step is compared with no other."""
    if trace.layout.world == 1:
        return "The run has one rank. Compare it with another run to see one of its ranks beside it."
    return f"{_recorded_by(trace)} Choose a step that two ranks recorded."


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
