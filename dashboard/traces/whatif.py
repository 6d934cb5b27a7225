"""What-if for imported traces in general: a step replayed with faster links or devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlencode

from django import forms

from dashboard.charts import gantt
from dashboard.charts.chart import Chart
from dashboard.charts.gantt_bars import length
from dashboard.charts.gantt_words import REPLAYED
from dashboard.charts.timeline import Step
from dashboard.runs.tracing.whatif_form import ChangeForm
from dashboard.runs.tracing.whatif_replay import Times
from dashboard.runs.tracing.whatif_words import check, effect, gain_text, speedup
from parallel_core.analysis.meetings import Groups, named
from parallel_core.analysis.quantities import ns_text, significant, step_text
from parallel_core.schedule.ir import Kind
from parallel_core.simulate.imported import replayed
from parallel_core.simulate.replay import FREE

IDEAS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Free communication", {"links": "free"}),
    ("Links 2 times as fast", {"links": "2"}),
    ("Links 4 times as fast", {"links": "4"}),
    ("A device twice as fast", {"device": 2}),
    ("Both: links and device twice as fast", {"links": "2", "device": 2}),
)
DRAWN_RANKS = 8


@dataclass(frozen=True)
class WhatIf:
    """What the page shows; `why_not` if nothing can be predicted."""

    why_not: str = ""
    form: forms.Form | None = None
    known: str = ""
    """What was recovered of a pipeline, and how certain that is; for other jobs whether their collectives are."""
    sentence: str = ""
    check: str = ""
    foot: str = (
        "Each span follows what ended last before it on its rank; collectives end for all ranks together. Schedules "
        "and micro-batches are not changed: these ranks are no pipeline."
    )
    ideas: list[dict[str, Any]] = field(default_factory=list)
    times: Times | None = None
    chart: Chart | None = None


def whatif(found: Step, step: int, given: Mapping[str, Any], groups: Groups | None = None) -> WhatIf:
    """The what-if of one step; `given` = the page's query, `groups` = the process groups of its collectives
    (None: not kept)."""
    form = ChangeForm(given, len(found.spans))
    replay = partial(replayed, found.spans, groups=groups)
    try:
        unchanged = length(replay())
        ideas = _ideas(replay, len(found.spans) == 1, step, unchanged)
        made = replay(*form.factors()) if form.is_valid() else None
    except ValueError as error:
        return WhatIf(f"No what-if of this step: {error}.")
    measured, known = length(found.spans), _rough(found, groups)
    said = check(unchanged, measured)
    if made is None:
        return WhatIf(form=form, known=known, check=said, ideas=ideas, times=Times(measured, unchanged, None))
    took = length(made)
    return WhatIf(
        form=form,
        known=known,
        sentence=_sentence(form, measured, took),
        check=said,
        ideas=ideas,
        times=Times(measured, unchanged, took),
        chart=_chart(found, made, step),
    )


def _rough(found: Step, groups: Groups | None) -> str:
    """That it is not known which collectives meet; '' where it is, or nothing can meet."""
    meets = len(found.spans) > 1 and any((rows["kind"] == Kind.BUCKET).any() for rows in found.spans.values())
    if not meets or named(found.spans, groups or {}):
        return ""
    why = _UNNAMED if groups is not None else _NOT_KEPT
    return f"Roughly: {why}, so the first of one rank is taken for the first of all ranks, and so on."


_UNNAMED = "nothing names the process groups of its collectives"
_NOT_KEPT = "the process groups of its collectives were not kept (upload it again for those that it names)"


def _ideas(replay: Callable[..., dict[int, Any]], alone: bool, step: int, measured: int) -> list[dict[str, Any]]:
    """The gain of each of IDEAS; without those about links for a rank that is `alone`."""
    out = []
    for words, asked in IDEAS:
        form = ChangeForm(asked, 2)
        if (alone and "links" in asked) or not form.is_valid():
            continue
        took = length(replay(*form.factors()))
        said = gain_text(speedup(measured, took))
        idea = {"words": words, "address": urlencode({"step": step, **asked}), "asked": asked}
        out.append(idea | {"step": ns_text(took, zeros=True), "ns": took, "gain": said})
    return out


def _sentence(form: ChangeForm, measured: int, took: int) -> str:
    links, device = form.factors()
    said = [
        *(["free communication"] if links == FREE else [f"links {links:g} times as fast"] if links != 1 else []),
        *([f"a device {significant(device)} times as fast"] if device != 1 else []),
    ]
    return effect(said, measured, took)


def _drawn(measured: Mapping[int, Any], made: Mapping[int, Any]) -> list[int]:
    """The first DRAWN_RANKS ranks, of which the last give way to those that end the measured step and its replay, as
    both lengths in the title are theirs."""
    ends = {_last(measured), _last(made)}
    others = [rank for rank in sorted(measured) if rank not in ends]
    return sorted([*ends, *others[: DRAWN_RANKS - len(ends)]])


def _last(spans: Mapping[int, Any]) -> int:
    """The (first) rank that ends last."""
    ends = {rank: int(rows["end"].max()) if len(rows) else 0 for rank, rows in sorted(spans.items())}
    return max(ends, key=lambda rank: ends[rank])


def _chart(found: Step, made: Mapping[int, Any], step: int) -> Chart | None:
    """Measured over predicted; None for a step too long for bars."""
    if found.long:
        return None
    drawn = _drawn(found.spans, made)
    both = (("measured", found.spans), ("predicted", made))
    runs = [(name, {rank: spans[rank] for rank in drawn}) for name, spans in both]
    title = f"{ns_text(length(found.spans))} measured, {ns_text(length(made))} predicted"
    part = f", {len(drawn)} of {len(found.spans)} ranks" if len(found.spans) > len(drawn) else ""
    source = f"{step_text(step)}, measured and replayed{part}"
    return gantt.chart(runs, title, source, key="whatif", what=REPLAYED, predicted=(1,))
