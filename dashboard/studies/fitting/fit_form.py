"""The form of a fit study."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from django import forms

from dashboard.fields import WholeNumber
from dashboard.runs.form.spec_fields import MIB
from dashboard.runs.run_files import Files
from dashboard.runs.waiting.fleet_checks import capacity, fleet_check
from dashboard.studies import services
from dashboard.studies.fitting import fit
from dashboard.studies.models import Study
from dashboard.studies.new.estimate import Estimate, estimate
from dashboard.studies.new.forms import FINE, MODEL, TRAIN
from dashboard.studies.new.matrix_form import MatrixForm
from dashboard.studies.new.variants import Plan
from parallel_core.plan.capacity import fixed_depth
from parallel_core.spec import RunSpec

MODEL_WITHOUT_DEPTH = tuple(path for path in MODEL if path not in ("model.layers", "model.width"))
TRAIN_OF_ONE = tuple(path for path in TRAIN if path not in ("train.warmup_steps", "train.weights"))
"""Without weights: they are of one number of layers."""
_LATER = {"train.lr_warmup_steps", "train.eval_every", "train.eval_samples", "train.checkpoint_every", "train.keep"}
FINE_OF_ONE = tuple(path for path in FINE if path not in _LATER)
"""Without what only comes after the few steps of a run (`largest.trial`)."""
LEAST_RUNS = 2
"""The fewest runs of a search: the predicted number of layers, and the next one."""
RUNS_NOTE = (
    f"At least {LEAST_RUNS} for each variant: the layers that should fit, then one more, which should not. "
    "Where the first answer is another, more follow."
)


class FitForm(MatrixForm):
    """Form of a fit study: the strategies to search, and the memory of a rank."""

    kind = fit.KIND
    title = "Fit"
    runs_note = RUNS_NOTE
    model_fields = MODEL_WITHOUT_DEPTH
    train_fields = TRAIN_OF_ONE
    fine_fields = FINE_OF_ONE

    cap = WholeNumber(
        label="Memory a rank, MiB",
        min_value=1,
        max_value=1 << 24,
        initial=64,
        required=False,
        help_text="a run that holds more ends out of memory; on GPUs it may be empty: the device's own",
    )

    axis_fields = ("strategies", "splits", "recompute", "precisions", "micro_batches", "devices")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        del self.fields["timed_steps"], self.fields["repeats"]  # nothing is timed, and bytes are the same every time
        del self.fields["schedules"], self.fields["schedule_file"]  # searches are told apart by their label
        del self.fields["layers"]  # their number is what is sought

    def own_group(self) -> Iterator[forms.BoundField]:
        yield self["cap"]
        yield from super().own_group()

    def measure_group(self) -> Iterator[forms.BoundField]:
        return iter(())

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        if self.spec is not None and (fixed := fixed_depth(self.spec.model)):
            self.add_error("model__kind", fixed)
        if "cap" in cleaned and not self._limit(cleaned):
            why = (
                "CPU devices have no memory of their own: name a cap."
                if cleaned.get("train__device") == "cpu"
                else ("No worker reports a GPU's memory now: name a cap.")
            )
            self.add_error("cap", why)
        return cleaned

    def _limit(self, cleaned: dict[str, Any]) -> int:
        """The most bytes that a rank of any run may hold; 0 if it is not known."""
        if cleaned.get("cap"):
            return int(cleaned["cap"]) * MIB
        device = cleaned.get("train__device", "cpu")
        room = capacity(device, fleet=self.fleet).room if device == "cuda" else None
        return room.usable if room else 0

    def _limits(self) -> Callable[[RunSpec], int]:
        """Says how many bytes a rank of a run may hold: without a cap, on the devices that it can have, as the largest
        ones may be too few for it."""
        most, files = self._limit(self.cleaned_data), Files.of(self.fleet)

        def limit(spec: RunSpec) -> int:
            room = None if self.cleaned_data["cap"] else fleet_check(spec, self.fleet, files=files).offered.room
            return room.usable if room else most

        return limit

    def plan(self) -> Plan:
        cap = self.cleaned_data["cap"]
        return fit.plan(self.base(), self.axes(), limit=self._limits(), cap=cap * MIB if cap else None)

    def estimate(self) -> Estimate:
        """A lower bound: a search whose prediction is wrong takes more runs."""
        specs = [variant.spec for variant in self.planned.variants]
        found = estimate(specs, self.calibration, LEAST_RUNS)
        return replace(found, later=found.runs - len(specs))

    def named(self, about: str) -> str:
        """Without the layers of the model, whose number is what is sought."""
        return super().named(re.sub(r" \d+ x ", " N x ", about, count=1))

    def create(self, owner: Any) -> Study:
        asked = {name: self.cleaned_data[name] for name in (*self.axis_fields, "cap")}
        new = self.new({**asked, "searching": True})
        return services.create(**self.common(owner), new=new, retries=fit.RETRIES)
