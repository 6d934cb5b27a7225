"""The forms of a what-if question about a traced step, the same for runs and imported traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django import forms
from pydantic import ValidationError

from dashboard.fields import Choice, Form, Number, WholeNumber
from dashboard.runs.form.choice_labels import CHOICE_LABELS
from parallel_core.schedule import names
from parallel_core.schedule.traits import flushes
from parallel_core.simulate.replay import FREE, Change, Replay
from parallel_core.spec import RunSpec, field_errors

LINKS = (
    ("", "as measured"),
    *((f"{k:g}", f"{k:g} times as fast") for k in (1.5, 2, 3, 4, 6, 10, 20, 50, 100)),
    ("free", "free"),
)
"""Steps of the slider: the query has the keys."""
SLOWEST_FASTEST = "0.25 16"
"""Ends of the slider of a device's speed."""


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
        self.spec, split = spec, spec.parallel
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
