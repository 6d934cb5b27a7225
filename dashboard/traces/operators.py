"""Compares ranks of an imported trace operation by operation: what the host started (ATen), and what the device did.

For a step exported by a yard, the operations of its run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db.models import QuerySet
from django.http import Http404

from dashboard.runs.page.operators import SHOWN, around_differences, compared, folded, status_words, two_ranks
from dashboard.traces.models import Trace, TraceSpans
from dashboard.traces.spans import Spans, spans
from parallel_core.analysis import align
from parallel_core.analysis.align import Alignment, Name
from parallel_core.analysis.quantities import count_text
from parallel_core.spec import RunSpec
from parallel_core.traces.kineto import SEQUENCE

LEVELS = {"operators": "operators (ATen)", "kernels": "kernels"}
NAMED = 3
"""The most names on one side only that the sentence mentions."""
LONGEST = 90


_LAUNCHED = "Outermost operators as the host began them, kernels as it launched them."
_ON_DEVICE = (
    "Outermost operators as the host began them, kernels as the device did; upload the trace again to compare those as "
    "they were launched."
)
"""For names that an older version kept: without their number, kernels by when they began."""


@dataclass(frozen=True)
class Side:
    """What a page shows of two ranks; `rows` are (status, its word, left, right)."""

    sentence: str = ""
    why_not: str = ""
    ranks: list[int] = field(default_factory=list)
    a: int = 0
    b: int = 0
    level: str = "operators"
    levels: dict[str, str] = field(default_factory=dict)
    rows: Sequence[tuple[str, str, str, str]] = ()
    total: int = 0
    foot: str = _LAUNCHED

    @property
    def shown(self) -> int:
        """Number of operations in `rows`, of which several with the same name may be one row."""
        return min(SHOWN, self.total)

    @property
    def which(self) -> str:
        """Which those in `rows` are, where they are not all."""
        if self.shown == self.total:
            return ""
        return ", around the first difference" if any(row[0] != "same" for row in self.rows) else ", the first"


def side_by_side(trace: Trace, step: int, given: Mapping[str, Any]) -> Side:
    """`?a=` and `?b=` are ranks, `?level=` one of LEVELS. Raises Http404 if the trace has been deleted since it was
    read."""
    if trace.trained is not None:
        return _recorded(trace.trained, spans(trace, step), given)
    if trace.recorded:
        return Side(why_not="Its operations are distinguished by the spec of its run, which did not come with it.")
    rows_of = trace.spans.filter(step=step)
    levels = {level: words for level, words in LEVELS.items() if _has_names(rows_of, level)}
    if not levels:
        return Side(why_not="The names of this trace's operations were not kept; upload it again to compare its ranks.")
    ranks = sorted(rows_of.values_list("rank", flat=True))
    if not ranks:
        raise Http404(f"trace {trace.pk} was deleted")
    if len(ranks) == 1:
        return Side(why_not=f"It has rank {ranks[0]} alone: upload files of several ranks together to compare them.")
    level = str(given.get("level") if given.get("level") in levels else next(iter(levels)))
    a, b = two_ranks(ranks, given)
    stored = rows_of.filter(rank__in=(a, b)).values_list("rank", f"names__{level}", f"names__begun__{level}")
    kept = {rank: (names or [], begun or 0) for rank, names, begun in stored}
    if not {a, b} <= kept.keys():
        raise Http404(f"trace {trace.pk} was deleted")
    found, names = _aligned(kept[a][0], kept[b][0])
    who = (f"rank {a}", f"rank {b}")
    said = status_words(who)
    rows = folded(
        (row.status, said[row.status], _word(names, row.a), _word(names, row.b)) for row in around_differences(found)
    )
    sentence = _sentence(found, names, who, LEVELS[level]) + _cut((kept[a], kept[b]), who)
    older = any(names and not begun for names, begun in kept.values())
    return Side(sentence, "", ranks, a, b, level, levels, rows, len(found.rows), _ON_DEVICE if older else _LAUNCHED)


def _has_names(rows: QuerySet[TraceSpans], level: str) -> bool:
    return rows.filter(**{f"names__{level}__0__isnull": False}).exists()


def _cut(kept: Sequence[tuple[Sequence[str], int]], who: tuple[str, str]) -> str:
    """Of how many in all on both ranks they are the first, where only SEQUENCE are kept; `kept`: names, and how many
    there were (0: not known)."""
    if not any(many > SEQUENCE or (not many and len(names) == SEQUENCE) for names, many in kept):
        return ""
    of = " and ".join(f"{count_text(many)} on {rank}" for (_, many), rank in zip(kept, who, strict=True) if many)
    return f" These are the first {count_text(SEQUENCE)} of the step{', of ' * bool(of)}{of}."


def _recorded(spec: RunSpec, found: Spans, given: Mapping[str, Any]) -> Side:
    """For a step exported by a yard: as on the page of its run."""
    ranks = sorted(found)
    if len(ranks) == 1:
        return Side(why_not=f"It has rank {ranks[0]} alone, which there is nothing to compare with.")
    a, b = two_ranks(ranks, given)
    left, right = (align.Side(spec, rank, found[rank]) for rank in (a, b))
    aligned, sentence, rows = compared(left, right, (f"rank {a}", f"rank {b}"))
    foot = "Operations are named by kind and by micro-batch within their replica."
    return Side(sentence, "", ranks, a, b, "", {}, rows, len(aligned.rows), foot)


def _aligned(left: Sequence[str], right: Sequence[str]) -> tuple[Alignment, list[str]]:
    """The alignment, in which operations are indices into the names; and the names."""
    names = list(dict.fromkeys([*left, *right]))
    number = {name: i for i, name in enumerate(names)}
    return align.align(*([(number[name], 0, -1) for name in side] for side in (left, right))), names


def _word(names: Sequence[str], operation: Name | None) -> str:
    return names[operation[0]][:LONGEST] if operation else ""


def _sentence(found: Alignment, names: Sequence[str], who: tuple[str, str], what: str) -> str:
    if found.equal:
        return f"The same {found.same} {what} in the same order on {who[0]} and {who[1]}."
    parts = [f"{found.same} {what} are the same"]
    parts += [f"{found.moved} stand elsewhere in the order"] if found.moved else []
    for count, status, rank in ((found.only_a, "only_a", who[0]), (found.only_b, "only_b", who[1])):
        if count:
            own = Counter(_word(names, row.a or row.b) for row in found.rows if row.status == status)
            most = ", ".join(name[:40] for name, _ in own.most_common(NAMED))
            parts.append(f"{count} are only on {rank} ({most}{', …' if len(own) > NAMED else ''})")
    return f"{', '.join(parts)}."
