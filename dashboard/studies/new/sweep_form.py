"""The form of a sweep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, Self

from django import forms
from django.http import HttpRequest
from django.utils.safestring import SafeString, mark_safe

from dashboard.fields import Choice
from dashboard.runs.form import spec_fields
from dashboard.runs.form.form_words import short_label
from dashboard.runs.form.forms import Section
from dashboard.studies import services
from dashboard.studies.models import Study
from dashboard.studies.new import sweepable, variants
from dashboard.studies.new.axes import Swept
from dashboard.studies.new.estimate import Estimate
from dashboard.studies.new.forms import TrainingForm, folded
from dashboard.studies.new.variants import Plan
from dashboard.studies.services import InQueue

NO_VALUE = "Write at least one value, such as 1, 2, 4."
SPLIT = (
    *("parallel.dp", "parallel.tp", "parallel.pp", "parallel.schedule", "parallel.micro_batches"),
    *("parallel.program", "parallel.replicas", "parallel.widths"),
    *("parallel.recompute", "parallel.recompute_layers", "train.precision"),
)
SPLIT_DETAIL = tuple(path for path in spec_fields.paths_of("parallel") if path not in SPLIT)
TRACE = tuple(path for path in spec_fields.paths_of("fine") if path.startswith("trace."))
NOTATION = (
    "with commas between them; lists with semicolons: of each stage 2-1; 1-2, of layers 0; 0, 2; "
    "'none' where a field may be empty"
)

IN_TURN = "If they ran one after another: side by side all are done sooner, and each may take longer."


class SweepForm(TrainingForm):
    """Form of a sweep: one field of the spec over several values, or every pair of values of two fields."""

    kind = "sweep"
    title = "Sweep"
    template_name_own = "studies/new_sweep.html"
    split_fields = (*SPLIT, *SPLIT_DETAIL, *TRACE)

    field = Choice(label="Field to sweep", initial="parallel.micro_batches")
    values = forms.CharField(
        max_length=2000,
        initial=sweepable.begin("parallel.micro_batches"),
        help_text=NOTATION,
        error_messages={"required": NO_VALUE},
    )
    second_field = Choice(label="Crossed with", required=False, help_text="each pair of their values is a run")
    second_values = forms.CharField(
        label="Its values", max_length=2000, required=False, help_text="written as those of the first field"
    )
    side_by_side = forms.BooleanField(
        label="Side by side: only losses are compared",
        required=False,
        help_text="as many at a time as there are devices, beside other runs too: done sooner, but no time is compared",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        known = list(sweepable.fields().items())
        self.fields["field"].choices = known  # type: ignore[attr-defined]
        self.fields["second_field"].choices = [("", "nothing"), *known]  # type: ignore[attr-defined]

    @classmethod
    def sent(cls, request: HttpRequest) -> Self:
        """A preview whose field was just chosen begins with values in its notation; a study is made of none that its
        sender has not seen."""
        chosen = {}
        for field, values in sweepable.AXES:
            before, after, text = (request.POST.get(name, "") for name in (_begun(field), field, values))
            if "preview" in request.POST and after != before:
                chosen[field] = after, values, text, sweepable.begun(before, after, text)
        if not chosen:
            return super().sent(request)
        data = request.POST.copy()
        for field, (after, values, _, text) in chosen.items():
            data[_begun(field)], data[values] = after, text
        made = cls(data)
        swap: dict[str, str | bool] = {"hx-swap-oob": "true"}
        anew = [made.begun_for(field, swap) for field in chosen]
        # an input that somebody types in is left alone
        anew += [made[values].as_widget(attrs=swap) for _, values, before, text in chosen.values() if text != before]
        made.anew = mark_safe("".join(anew))
        return made

    def begun_for(self, field: str, attrs: dict[str, str | bool] | None = None) -> SafeString:
        """An input that nobody sees: the field that the text of the values stands for since the last preview. With it a
        field that was just chosen differs from a text that was just typed."""
        name = _begun(field)
        chosen = self.data.get(name, "") if self.is_bound else self[field].value()
        # not type="hidden": browsers and drafts give back only what they take for typed, and it belongs to the values
        return forms.TextInput().render(name, chosen, {"id": f"f-{name}", "hidden": True, **(attrs or {})})

    def begun(self) -> SafeString:
        """The inputs of `begun_for` of both fields."""
        return mark_safe("".join(self.begun_for(field) for field, _ in sweepable.AXES))

    def in_queue(self) -> InQueue:
        return replace(super().in_queue(), side_by_side=self.cleaned_data["side_by_side"])

    def estimate(self) -> Estimate:
        """Side by side: the time one after another, which is then said."""
        found = super().estimate()
        return replace(found, source=IN_TURN) if self.cleaned_data["side_by_side"] else found

    def queue_group(self) -> Iterator[forms.BoundField]:
        return self.group(("run_on", "priority", "side_by_side"))

    def own_group(self) -> Iterator[forms.BoundField]:
        return chain.from_iterable(self.axes())

    def axes(self) -> Iterator[Iterator[forms.BoundField]]:
        """Each field to sweep with its values."""
        return map(self.group, sweepable.AXES)

    def split_group(self) -> Iterator[forms.BoundField]:
        return self.group(SPLIT)

    def split_sections(self) -> Iterator[Section]:
        """The folded group below the split."""
        yield self.section(folded("split", "Split in detail", SPLIT_DETAIL))

    def fine_sections(self) -> Iterator[Section]:
        yield from super().fine_sections()
        yield self.section(folded("trace", "Tracing", TRACE))

    @property
    def called(self) -> str:
        fields = [self.cleaned_data[field] for field, _ in sweepable.AXES if self.cleaned_data[field]]
        return f"{self.title} of {' x '.join(map(short_label, fields))}"

    def clean_values(self) -> str:
        return self._clean_values(*sweepable.AXES[0])

    def clean_second_field(self) -> str:
        second: str = self.cleaned_data["second_field"]
        if second and second == self.cleaned_data.get("field"):
            raise forms.ValidationError(f"{short_label(second)} is swept already; cross it with another field.")
        return second

    def clean_second_values(self) -> str:
        return self._clean_values(*sweepable.AXES[1]) if self.cleaned_data.get("second_field") else ""

    def _clean_values(self, field: str, values: str) -> str:
        text: str = self.cleaned_data[values]
        try:
            found = sweepable.split(self.cleaned_data.get(field, ""), text)
        except ValueError as error:
            raise forms.ValidationError(str(error)) from None
        if not found:
            raise forms.ValidationError(NO_VALUE)
        return text

    def swept(self) -> Swept:
        """What is asked for. Needs a valid form."""
        asked: dict[str, Any] = {}
        for field, values in sweepable.AXES:
            if chosen := self.cleaned_data[field]:
                asked |= {field: chosen, values: sweepable.split(chosen, self.cleaned_data[values])}
        return Swept(**asked)

    def plan(self) -> Plan:
        return variants.sweep(self.base(), self.swept(), self.cleaned_data["timed_steps"])

    def create(self, owner: Any) -> Study:
        asked = {"base": self.base(), "swept": self.swept(), "timed_steps": self.cleaned_data["timed_steps"]}
        return services.create_sweep(**self.common(owner), **asked)


def _begun(field: str) -> str:
    """The name of the input of `begun_for`."""
    return "begun_for" if field == "field" else f"{field}_begun_for"
