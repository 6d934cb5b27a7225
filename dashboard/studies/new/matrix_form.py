"""The form of a matrix study."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, Self

from django import forms
from django.http import HttpRequest

from dashboard.fields import NumberList, WholeNumber
from dashboard.fleet.selectors import FleetSnapshot
from dashboard.runs.form.forms import program_field, program_text
from dashboard.runs.models import Run
from dashboard.runs.services import Invalid
from dashboard.runs.waiting.fleet_checks import capacity
from dashboard.studies import services
from dashboard.studies.models import Study
from dashboard.studies.new import families, variants
from dashboard.studies.new.axes import RECOMPUTE, Axes
from dashboard.studies.new.forms import TrainingForm, fleet_sentence
from dashboard.studies.new.strategies import BY_KEY, STARTER, takes_splits
from dashboard.studies.new.variants import Plan
from dashboard.studies.new.written import MAX_OWN_NAME, MOST_PROGRAMS, Again, OwnSchedule, StageSplit
from dashboard.studies.new.written_fields import LayerLists, OwnSchedules, StageSplits
from parallel_core import limits
from parallel_core.outline import outline_of
from parallel_core.outline.recompute import blocks
from parallel_core.spec import BYTES_PER_ELEMENT, RunSpec

NO_STRATEGY = "Choose at least one strategy."
NO_RECOMPUTATION = "Choose at least one of without, selective and full."
NO_PIPELINE = "Only pipelines have stages; choose one among the strategies, such as PP-1F1B."


class MatrixForm(TrainingForm):
    """Form of a matrix study: strategies x recomputation x precision x micro-batches."""

    kind = "matrix"
    title = "Matrix"

    strategies = forms.MultipleChoiceField(
        required=False,
        choices=families.choices(),
        initial=list(STARTER),
        widget=forms.CheckboxSelectMultiple,
    )
    splits = StageSplits(
        required=False,
        label="Stages of pipelines",
        help_text="beside the even ones: replicas of each, such as 2-1 (3 devices); replicas x tensor ranks: 2x1-1x2 "
        "(4 devices). Micro-batches count over all replicas: each needs one",
    )
    schedules = OwnSchedules(
        required=False,
        label="Own schedules",
        help_text="CSV or JSON as in New run, beside the strategies; several: begin each with a line “# its name”; at "
        f"most {MOST_PROGRAMS // 1024} KiB together",
    )
    schedule_file = program_field("Schedule file", "schedules", **{"data-headed": ""})
    recompute = forms.MultipleChoiceField(
        required=False,
        label="Activation recomputation (AR)",
        choices=[("none", "without"), ("selective", "selective"), ("full", "full")],
        initial=list(RECOMPUTE),
        widget=forms.CheckboxSelectMultiple,
    )
    layers = LayerLists(
        required=False,
        label="AR of some layers",
        help_text="beside those: layers from 0 on, such as 0, 2; several lists: 0; 0, 2; selective 1",
    )
    precisions = forms.MultipleChoiceField(
        label="Precision",
        choices=[(name, name) for name in BYTES_PER_ELEMENT],
        initial=["fp32"],
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": "Choose at least one precision."},
    )
    micro_batches = NumberList(label="Micro-batches", initial=[4], help_text="of pipelines; several: 2, 4, 8")
    devices = WholeNumber(label="Devices", min_value=1, max_value=limits.MAX_DEGREE, initial=2)

    axis_fields: tuple[str, ...] = (
        "strategies",
        "splits",
        "schedules",
        "recompute",
        "layers",
        "precisions",
        "micro_batches",
        "devices",
    )
    """The fields of which every combination is a variant, in the order of the page."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["devices"].help_text = fleet_sentence(self.fleet)

    @classmethod
    def initial_of_fleet(cls, fleet: FleetSnapshot) -> dict[str, Any]:
        """Also one device where there is only one, so that what the form begins with can run."""
        found = super().initial_of_fleet(fleet)
        alone = capacity(found.get("train__device", "cpu"), fleet=fleet).total == 1
        return {**found, "devices": 1} if alone else found

    @classmethod
    def initial_of_run(cls, run: Run) -> dict[str, Any]:
        return {**super().initial_of_run(run), "precisions": [RunSpec.stored(run.spec).train.precision]}

    def implied(self, cleaned: dict[str, Any]) -> dict[str, Any]:
        """The precision is an axis: where one of them scales its loss, the fields of that apply."""
        return {"train__precision": "fp16"} if "fp16" in cleaned.get("precisions", ()) else {}

    @classmethod
    def sent(cls, request: HttpRequest) -> Self:
        """The form as it was posted; an uploaded schedule is put into its field, behind those that it has."""
        form, upload = cls(request.POST), request.FILES.get("schedule_file")
        if upload is None or "schedule_file" not in form.fields:
            return form
        try:
            text = program_text(upload, "schedule_file").strip("\ufeff\r\n")
        except Invalid as error:
            form.show(error.field_errors)
            return form
        name = PurePath(upload.name or "own").stem[:MAX_OWN_NAME]
        headed = text if text.startswith("#") else f"# {name}\n{text}"
        data = request.POST.copy()
        data["schedules"] = "\n".join(part for part in (data.get("schedules", "").rstrip(), headed) if part)
        form.data = data
        return form

    def own_group(self) -> Iterator[forms.BoundField]:
        for name in self.axis_fields:
            yield self[name]
            if name == "schedules":
                yield self["schedule_file"]

    def axes(self) -> Axes:
        """What is asked for. Needs a valid form."""
        return Axes(**{name: self.cleaned_data[name] for name in self.axis_fields})

    def plan(self) -> Plan:
        return variants.matrix(self.base(), self.axes(), self.cleaned_data["timed_steps"])

    def create(self, owner: Any) -> Study:
        asked = {"base": self.base(), "axes": self.axes(), "timed_steps": self.cleaned_data["timed_steps"]}
        return services.create_matrix(**self.common(owner), **asked)

    def clean(self) -> dict[str, Any]:
        """Refuses an empty axis, and what is written but could be in no variant."""
        cleaned = self.within_fleet(super().clean())
        for field, message in self._wrong(cleaned).items():
            if message and field in cleaned:
                self.add_error(field, message)
        return cleaned

    def _wrong(self, cleaned: dict[str, Any]) -> dict[str, str]:
        """Message by field, '' where nothing is wrong."""
        devices = cleaned.get("devices")
        splits = [StageSplit.read(split) for split in cleaned.get("splits", ())]
        own = [OwnSchedule(*each) for each in cleaned.get("schedules", ())]
        anything = cleaned.get("strategies") or own or self.has_error("schedules")
        again = cleaned.get("recompute") or cleaned.get("layers") or self.has_error("layers")
        no_pipeline = splits and not any(takes_splits(BY_KEY[key]) for key in cleaned.get("strategies", ()))
        return {
            "strategies": "" if anything else NO_STRATEGY,
            "recompute": "" if again else NO_RECOMPUTATION,
            "splits": NO_PIPELINE if no_pipeline else _too_wide({str(one): one.world for one in splits}, devices),
            "schedules": _too_wide({one.name: one.world for one in own}, devices),
            "layers": self._no_layers(cleaned),
        }

    def _no_layers(self, cleaned: dict[str, Any]) -> str:
        """Which of the named layers the model has not."""
        lists = [Again.read(text).layers or () for text in cleaned.get("layers", ())]
        if self.spec is None or not lists:
            return ""
        count, most = len(blocks(outline_of(self.spec.model).units())), max(map(max, lists))
        return "" if most < count else f"There is no layer {most}: this model's count from 0 to {count - 1}."


def _too_wide(worlds: dict[str, int], devices: int | None) -> str:
    """Says which of these (name -> devices) needs more than the study has; '' if none does."""
    name, world = max(worlds.items(), key=lambda each: each[1], default=("", 0))
    if devices is None or world <= devices:
        return ""
    who = f"“{name}”" if name else "This schedule"
    return f"{who} needs {world} devices, and Devices is {devices}; set it to {world}, or write a smaller one."
