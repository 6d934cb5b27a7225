"""The What if tab: the traced step simulated with a change, and what each change alone would bring."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from dashboard.ledger.models import Prediction
from dashboard.runs.models import Run
from dashboard.runs.places import together_of
from dashboard.runs.selectors import newest_traced_step
from dashboard.runs.tracing import traces
from dashboard.runs.tracing.traces import Trace
from dashboard.runs.tracing.whatif_range import can_run, likely, spread_text, which_step
from dashboard.runs.tracing.whatif_replay import CannotReplay, answer, chart, ideas, replayable
from dashboard.runs.tracing.whatif_words import check
from parallel_core.analysis.breakdown import Breakdown
from parallel_core.analysis.quantities import plural_text, ratio_text, sentence_text
from parallel_core.analysis.waits import gathers_aside
from parallel_core.simulate.ideal_limit import ideal_limit
from parallel_core.simulate.replay import ASSUMED, FREE, GATHERS_ASIDE, TAKE_TURNS, Change, Replay, replay


def context(run: Run, step: int | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The tab's context; without a whole traced step only the reason (`why_not`)."""
    try:
        trace = replayable(run, step)
    except CannotReplay as why:
        return {"why_not": str(why)}
    found = answer(trace, given)
    form, made, times = found.form, found.made, found.times
    said = [which_step(trace, step, newest_traced_step(run)), check(times.unchanged, times.measured), spread_text(run)]
    return {
        "form": form,
        "made": made is not None,
        "sentence": found.sentence,
        "likely": likely(trace, form.change(), made).text if made else "",
        "limit": _limit(trace),
        "chart": chart(trace.spans, trace.layout, times.measured, made, step=trace.step) if made else None,
        "run_address": run_address(run, form.change(), made) if made and not trace.run.injected else "",
        "settles": not Prediction.objects.filter(run=run, disturbed=True, left_out="").exists(),
        "ideas": ideas(trace),
        "check": " ".join(filter(None, said)),
        "assumed": _assumed(trace),
        "times": times,
        "whatif_step": trace.step,
    }


def _assumed(trace: Trace) -> str:
    """What a replay of the step assumes."""
    more = [(gathers_aside(trace.spans), GATHERS_ASIDE), (together_of(trace.run) > 1, TAKE_TURNS)]
    return " ".join([ASSUMED, *(words for true, words in more if true)])


def run_address(run: Run, change: Change, made: Replay) -> str:
    """The address of New run with the run's spec changed, if that changes only schedule and micro-batches; else ''."""
    if not can_run(change):
        return ""
    asked = made.spec.model_dump(mode="json", exclude_defaults=True)
    return f"{reverse('runs:new')}?{urlencode({'spec': json.dumps(asked), 'whatif': run.pk})}"


def _limit(trace: Trace) -> str:
    """The ideal speedup over one device with free communication and, if there is one, the bound for any number of
    devices."""
    if trace.spec.parallel.world == 1:
        return ""
    most = ideal_limit(trace.spec) if trace.spec.parallel.pp > 1 else None
    naive = trace.spec.parallel.schedule == "naive"  # its micro-batches do not overlap
    having = "the naive schedule" if naive else plural_text(most or 0, "micro-batch")
    bound = f"with {having} no number of {'stages' if naive else 'devices'} could pass {most}x." if most else ""
    base = traces.baseline(trace.run)
    if base is None:
        return sentence_text(bound)
    gain = trace.measured.step / replay(trace.trained, trace.measured, Change(links=FREE)).step
    reached = ratio_text(_speedup(trace, *base) * gain)
    ideal = f"{reached} of one device is the ideal speedup with free communication"
    return f"{ideal}; {bound}" if bound else f"{ideal}."


def _speedup(trace: Trace, single: Run, parts: Breakdown) -> float:
    """That of the run over one device: of the medians, as on its study's page, since any step may be an odd one; of
    traced steps while there is no median."""
    one, own = ((run.summary or {}).get("timed") for run in (single, trace.run))
    return float(one["median"] / own["median"] if one and own else parts.total / trace.measured.step)
