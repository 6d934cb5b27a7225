"""What the forms of studies whose runs train have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from django import forms
from pydantic import ValidationError

from dashboard.fields import Choice, WholeNumber
from dashboard.fleet.selectors import FleetSnapshot
from dashboard.fleet.shared_cores import shared_cores
from dashboard.fleet.words import WORDS
from dashboard.runs import weights
from dashboard.runs.form import spec_fields
from dashboard.runs.form.entry import Group, html_name
from dashboard.runs.form.forms import Section
from dashboard.runs.models import Run
from dashboard.runs.texts import corpora
from dashboard.runs.texts.corpus_checks import corpus_errors
from dashboard.runs.texts.corpus_select import CorpusSelect
from dashboard.runs.waiting.fleet_checks import capacity
from dashboard.studies import services
from dashboard.studies.models import Study
from dashboard.studies.new import sweepable, variants
from dashboard.studies.new.estimate import Estimate, calibration, estimate
from dashboard.studies.new.study_form import StudyForm
from parallel_core import limits
from parallel_core.outline import outline_of
from parallel_core.spec import RunSpec, field_errors

MODEL, DETAIL = (spec_fields.paths_of(group) for group in ("model", "architecture"))
TRAIN = (*("train.weights", "train.global_batch", "train.lr", "train.seed", "train.warmup_steps", "train.device"),)
FINE = tuple(path for path in spec_fields.paths_of("fine") if path.startswith("train."))
"""The recipe: how the rate falls, optimizer, clipping, loss scale, held-out loss and checkpoints."""
UNSCALED = tuple(path for path in FINE if not path.startswith("train.loss_scale"))
"""The same of kinds whose runs are all of fp32."""


def folded(key: str, title: str, paths: Iterable[str]) -> Group:
    """A group of fields that is shown closed."""
    return Group(key, title, tuple(spec_fields.ENTRIES[path] for path in paths), folded=True)


class TrainingForm(StudyForm):
    """The fields of every kind whose runs train: the spec that they share, and how many steps are timed."""

    template_name_base = "studies/new_base.html"
    model_fields: ClassVar[tuple[str, ...]] = MODEL
    train_fields: ClassVar[tuple[str, ...]] = TRAIN
    fine_fields: ClassVar[tuple[str, ...]] = FINE
    split_fields: ClassVar[tuple[str, ...]] = ()
    """Leaves that the kind asks for besides."""

    spec: RunSpec | None = None
    """The base as a single run; set by a valid form."""

    train__corpus = Choice(label="Corpus", initial="stdlib", widget=CorpusSelect)
    timed_steps = WholeNumber(
        label="Timed steps",
        min_value=variants.MIN_TIMED_STEPS,
        max_value=100_000,
        initial=variants.USUAL_TIMED_STEPS,
        help_text=f"a run, at least {variants.MIN_TIMED_STEPS}",
    )

    field_order = ("name", "train__corpus", "timed_steps", "repeats")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        initial = {**spec_fields.usual(), **(kwargs.pop("initial", None) or {})}
        super().__init__(*args, **{**kwargs, "initial": initial})

    @classmethod
    def base_leaves(cls) -> tuple[str, ...]:
        """The leaves of the spec that all runs share, except the corpus."""
        return (*cls.model_fields, *DETAIL, *cls.train_fields, *cls.fine_fields, *cls.split_fields)

    def complete(self) -> None:
        for path in self.base_leaves():
            self.fields[html_name(path)] = spec_fields.form_field(spec_fields.ENTRIES[path])
        self.fields["train__corpus"].choices = corpora.choices(self.fleet)  # type: ignore[attr-defined]
        if begins := self.fields.get(html_name(weights.FIELD)):
            chosen = str(self[html_name(weights.FIELD)].value() or "")
            begins.widget.choices = weights.choices(self.fleet, chosen)

    @classmethod
    def initial_of_run(cls, run: Run) -> dict[str, Any]:
        train = RunSpec.stored(run.spec).train
        return {
            **spec_fields.from_spec(run.spec),
            "name": f"{run.name}, varied"[: limits.MAX_NAME],
            "devices": max(2, run.devices),
            "timed_steps": max(variants.MIN_TIMED_STEPS, train.steps - train.warmup_steps),
        }

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

    def detail_sections(self) -> Iterator[Section]:
        """The folded group below the model."""
        yield self.section(folded("architecture", "Architecture in detail", DETAIL))

    def fine_sections(self) -> Iterator[Section]:
        """The folded groups below the training fields."""
        yield self.section(folded("recipe", "Optimizer, held-out loss and checkpoints", self.fine_fields))

    def section(self, group: Group) -> Section:
        return Section(group, [self[entry.name] for entry in group.entries])

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
        return (*self.base_leaves(), "train.corpus")

    def implied(self, cleaned: dict[str, Any]) -> dict[str, Any]:
        """Values of fields that the form has not, by which `relevance` decides which others apply."""
        return {}

    def common(self, owner: Any) -> dict[str, Any]:
        """The arguments with which every kind of study is created. Needs a valid form."""
        assert self.spec is not None
        given: dict[str, Any] = {name: self.cleaned_data[name] for name in ("repeats",) if name in self.cleaned_data}
        given["queue"] = self.in_queue()
        return {"owner": owner, "name": self.named(outline_of(self.spec.model).title), **given}

    def new(self, asked: dict[str, Any], note: str = "") -> services.NewStudy:
        """What is to be queued. Needs a valid form."""
        return services.NewStudy(self.kind, self.base(), self.plan(), asked, note)

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
        sent = {name for name in self.fields if name in self.data or isinstance(self.fields[name], forms.BooleanField)}
        asked = [path for path in self._paths if html_name(path) in cleaned.keys() & sent]  # others have their default
        steps = cleaned.get("timed_steps", variants.MIN_TIMED_STEPS)
        base = spec_fields.to_spec({**cleaned, **self.implied(cleaned)}, asked)
        try:
            self.spec = RunSpec.model_validate(variants.with_steps(base, steps))
        except ValidationError as error:
            self.show(field_errors(error))
            return cleaned
        swept = {cleaned.get(field) for field, _ in sweepable.AXES}
        wrong = corpus_errors(self.spec) | weights.weights_errors(self.spec, self.fleet)
        self.show({path: said for path, said in wrong.items() if path not in swept})
        return cleaned

    def within_fleet(self, cleaned: dict[str, Any]) -> dict[str, Any]:
        """Adds an error to `devices` if the fleet has fewer; not if no worker reports any."""
        offered = capacity(cleaned.get("train__device", "cpu"), fleet=self.fleet)
        wanted = cleaned.get("devices")
        if wanted and 0 < offered.total < wanted:
            have = self.fleet.on.have
            self.add_error("devices", f"{have[0].upper()}{have[1:]} {offered.text}; choose at most that many.")
        return cleaned


def initial_of(study: Study) -> dict[str, Any]:
    """Form values that would create this study again."""
    asked = dict(study.settings)
    for field, values in sweepable.AXES:
        if isinstance(asked.get(values), list):
            asked[values] = sweepable.joined(asked[field], asked[values])
    name = f"{study.name} (again)"[: limits.MAX_NAME]
    return {**spec_fields.from_spec(study.base), **asked, "name": name, "run_on": study.run_on}


def fleet_sentence(fleet: FleetSnapshot) -> str:
    """Says how many devices of each kind the fleet has, and which share cores."""
    offers = [offered for kind in WORDS if (offered := capacity(kind, fleet=fleet)).total]
    found = " or ".join(offered.text for offered in offers)
    return f"the fleet has {found}{shared_cores(fleet.reporting)}" if found else "no worker reports now"
