"""What the page of a trace shows: its sentence, the Gantt chart and breakdown of a step, the largest operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import mean
from typing import Any

from django.core.cache import cache
from django.urls import reverse

from dashboard.charts import breakdown as chart_of_breakdown
from dashboard.charts.chart import Chart, Entry
from dashboard.charts.heatmap import Window
from dashboard.charts.timeline import Lit, Step, kept
from dashboard.runs.findings import place_address, place_text
from dashboard.runs.form.form_words import in_form_words
from dashboard.traces.models import Trace
from dashboard.traces.spans import step_of, world_of
from parallel_core.analysis.diagnosis import recorded
from parallel_core.analysis.diagnosis.case import Finding
from parallel_core.analysis.diagnosis.imported import RULES, diagnose
from parallel_core.analysis.diagnosis.place import place
from parallel_core.analysis.gaps import gaps
from parallel_core.analysis.quantities import (
    count_text,
    few_text,
    ns_text,
    percent_text,
    plural_text,
    ranks_text,
    seconds_text,
    step_text,
)
from parallel_core.analysis.sentences import Result
from parallel_core.analysis.stats import Stats
from parallel_core.traces.profiled_cycles import summed
from parallel_core.traces.trainyard_export import NO_SPEC

DRAWN_RANKS = 32
JUDGED = 5
"""The most steps that rules judge: the shown one and those next to it."""
KEPT_S = 3600
MOSTLY = 0.5
"""If short pauses make up at least this part of the time without spans, the sentence says so."""


@dataclass(frozen=True)
class OfTrace:
    """What the rules find, each as (finding, effect, place, address of the place); `why_not` if none applied."""

    found: list[tuple[Finding, str, str, str]] = field(default_factory=list)
    why_not: str = ""
    rules: int = len(RULES)
    over: str = ""
    """The steps that were judged, if there are several: findings are then medians, not of the shown step."""


def sentence(trace: Trace, step: int, found: Step) -> str:
    """What was found in a step, and what is missing of it; with the spec of its run, no time is called untraced."""
    said = found.finding(partial(_uncovered, found) if trace.spec is None else None)
    return " ".join(filter(None, (said, missing(trace, step))))


def _uncovered(found: Step, other: float) -> str:
    """What the time without spans is. The number and length of pauses are told by the finding, for several steps
    (`diagnosis.imported`)."""
    pauses = mean([gaps(rows).ns for rows in found.spans.values()])
    return "idle or not traced" + (", mostly short pauses between operations" if pauses >= MOSTLY * other else "")


def missing(trace: Trace, step: int) -> str:
    """What of a step was not read, which then looks idle; '' if all of it was."""
    if trace.recorded:
        here = sum(rank["steps"].get(str(step), 0) for rank in trace.ranks.values())
        of = trace.recorded.get("spans", {}).get(str(step), 0)
        return f"{count_text(here)} of its {count_text(of)} spans are here: what is missing looks idle." * (here < of)
    cut = sorted(int(rank) for rank, own in trace.ranks.items() if own.get("partial"))
    return f"Part of what {ranks_text(cut)} recorded could not be read: what is missing looks idle." if cut else ""


def notes(trace: Trace) -> list[str]:
    """Notes on a trace, with the form's labels for fields of its run."""
    return [in_form_words(note) if note.startswith(NO_SPEC) else note for note in trace.notes]


def _least(found: Step, word: str) -> str:
    """Which rank is idle most, or that all are alike; `word` = what to call that."""
    idle = _idle(found)
    rank = _most(idle)
    if len(idle) == 1:
        return f"{percent_text(idle[rank])} of the step is {word}"
    if len({percent_text(share) for share in idle.values()}) == 1:
        return f"Each rank is {word} for {percent_text(idle[rank])} of its step"
    return f"Rank {rank} is {word} most: {percent_text(idle[rank])} of its step"


def _idle(found: Step) -> dict[int, float]:
    """Share of the step in which each rank is idle."""
    return {rank: parts.share("other") + parts.share("bubble") for rank, parts in found.breakdown.items()}


def _most(values: Mapping[int, float]) -> int:
    """The (first) rank with the largest value."""
    return max(values, key=lambda rank: values[rank])


def _drawn(values: Mapping[int, float]) -> list[int]:
    """The ranks that are drawn: the first DRAWN_RANKS, of which the last gives way to the rank with the largest value,
    which the title names."""
    ranks, most = sorted(values), _most(values)
    return ranks[:DRAWN_RANKS] if most in ranks[:DRAWN_RANKS] else [*ranks[: DRAWN_RANKS - 1], most]


def _part(ranks: int) -> str:
    """How many of the ranks are drawn; '' for all."""
    return f", {DRAWN_RANKS} of {ranks} ranks" if ranks > DRAWN_RANKS else ""


