"""The forms of studies whose runs train: the fields that they share, and the form of a sweep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Self

from django import forms
from django.http import HttpRequest
from django.utils.safestring import SafeString
from pydantic import ValidationError

from dashboard.fields import Choice, WholeNumber
from dashboard.fleet.selectors import FleetSnapshot
from dashboard.fleet.words import WORDS
from dashboard.runs import corpora, spec_fields
from dashboard.runs.form_words import short_label
from dashboard.runs.models import Run
from dashboard.runs.spec_fields import html_name
from dashboard.runs.submission import capacity
from dashboard.studies import services, sweepable, variants
from dashboard.studies.estimate import Estimate, calibration, estimate
from dashboard.studies.feasible import previewed
from dashboard.studies.models import Study
from dashboard.studies.study_form import StudyForm
from dashboard.studies.variants import Plan
from parallel_core import limits
from parallel_core.outline import outline_of
from parallel_core.spec import RunSpec, field_errors

MODEL, DETAIL = (spec_fields.paths_of(group) for group in ("model", "architecture"))
TRAIN = ("train.global_batch", "train.lr", "train.seed", "train.warmup_steps", "train.device")
SPLIT = ("parallel.dp", "parallel.tp", "parallel.pp", "parallel.schedule", "parallel.micro_batches")
NO_VALUE = "Write at least one value, such as 1, 2, 4."
BY_STAGE = ("parallel.program", "parallel.replicas", "parallel.widths")
SWEEP_SPLIT = (*SPLIT, *BY_STAGE, "parallel.recompute", "parallel.recompute_layers", "train.precision")


class TrainingForm(StudyForm):
    """The fields of every kind whose runs train: the spec that they share, and how many steps are timed."""

    template_name_base = "studies/new_base.html"
    base_fields_of_kind: ClassVar[tuple[str, ...]] = (*MODEL, *DETAIL, *TRAIN)
    model_fields: ClassVar[tuple[str, ...]] = MODEL
    train_fields: ClassVar[tuple[str, ...]] = TRAIN

    spec: RunSpec | None = None
    """The base as a single run; set by a valid form."""

    train__corpus = Choice(label="Corpus", initial="stdlib")
    timed_steps = WholeNumber(
        label="Timed steps",
        min_value=variants.MIN_TIMED_STEPS,
        max_value=100_000,
        initial=services.STARTER_TIMED_STEPS,
        help_text=f"a run, at least {variants.MIN_TIMED_STEPS}",
    )

    field_order = ("name", "train__corpus", "timed_steps", "repeats")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        initial = {**spec_fields.from_spec({}), **(kwargs.pop("initial", None) or {})}
        super().__init__(*args, **{**kwargs, "initial": initial})

    def complete(self) -> None:
        for path in self.base_fields_of_kind:
            self.fields[html_name(path)] = spec_fields.form_field(spec_fields.ENTRIES[path])
        self.fields["train__corpus"].choices = corpora.choices(self.fleet)  # type: ignore[attr-defined]

    @classmethod
    def initial_of_run(cls, run: Run) -> dict[str, Any]:
        return {**spec_fields.from_spec(run.spec), "name": f"{run.name}, varied"[:120], "devices": max(2, run.devices)}

    @classmethod
    def initial_of_fleet(cls, fleet: FleetSnapshot) -> dict[str, Any]:
        """The model and batch with which a worker was calibrated, so that they suit its devices."""
        found = calibration("cpu", fleet) or calibration("cuda", fleet)
        if not found:
            return {}
        device = "cuda" if str(found.get("device", "cpu")).startswith("cuda") else "cpu"
        sized = {"model": found["model"], "train": {"global_batch": found["global_batch"], "device": device}}
        return spec_fields.from_spec(sized)

    def model_group(self) -> Iterator[forms.BoundField]:
        return self.group(self.model_fields)

    def detail_group(self) -> Iterator[forms.BoundField]:
        return self.group(DETAIL)

    def detail_wrong(self) -> bool:
        """Whether a folded field has an error."""
        return any(field.errors for field in self.detail_group())

    def train_group(self) -> Iterator[forms.BoundField]:
        *first, last = self.train_fields
        return self.group((*first, "train.corpus", last))

    def measure_group(self) -> Iterator[forms.BoundField]:
        return self.group(("timed_steps", "repeats"))

    def base(self) -> dict[str, Any]:
        """The spec that all runs share. Needs a valid form."""
        assert self.spec is not None
        return spec_fields.part_of(self.spec, self._paths)

    @property
    def _paths(self) -> tuple[str, ...]:
        return (*self.base_fields_of_kind, "train.corpus")

    def common(self, owner: Any) -> dict[str, Any]:
        """The arguments with which every kind of study is created. Needs a valid form."""
        assert self.spec is not None
        given = {"repeats": self.cleaned_data["repeats"]} if "repeats" in self.cleaned_data else {}
        return {"owner": owner, "base": self.base(), "name": self.named(outline_of(self.spec.model).title), **given}

    def estimate(self) -> Estimate:
        specs = [variant.spec for variant in self.planned.variants]
        return estimate(specs, self.calibration, self.cleaned_data["repeats"])

    @property
    def calibration(self) -> dict[str, Any] | None:
        """The calibration for the chosen kind of device. Needs a valid form."""
        return calibration(self.cleaned_data["train__device"], self.fleet)

    def clean(self) -> dict[str, Any]:
        """The base must be a valid run on its own, or every variant would fail for the same reason."""
        cleaned = super().clean() or self.cleaned_data
        asked = [path for path in self._paths if html_name(path) in cleaned]
        steps = cleaned.get("timed_steps", variants.MIN_TIMED_STEPS)
        try:
            self.spec = RunSpec.model_validate(variants.with_steps(spec_fields.to_spec(cleaned, asked), steps))
        except ValidationError as error:
            self.show(field_errors(error))
        return cleaned

    def within_fleet(self, cleaned: dict[str, Any]) -> dict[str, Any]:
        """Adds an error to `devices` if the fleet has fewer; not if no worker reports any."""
        offered = capacity(cleaned.get("train__device", "cpu"), fleet=self.fleet)
        wanted = cleaned.get("devices")
        if wanted and 0 < offered.total < wanted:
            self.add_error("devices", f"The fleet has {offered.text}; choose at most that many.")
        return cleaned


class SweepForm(TrainingForm):
    """Form of a sweep: one field of the spec over several values."""

    kind = "sweep"
    title = "Sweep"
    template_name_own = "studies/new_sweep.html"
    base_fields_of_kind = (*MODEL, *DETAIL, *TRAIN, *SWEEP_SPLIT)

    field = Choice(label="Field to sweep", initial="parallel.micro_batches")
    values = forms.CharField(
        max_length=2000,
        initial=sweepable.begin("parallel.micro_batches"),
        help_text="with commas between them; lists with semicolons: of each stage 2-1; 1-2, of layers 0; 0, 2; "
        "'none' where a field may be empty",
        error_messages={"required": NO_VALUE},
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["field"].choices = list(sweepable.fields().items())  # type: ignore[attr-defined]

    @classmethod
    def sent(cls, request: HttpRequest) -> Self:
        """A preview whose field was just chosen begins with values in its notation; a study is made of none that its
        sender has not seen."""
        before, field, text = (request.POST.get(name, "") for name in ("begun_for", "field", "values"))
        if "preview" not in request.POST or field == before:
            return super().sent(request)
        data = request.POST.copy()
        data["begun_for"], data["values"] = field, sweepable.begun(before, field, text)
        made = cls(data)
        swap: dict[str, str | bool] = {"hx-swap-oob": "true"}
        made.anew = made.begun_for(swap)
        if data["values"] != text:  # an input that somebody types in is left alone
            made.anew += made["values"].as_widget(attrs=swap)
        return made

    def begun_for(self, attrs: dict[str, str | bool] | None = None) -> SafeString:
        """An input that nobody sees: the field that the text of the values stands for since the last preview. With it a
        field that was just chosen differs from a text that was just typed."""
        chosen = self.data.get("begun_for", "") if self.is_bound else self["field"].value()
        # not type="hidden": browsers and drafts give back only what they take for typed, and it belongs to the values
        return forms.TextInput().render("begun_for", chosen, {"id": "f-begun_for", "hidden": True, **(attrs or {})})

    def own_group(self) -> Iterator[forms.BoundField]:
        return self.group(("field", "values"))

    def split_group(self) -> Iterator[forms.BoundField]:
        return self.group(SWEEP_SPLIT)

    @property
    def called(self) -> str:
        return f"{self.title} of {short_label(self.cleaned_data['field'])}"

    def clean_values(self) -> str:
        try:
            found = sweepable.split(self.cleaned_data.get("field", ""), self.cleaned_data["values"])
        except ValueError as error:
            raise forms.ValidationError(str(error)) from None
        if not found:
            raise forms.ValidationError(NO_VALUE)
        return self.cleaned_data["values"]

    def _asked(self) -> dict[str, Any]:
        return {
            "field": self.cleaned_data["field"],
            "values": sweepable.split(self.cleaned_data["field"], self.cleaned_data["values"]),
            "timed_steps": self.cleaned_data["timed_steps"],
        }

    def plan(self) -> Plan:
        return previewed(variants.sweep(self.base(), **self._asked()), self.fleet)

    def create(self, owner: Any) -> Study:
        return services.create_sweep(**self.common(owner), **self._asked())


def initial_of(study: Study) -> dict[str, Any]:
    """Form values that would create this study again."""
    asked = dict(study.settings)
    if isinstance(asked.get("values"), list):
        asked["values"] = sweepable.joined(asked["field"], asked["values"])
    name = f"{study.name} (again)"[: limits.MAX_NAME]
    return {**spec_fields.from_spec(study.base), **asked, "name": name}


def fleet_sentence(fleet: FleetSnapshot) -> str:
    """Says how many devices of each kind the fleet has."""
    offers = [offered for kind in WORDS if (offered := capacity(kind, fleet=fleet)).total]
    found = " or ".join(offered.text for offered in offers)
    return f"the fleet has {found}" if found else "no worker reports now"
