"""What-if for imported traces in general: a step replayed with faster links or devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from django import forms

from dashboard.charts import gantt
from dashboard.charts.chart import Chart
from dashboard.charts.gantt_bars import length
from dashboard.charts.gantt_words import REPLAYED
from dashboard.charts.timeline import Step
from dashboard.runs.whatif_form import ChangeForm
from dashboard.runs.whatif_replay import Times
from dashboard.runs.whatif_words import check, effect, gain_text, speedup
from parallel_core.analysis.quantities import ns_text, significant
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
    """What was recovered of a pipeline, and how certain that is; '' for other jobs."""
    sentence: str = ""
    check: str = ""
    foot: str = (
        "Each span follows what ended last before it on its rank; collectives end for all ranks together. Schedules "
        "and micro-batches are not changed: these ranks are no pipeline."
    )
    ideas: list[dict[str, Any]] = field(default_factory=list)
    times: Times | None = None
    chart: Chart | None = None


def whatif(found: Step, step: int, given: Mapping[str, Any]) -> WhatIf:
    """The what-if of one step; `given` = the page's query."""
    form = ChangeForm(given, len(found.spans))
    try:
        unchanged = length(replayed(found.spans))
        ideas = _ideas(found, step, unchanged)
        made = replayed(found.spans, *form.factors()) if form.is_valid() else None
    except ValueError as error:
        return WhatIf(f"No what-if of this step: {error}.")
    measured = length(found.spans)
    said = check(unchanged, measured)
    if made is None:
        return WhatIf(form=form, check=said, ideas=ideas, times=Times(measured, unchanged, None))
    took = length(made)
    return WhatIf(
        form=form,
        sentence=_sentence(form, measured, took),
        check=said,
        ideas=ideas,
        times=Times(measured, unchanged, took),
        chart=_chart(found, made, step),
    )


def _ideas(found: Step, step: int, measured: int) -> list[dict[str, Any]]:
    out = []
    for words, asked in IDEAS:
        form = ChangeForm(asked, 2)
        if (len(found.spans) == 1 and "links" in asked) or not form.is_valid():
            continue
        took = length(replayed(found.spans, *form.factors()))
        said = gain_text(speedup(measured, took))
        idea = {"words": words, "address": urlencode({"step": step, **asked}), "asked": asked}
        out.append(idea | {"step": ns_text(took), "ns": took, "gain": said})
    return out


def _sentence(form: ChangeForm, measured: int, took: int) -> str:
    links, device = form.factors()
    said = [
        *(["free communication"] if links == FREE else [f"links {links:g} times as fast"] if links != 1 else []),
        *([f"a device {significant(device)} times as fast"] if device != 1 else []),
    ]
    return effect(said, measured, took)


def _chart(found: Step, made: Mapping[int, Any], step: int) -> Chart | None:
    """Measured over predicted; None for a step too long for bars."""
    if found.long:
        return None
    first = sorted(found.spans)[:DRAWN_RANKS]
    both = (("measured", found.spans), ("predicted", made))
    runs = [(name, {rank: spans[rank] for rank in first}) for name, spans in both]
    title = f"{ns_text(length(found.spans))} measured, {ns_text(length(made))} predicted"
    part = f", {len(first)} of {len(found.spans)} ranks" if len(found.spans) > len(first) else ""
    source = f"step {step}, measured and replayed{part}"
    return gantt.chart(runs, title, source, key="whatif", what=REPLAYED, predicted=(1,))
