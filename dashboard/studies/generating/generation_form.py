"""The form of a study of text generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from django import forms
from django.db.models import Q

from dashboard.fleet.selectors import FleetSnapshot
from dashboard.fleet.words import WORDS
from dashboard.numbers import number
from dashboard.runs import resuming
from dashboard.runs.generation import generating
from dashboard.runs.generation.generating import Split
from dashboard.runs.generation.text_fields import ASKED, NUMBER, TextFields
from dashboard.runs.models import ENDED, Checkpoint, Run
from dashboard.runs.run_files import Files
from dashboard.runs.services import Invalid
from dashboard.runs.waiting.fleet_checks import capacity
from dashboard.runs.waiting.spreading import asked as placing
from dashboard.studies import services
from dashboard.studies.generating import generation
from dashboard.studies.generating.generation_estimate import Evidence, evidence
from dashboard.studies.models import Study
from dashboard.studies.new.estimate import Estimate, calibration
from dashboard.studies.new.forms import fleet_sentence
from dashboard.studies.new.study_form import StudyForm
from dashboard.studies.new.variants import Plan, Variant
from dashboard.studies.new.written_fields import Written
from parallel_core.analysis.quantities import listed_text, seconds_text, step_text
from parallel_core.generation_request import read_request
from parallel_core.model_spec import BYTES
from parallel_core.outline import outline_of
from parallel_core.spec import RunSpec
from workers.contract import ResumeFrom

MOST_OFFERED = 50
"""The most runs that the field of the source run lists; any other's number can be typed."""
NAMED = 3
"""The most runs that a message names as right ones."""
AT_FIRST = ("1x1x1", "2x1x1", "1x2x1", "1x1x2", "2x1x2", "4x1x1", "1x1x4")
"""The initial splits, as far as the fleet has the devices."""
TEXTS_AT_FIRST = 4
"""Enough for replicas to share out."""
LEAST_NEW = 2
"""The first token is the prefill's, so its time says nothing of the others'."""


class Splits(Written):
    """Splits over devices, with commas between them: `1, 2x1x1, 1x1x2`."""

    apart = r"[,;\n]"
    joint = ", "

    def read(self, text: str) -> Split:
        return Split.read(text)