def timeline(trace: Trace, step: int, window: Window | None = None, lit: Lit | None = None) -> Chart:
    """The chart of a step, with at most DRAWN_RANKS ranks; a long step can be zoomed, `lit` is outlined (see
    `charts.timeline`)."""
    found = step_of(trace, step)
    many = len(found.spans) > DRAWN_RANKS
    drawn = found
    if many:
        drawn = kept(("drawn", trace.pk, step), lambda: found.part(_drawn(_idle(found))))
    word = "idle" if trace.spec else "idle or not traced"
    made = drawn.chart(
        _least(found, word), f"{source_of(trace)}, {step_text(step)}{_part(len(found.spans))}", window, lit
    )
    if drawn.long:
        made.figure["layout"]["meta"]["window"] = f"{reverse('traces:gantt', args=(trace.pk,))}?step={step}"
        made.figure["layout"]["meta"]["window"] += f"&lit={lit.query}" if lit else ""
    return made


def source_of(trace: Trace) -> str:
    """Where the trace's spans are from, in words."""
    ranks = trace.ranks.values()
    files = len({rank["file"] for rank in ranks}) if trace.recorded else sum(rank.get("files", 1) for rank in ranks)
    return "as recorded by its run" if trace.spec else f"imported from {plural_text(files, 'file')}"


def where(found: Step, source: str, *, recorded: bool = False) -> Chart:
    """The breakdown of the step of each rank, of at most DRAWN_RANKS; `recorded`: its run recorded the spans, so that
    none is missing."""
    steps = {rank: parts.total / 1e9 for rank, parts in found.breakdown.items()}
    entries = [
        Entry(name, result=Result(name, Stats(s, s, s, s, 1), breakdown=found.breakdown[rank]))
        for rank, name, s in ((rank, f"rank {rank}", steps[rank]) for rank in _drawn(steps))
    ]
    made = chart_of_breakdown.chart(entries, _longest(steps), source + _part(len(steps)))
    made.figure["layout"]["xaxis"]["title"]["text"] = "ms"
    grey = "" if recorded else "; grey: reading data, and what is idle or not traced, which is hatched above"
    return replace(made, subtitle=f"Where the step of each rank goes, in ms: parts add up to it{grey}")


def _longest(steps: Mapping[int, float]) -> str:
    """Which rank's step is the longest (seconds by rank), or that all are equally long."""
    rank = _most(steps)
    if len(steps) == 1:
        return f"One step of rank {rank}"
    if len({seconds_text(step) for step in steps.values()}) == 1:
        return f"{seconds_text(steps[rank])}: the step of each rank is as long"
    return f"The longest step is that of rank {rank}: {seconds_text(steps[rank])}"


def findings(trace: Trace, step: int) -> OfTrace:
    """Findings in `step` and the steps around it; of long steps only in `step`."""
    key = f"trace-findings-placed:{trace.pk}:{step}"
    kept: OfTrace | None = cache.get(key)
    if kept is None:
        kept = _judged(trace, step)
        cache.set(key, kept, KEPT_S)
    return kept


def _judged(trace: Trace, step: int) -> OfTrace:
    near = sorted(trace.steps, key=lambda other: abs(other - step))[:JUDGED]
    steps = [step_of(trace, near[0])]
    if not steps[0].long:
        steps += [step_of(trace, other) for other in near[1:]]
    try:
        if trace.spec:
            found, rules = recorded.diagnose(trace.spec, [own.spans for own in steps], trace.recorded.get("others"))
        else:
            found = diagnose([own.spans for own in steps], [own.accounts for own in steps], world_of(trace))
            rules = len(RULES)
    except ValueError as error:
        return OfTrace(why_not=f"Nothing was judged: {error}.")
    over = few_text(sorted(near)) if len(steps) > 1 else ""
    return OfTrace([_placed(one, step, steps[0]) for one in found], rules=rules, over=over)


def _placed(one: Finding, step: int, shown: Step) -> tuple[Finding, str, str, str]:
    effect = f"up to {ns_text(one.effect_ns)} a step" if one.effect_ns else ""
    seen = place(one.rule, one.rank, shown.spans)
    return (one, effect, place_text(seen), place_address(step, seen)) if seen else (one, effect, "", "")


def largest(trace: Trace) -> list[dict[str, Any]]:
    """Operations by their time over all ranks: name, family, count, ms, and the share of all that are listed."""
    rows = summed(row for rank in trace.ranks.values() for row in rank["top"])[:20]
    most = sum(row["ns"] for row in rows) or 1
    return [row | {"time": ns_text(row["ns"], zeros=True), "share": percent_text(row["ns"] / most)} for row in rows]
