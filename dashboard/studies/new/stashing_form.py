"""The form of the study "what stashing buys"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django import forms

from dashboard.fields import WholeNumber
from dashboard.studies import services
from dashboard.studies.models import Study
from dashboard.studies.new import variants
from dashboard.studies.new.forms import UNSCALED, TrainingForm, fleet_sentence
from dashboard.studies.new.variants import Plan
from dashboard.studies.overview import streams
from parallel_core import limits
from parallel_core.rules import divisors, few

TIMED_STEPS = 100
"""The initial value: fewer steps say little about a loss."""


class StashingForm(TrainingForm):
    """What stashing buys: 1F1B with its flush, all schedules without a flush, and DP."""

    kind = streams.KIND
    title = "What stashing buys"
    fine_fields = tuple(path for path in UNSCALED if path != "train.clip")  # all clip by stage

    devices = WholeNumber(label="Pipeline stages", min_value=2, max_value=limits.MAX_DEGREE, initial=2)
    micro_batches = WholeNumber(
        label="Micro-batches", min_value=1, max_value=limits.MAX_MICRO_BATCHES, initial=4, help_text="a step"
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["devices"].help_text = f"a device each; {fleet_sentence(self.fleet)}"
        self.fields["timed_steps"].initial = TIMED_STEPS

    def own_group(self) -> Iterator[forms.BoundField]:
        return self.group(("devices", "micro_batches"))

    def clean(self) -> dict[str, Any]:
        """The batch must be divisible into the micro-batches: otherwise only DP would be left, with nothing to compare
        it with."""
        cleaned = self.within_fleet(super().clean())
        m, batch = cleaned.get("micro_batches"), self.spec.train.global_batch if self.spec else 0
        if m and batch % m:
            said = f"{m} micro-batches do not divide the global batch {batch}"
            self.add_error("micro_batches", f"{said}; try {few(divisors(batch), m)}.")
            self.add_error("train__global_batch", f"{said}; try {batch - batch % m or m} or {batch + m - batch % m}.")
        return cleaned

    def _asked(self) -> dict[str, Any]:
        return {name: self.cleaned_data[name] for name in ("devices", "micro_batches", "timed_steps")}

    def plan(self) -> Plan:
        return variants.stashing(self.base(), **self._asked())

    def create(self, owner: Any) -> Study:
        return services.create(**self.common(owner), new=self.new(self._asked()))
