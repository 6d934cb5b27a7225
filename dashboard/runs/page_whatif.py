"""The What if tab: the traced step simulated with a change, and what each change alone would bring."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import numpy as np
from django import forms
from django.urls import reverse
from pydantic import ValidationError

from dashboard.charts import gantt
from dashboard.charts.chart import Chart
from dashboard.charts.gantt_words import REPLAYED
from dashboard.fields import Choice, Form, Number, WholeNumber
from dashboard.ledger.models import Prediction
from dashboard.runs import traces
from dashboard.runs.choice_labels import CHOICE_LABELS
from dashboard.runs.models import Run
from dashboard.runs.traces import Trace
from dashboard.runs.whatif_words import check, effect, gain_text, speedup
from parallel_core.analysis.quantities import ns_text, ratio_text, sentence_text, significant
from parallel_core.analysis.waits import waited_if_whole
from parallel_core.layout import Layout
from parallel_core.observe.records import LANES, SPAN
from parallel_core.schedule import names
from parallel_core.schedule.ir import Kind
from parallel_core.schedule.traits import flushes
from parallel_core.simulate.replay import ASSUMED, FREE, Change, Replay, ideal_limit, replay
from parallel_core.spec import RunSpec, field_errors

LINKS = (
    ("", "as measured"),
    *((f"{k:g}", f"{k:g} times as fast") for k in (1.5, 2, 3, 4, 6, 10, 20, 50, 100)),
    ("free", "free"),
)
"""Steps of the slider: the query has the keys."""
SLOWEST_FASTEST = "0.25 16"
"""Ends of the slider of a device's speed."""
TRIED = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v")
"""Schedules tried in the list of single changes."""


@dataclass(frozen=True)
class Times:
    """Nanoseconds of a step: measured, replayed unchanged, and replayed with the change (None if impossible)."""

    measured: float
    unchanged: float
    predicted: float | None


class ChangeForm(Form):
    """How many times as fast links and devices become, from the query; without `links` if there is only one rank."""

    links = Choice(label="Links", choices=LINKS, required=False)
    device = Number(label="Device, times as fast", min_value=0.1, max_value=100, required=False)

    def __init__(self, given: Mapping[str, Any], ranks: int) -> None:
        super().__init__(given, auto_id="w-%s", use_required_attribute=False)
        self.fields["device"].widget.attrs |= {"step": "any", "placeholder": "1", "data-slider": SLOWEST_FASTEST}
        self.fields["links"].widget.attrs["data-slider"] = ""
        if ranks == 1:
            del self.fields["links"]
        for name, field in self.fields.items():
            field.widget.attrs["aria-describedby"] = f"error-{name}"

    def factors(self) -> tuple[float, float]:
        """(links, device): how many times as fast each is."""
        links = self.cleaned_data.get("links") or "1"
        return FREE if links == "free" else float(links), self.cleaned_data.get("device") or 1.0


class WhatIfForm(ChangeForm):
    """The change to a step of a run; has only the fields that apply to its spec."""

    schedule = Choice(label="Schedule", required=False)
    micro_batches = WholeNumber(label="Micro-batches", min_value=1, max_value=4096, required=False)
    early_gradients = forms.BooleanField(label="Early gradients", required=False)
    balanced = forms.BooleanField(label="Balanced stages", required=False)
    no_recompute = forms.BooleanField(label="No recomputation", required=False)

    def __init__(self, spec: RunSpec, given: Mapping[str, Any]) -> None:
        super().__init__(given, spec.parallel.world)
        split = spec.parallel
        self.fields["schedule"].choices = [("", "as measured"), *((n, CHOICE_LABELS[n]) for n in names() if flushes(n))]  # type: ignore[attr-defined]
        self.fields["micro_batches"].widget.attrs["placeholder"] = str(split.micro_batches)
        if split.pp == 1:
            for name in ("schedule", "balanced", "micro_batches"):
                del self.fields[name]
        if split.pp == 1 or split.early_gradients:
            del self.fields["early_gradients"]
        if split.recompute == "none":
            del self.fields["no_recompute"]

    def change(self) -> Change:
        """The change as the simulator takes it. Needs a valid form."""
        asked, (links, device) = self.cleaned_data, self.factors()
        return Change(
            links=links,
            device=device,
            no_recompute=bool(asked.get("no_recompute")),
            balanced=bool(asked.get("balanced")),
            schedule=asked.get("schedule") or "",
            micro_batches=asked.get("micro_batches") or 0,
            early_gradients=bool(asked.get("early_gradients")),
        )


