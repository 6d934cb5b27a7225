"""The form of a scaling study."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django import forms

from dashboard.fields import NumberList, WholeNumber
from dashboard.fleet.shared_cores import shared_cores
from dashboard.fleet.words import WORDS
from dashboard.runs.waiting.fleet_checks import capacity
from dashboard.studies import scaling, services
from dashboard.studies.models import Study
from dashboard.studies.new.forms import UNSCALED, TrainingForm, fleet_sentence
from dashboard.studies.new.strategies import BY_KEY
from dashboard.studies.new.variants import Plan
from parallel_core import limits


class ScalingForm(TrainingForm):
    """Strong and weak scaling of strategies over numbers of devices, for one model or several."""

    kind = scaling.KIND
    title = "Scaling"
    fine_fields = UNSCALED

    strategies = forms.MultipleChoiceField(
        choices=[(key, BY_KEY[key].title) for key in scaling.STRATEGIES],
        initial=["dp"],
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": "Choose at least one strategy."},
    )
    ways = forms.MultipleChoiceField(
        label="Scaling",
        choices=list(scaling.WAYS.items()),
        initial=list(scaling.WAYS),
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": "Choose strong, weak or both."},
    )
    counts = NumberList(label="Devices", help_text="one is always among them")
    models = forms.MultipleChoiceField(
        label="Other models as well",
        choices=list(scaling.MODELS.items()),
        required=False,
        widget=forms.CheckboxSelectMultiple,
    )
    micro_batches = WholeNumber(
        label="Micro-batches", min_value=1, max_value=limits.MAX_MICRO_BATCHES, initial=4, help_text="of pipelines"
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        most = max(capacity(kind, fleet=self.fleet).most() for kind in WORDS)
        self.fields["counts"].initial = [n for n in (1, 2, 4, 8, 16, 32) if n <= max(2, most)]
        self.fields["counts"].help_text = f"one is always among them; {fleet_sentence(self.fleet)}"

    def own_group(self) -> Iterator[forms.BoundField]:
        return self.group(("strategies", "ways", "counts", "models", "micro_batches"))

    def _asked(self) -> dict[str, Any]:
        names = ("strategies", "ways", "counts", "models", "micro_batches", "timed_steps")
        return {name: self.cleaned_data[name] for name in names}

    def clean_counts(self) -> list[int]:
        counts: list[int] = self.cleaned_data["counts"]
        if max(counts, default=1) < 2:
            raise forms.ValidationError("Name at least one number above 1: scaling begins with two devices.")
        return counts

    def plan(self) -> Plan:
        return scaling.plan(self.base(), **self._asked())

    def create(self, owner: Any) -> Study:
        new = self.new(self._asked(), note=shared_cores(self.fleet.reporting).removeprefix("; "))
        return services.create(**self.common(owner), new=new)