class GenerationForm(TextFields, StudyForm):
    """One checkpoint, what to generate from it, and the splits over devices to compare."""

    kind = generation.KIND
    title = "Text generation"
    template_name_own = "studies/new_generation.html"

    run = forms.CharField(
        label="Source run",
        required=False,
        max_length=40,
        help_text="a GPT that has ended and has a checkpoint: its number, or part of its name to choose it",
        widget=forms.TextInput(attrs={"list": "source-runs", "autocomplete": "off"}),
    )
    step = forms.CharField(
        label="Checkpoint step", required=False, max_length=40, help_text="of that run; empty: its newest sound one"
    )
    degrees = Splits(label="Splits", required=False)
    field_order = ("name", "run", "step", "prompt", *ASKED, "degrees")

    source: Run | None = None
    """The run in its field, if there is one of that number."""

    def complete(self) -> None:
        most = max(capacity(kind, fleet=self.fleet).most() for kind in WORDS)
        splits, samples = self.fields["degrees"], self.fields["samples"]
        splits.initial = [text for text in AT_FIRST if Split.read(text).world <= max(2, most)]
        about = "tensor ranks x stages x replicas, with commas between; a single device, 1, is always among them"
        splits.help_text = f"{about}; {fleet_sentence(self.fleet)}"
        samples.initial, samples.help_text = str(TEXTS_AT_FIRST), "of the same prompt, at a time; replicas share them"
        self.fields["prompt"].initial = "def "
        for name in ("step", *ASKED):
            self.fields[name].widget.attrs |= NUMBER
        asked = number(str(self["run"].value() or "").strip())
        self.source = Run.objects.filter(pk=asked).first() if asked is not None else None
        if self.source is not None and generating.able(self.source) and resuming.steps(self.source):
            self.suit(self.source.spec["model"])
            if self.source.spec["model"]["vocab"] > BYTES:
                self.fields["prompt"].initial = "0, 1, 2"

    @classmethod
    def initial_of_run(cls, run: Run) -> dict[str, Any]:
        return {"run": str(run.pk)}

    @classmethod
    def initial_of_fleet(cls, fleet: FleetSnapshot) -> dict[str, Any]:
        """The newest run that will do."""
        newest = next(iter(_sources()), None)
        return {"run": str(newest.pk)} if newest else {}

    @cached_property
    def offered(self) -> Sequence[Run]:
        """Runs that the field of the source run lists."""
        return _sources()

    def source_group(self) -> Iterator[forms.BoundField]:
        return self.group(("run", "step"))

    def text_group(self) -> Iterator[forms.BoundField]:
        """What all runs generate, besides the prompt."""
        return self.group(ASKED)

    def own_group(self) -> Iterator[forms.BoundField]:
        return self.group(("degrees",))

    def clean_run(self) -> str:
        given = self.cleaned_data["run"].strip()
        if why := _unsuitable(self.source, given):
            raise forms.ValidationError(f"{why} {_right_ones(self.offered)}".strip())
        return given

    def clean(self) -> dict[str, Any]:
        """What is asked for must be possible on a single device, whatever the splits."""
        cleaned = super().clean() or self.cleaned_data
        if self.source is None or "run" in self.errors:
            return cleaned
        cleaned["step"] = self._step(self.source, cleaned.get("step", "").strip())
        if not self.errors:
            self._check_text(self.source)
            self.runs_note = f"From {step_text(int(cleaned['step']))} of run {self.source.pk}, “{self.source.name}”."
        return cleaned

    def _step(self, run: Run, given: str) -> str:
        step = number(given) if given else resuming.first_choice(run)
        if step is None or (why := resuming.absent(run, step)):
            have = ", ".join(map(str, resuming.steps(run)))
            self.add_error("step", why if step is not None else f"Write one of its steps, {have}; got “{given}”.")
            return given
        return str(step)

    def _check_text(self, run: Run) -> None:
        try:
            spec = generating.spec_of(run, generating.ONE)
            found = read_request(self.request(spec.model.vocab), spec)
        except Invalid as error:
            self.show(error.field_errors)
        except ValueError as error:
            self.show({"prompt": str(error)})
        else:
            self.show(found.errors)
            if found.request and found.request["new"] < LEAST_NEW:
                why = "the first token is the prefill's, and a study compares the time of the later ones"
                self.add_error("new", f"Write at least {LEAST_NEW}: {why}.")

    @property
    def spec(self) -> RunSpec:
        """The spec of the single device. Needs a valid form."""
        assert self.source is not None
        return generating.spec_of(self.source, generating.ONE)

    def plan(self) -> Plan:
        assert self.source is not None
        splits = [Split.read(text) for text in self.cleaned_data["degrees"]]
        request = self.request(self.spec.model.vocab)
        return generation.plan(self.source, int(self.cleaned_data["step"]), request, splits)

    def estimate(self) -> Estimate:
        """The sum of the runs one after another; unknown where nothing is known of the times of one of them."""
        plan, repeats = self.planned, self.cleaned_data["repeats"]
        each = [self.evidence.seconds(variant) for variant in plan.variants]
        known = [seconds for seconds in each if seconds is not None]
        minutes = repeats * sum(known) / 60 if known and len(known) == len(each) else None
        why, source = "the first run shows how long a token takes", self.evidence.source(plan.variants)
        if known and minutes is None:
            count, most = len(known) * repeats, seconds_text(sum(known) * repeats)
            why += f"; {count} of the runs {'takes' if count == 1 else 'take'} at most {most} in all"
        bound = self.evidence.bound
        return Estimate(len(each) * repeats, plan.devices, minutes, unknown=why, source=source, bound=bound)

    @cached_property
    def evidence(self) -> Evidence:
        """What is known of times where the checkpoint is. Needs a valid form."""
        assert self.source is not None
        begins: ResumeFrom = {"run": self.source.pk, "step": int(self.cleaned_data["step"])}
        needs = placing(self.spec, Files.of(self.fleet), begins=begins)[1].needs
        names = [worker.name for worker in self.fleet.among(needs)]
        table = calibration(self.spec.train.device, self.fleet, names) if names else None
        return evidence(self.source, self.spec, names, table)

    def seconds_of(self, variant: Variant) -> float | None:
        return self.evidence.seconds(variant)

    def times_of(self, variant: Variant) -> str:
        times = self.evidence.times(variant)
        return str(times) if times else ""

    def create(self, owner: Any) -> Study:
        spec, names = self.spec, ("run", "step", "prompt", *ASKED, "degrees")
        shared = spec.model_dump(mode="json")
        base = {"model": shared["model"], "train": {name: shared["train"][name] for name in ("precision", "device")}}
        new = services.NewStudy(self.kind, base, self.plan(), {name: self.cleaned_data[name] for name in names})
        more: dict[str, Any] = {"repeats": self.cleaned_data["repeats"], "queue": self.in_queue()}
        return services.create(owner=owner, name=self.named(outline_of(spec.model).title), new=new, **more)


def _sources() -> list[Run]:
    """The newest runs that text can be generated from."""
    kept = Checkpoint.objects.values("run")
    gpts = Q(spec__model__kind="gpt") | Q(spec__model__kind__isnull=True)
    runs = Run.objects.filter(gpts, pk__in=kept, task={}, state__in=ENDED)
    return list(runs.only("name").order_by("-pk")[:MOST_OFFERED])


def _unsuitable(run: Run | None, given: str) -> str:
    """Why no study can be made from what was `given` as the source run; '' if one can."""
    if run is None:
        if not given:
            return "Name the run whose checkpoint generates the text."
        unread = number(given) is None
        return f"Write the number of a run; got “{given}”." if unread else f"There is no run {given}."
    if run.task:
        instead = f", as run {run.resume_run_id} does, from which it generates" if run.resume_run_id else ""
        return f"Run {run.pk} does not train, so it has no checkpoint; name a run that trains a GPT{instead}."
    kind = run.spec["model"].get("kind", "gpt")
    if kind != "gpt":
        return f"Run {run.pk} trains {outline_of(RunSpec.stored(run.spec).model).title}; only a GPT generates text."
    if run.state not in ENDED:
        return f"Run {run.pk} has not ended: it may delete the checkpoint before the last run of the study."
    if not resuming.steps(run):
        return f"Run {run.pk} has no checkpoint: it was to write none, or its workers deleted them."
    return ""


def _right_ones(runs: Sequence[Run]) -> str:
    """Which runs would do."""
    if not runs:
        return "No run would do yet: train a GPT with “Checkpoint every” above 0 first."
    named = [f"{run.pk} ({run.name})" for run in runs[:NAMED]]
    more = [f"{len(runs) - NAMED} more"] if len(runs) > NAMED else []
    return f"Run{'s' * (len(runs) > 1)} {listed_text([*named, *more])} would do."