def context(run: Run, step: int | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The tab's context; without a whole traced step only the reason (`why_not`)."""
    trace = traces.trace(run, step)
    if trace is None:
        return {"why_not": "No traced step has arrived yet."}
    try:
        measured = trace.measured
    except ValueError as error:
        return {"why_not": sentence_text(str(error))}
    form = WhatIfForm(trace.trained, given)
    made = replayed(form, lambda change: replay(trace.trained, measured, change))
    again = replay(trace.trained, measured, Change())
    return {
        "form": form,
        "made": made is not None,
        "sentence": sentence(form.change(), made, measured.step) if made else "",
        "limit": _limit(trace),
        "chart": chart(trace.spans, trace.layout, measured.step, made, step=trace.step) if made else None,
        "run_address": run_address(form.change(), made) if made and not trace.run.broken else "",
        "settles": not Prediction.objects.filter(run=run, disturbed=True).exists(),
        "ideas": ideas(trace),
        "check": check(again.step, measured.step),
        "assumed": ASSUMED,
        "times": Times(measured.step, again.step, made.step if made else None),
        "whatif_step": trace.step,
    }


def run_address(change: Change, made: Replay) -> str:
    """The address of New run with the change, if it changes only schedule and micro-batches; else ''."""
    unchanged = Change()
    others = replace(change, schedule="", micro_batches=0, early_gradients=False)
    if change == unchanged or others != unchanged:
        return ""
    asked = made.spec.model_dump(mode="json", exclude_defaults=True)
    return f"{reverse('runs:new')}?{urlencode({'spec': json.dumps(asked)})}"


def replayed(form: WhatIfForm, how: Callable[[Change], Replay]) -> Replay | None:
    """The replay of the form's change by `how`; None, with errors in the form, if the change makes no valid run."""
    if not form.is_valid():
        return None
    try:
        return how(form.change())
    except ValidationError as error:
        for name, message in field_errors(error).items():
            field = name.removeprefix("parallel.")
            form.add_error(field if field in form.fields else "schedule", message)
        return None


def ideas(trace: Trace) -> list[dict[str, Any]]:
    """Single changes to a step of a run."""
    measured, at = trace.measured, {"tab": "whatif", "step": trace.step}
    return single_changes(trace.trained, measured.step, lambda change: replay(trace.trained, measured, change), at)


def single_changes(
    spec: RunSpec, measured: float, how: Callable[[Change], Replay], at: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Single changes, the one with the largest gain first: its words, its query (`at` with the change), the predicted
    step, the gain."""
    found = []
    for words, asked, change in _candidates(spec):
        try:
            made = how(change)
        except ValidationError:
            continue  # this run cannot have that change
        found.append((speedup(measured, made.step), words, asked, made))
    return [
        {
            "words": words,
            "address": urlencode({**at, **asked}),
            "step": ns_text(made.step),
            "ns": made.step,
            "asked": asked,
            "gain": gain_text(gain),
        }
        for gain, words, asked, made in sorted(found, key=lambda item: -item[0])
    ]


def _candidates(spec: RunSpec) -> list[tuple[str, dict[str, Any], Change]]:
    split = spec.parallel
    out: list[tuple[str, dict[str, Any], Change]] = []
    if split.world > 1:
        out.append(("Free communication", {"links": "free"}, Change(links=FREE)))
        out.append(("Links 4 times as fast", {"links": 4}, Change(links=4)))
    out.append(("A device twice as fast", {"device": 2}, Change(device=2)))
    if split.recompute != "none":
        out.append(("No recomputation", {"no_recompute": "on"}, Change(no_recompute=True)))
    if split.pp > 1:
        out.append(("Balanced stages", {"balanced": "on"}, Change(balanced=True)))
        for m in (split.micro_batches * 2, split.micro_batches * 4):
            out.append((f"{m} micro-batches", {"micro_batches": m}, Change(micro_batches=m)))
        if not split.early_gradients:
            out.append(("Early gradients", {"early_gradients": "on"}, Change(early_gradients=True)))
        for name in TRIED:
            if name != split.schedule:
                out.append((f"Schedule {CHOICE_LABELS[name]}", {"schedule": name}, Change(schedule=name)))
    return out


def sentence(change: Change, made: Replay, measured: float) -> str:
    """What the change does to a step of `measured` ns."""
    return effect(_words(change), measured, made.step)


def _words(change: Change) -> list[str]:
    plain = Change()
    parts = [
        (change.links != 1, "free communication" if change.links == FREE else f"links {change.links:g} times as fast"),
        (change.device != 1, f"a device {significant(change.device)} times as fast"),
        (change.no_recompute, "no recomputation"),
        (change.balanced, "balanced stages"),
        (bool(change.schedule), f"schedule {CHOICE_LABELS.get(change.schedule, change.schedule)}"),
        (bool(change.micro_batches), f"{change.micro_batches} micro-batches"),
        (change.early_gradients, "early gradients"),
    ]
    return [] if change == plain else [words for here, words in parts if here]


def _limit(trace: Trace) -> str:
    """The ideal speedup over one device with free communication, and the bound for any number of devices."""
    if trace.spec.parallel.world == 1:
        return ""
    most = ideal_limit(trace.spec)
    bound = f"with {most} micro-batches no number of devices could pass {most}x." if trace.spec.parallel.pp > 1 else ""
    base = traces.baseline(trace.run)
    if base is None:
        return sentence_text(bound)
    free = replay(trace.trained, trace.measured, Change(links=FREE)).step
    ideal = f"{ratio_text(base[1].total / free)} of one device is the ideal speedup with free communication"
    return f"{ideal}; {bound}" if bound else f"{ideal}."


def chart(spans: Mapping[int, np.ndarray], layout: Layout, took: float, made: Replay, step: int) -> Chart:
    """The measured step (which took `took` ns) and the predicted one, for a step with a known layout."""
    predicted = {layout.walkers(q)[0]: rows for q, rows in made.spans.items()}
    return both_steps(spans, took, predicted, made.step, f"step {step}", (layout, Layout.of(made.spec)))


def both_steps(
    measured: Mapping[int, np.ndarray],
    took: float,
    predicted: Mapping[int, np.ndarray],
    takes: float,
    source: str,
    layouts: Sequence[Layout] = (),
) -> Chart:
    """Both steps below each other, for the ranks in `predicted`; they took `took` and `takes` ns.

    With the `layouts` of both, waits are distinguished from communication; not where a tensor group is one row, because
    which of its ranks came last is not simulated.
    """
    mine = {rank: rows for rank, rows in measured.items() if rank in predicted}
    runs = [("measured", mine), ("predicted", {rank: _with_step(rows) for rank, rows in predicted.items()})]
    waits = [waited_if_whole(own, layout) for (_, own), layout in zip(runs, layouts, strict=False)]
    waits = waits if all(waits) else []
    title = f"{ns_text(took)} measured, {ns_text(takes)} predicted"
    chart = gantt.chart(runs, title, f"{source}, measured and replayed", key="whatif", waited=waits, what=REPLAYED)
    return replace(chart, subtitle=f"{chart.subtitle}; one row a pipeline rank")


def _with_step(rows: np.ndarray) -> np.ndarray:
    """The rows after a STEP row, so that idle time is drawn."""
    step = np.zeros(1, SPAN)
    step["kind"], step["lane"], step["micro_batch"] = Kind.STEP, LANES.index("host"), -1
    step["end"] = rows["end"].max()
    return np.concatenate([step, rows])
