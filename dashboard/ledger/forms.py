"""Forms of the Partition page. All of them but the request for a profile are in the query of the address."""

from __future__ import annotations

import re
from typing import Any

from django import forms

from dashboard.fields import Choice, Form, WholeNumber
from dashboard.fleet.selectors import reporting
from dashboard.fleet.words import unable_text
from dashboard.ledger.model_words import differences, with_details
from dashboard.ledger.models import Profile, ProfileState
from dashboard.ledger.optimizers import optimizer_field
from dashboard.ledger.selectors import profile_key
from dashboard.runs.form.choice_labels import CHOICE_LABELS
from dashboard.runs.form.presets import PRESETS
from dashboard.runs.models import Run
from parallel_core.known_fields import needs_later
from parallel_core.outline import outline_of
from parallel_core.outline.splits import Cut
from parallel_core.profile.request import for_worker, other_kernels
from parallel_core.spec import ModelSpec, RunSpec

MOST_STAGES, MOST_REPLICAS = 64, 64
RECENT = 20
NO_PROFILE = dict.fromkeys(("required", "invalid_choice"), "Choose a finished profile of the list.")
COST_FORMS = [("paper", "the paper's maximum"), ("released", "the tool's sum")]
"""How the cost of a replicated stage is computed: see `plan.pipedream`."""
CUTS: dict[Cut, str] = {"columns": ", by columns, too"}
"""What is said of the ways to split tensor groups that a profile measures only for a run that has them."""
_BETWEEN = re.compile(r"\s*[,\-]\s*|\s+")
_NUMBER = re.compile(r"[0-9]{1,9}")


def models() -> dict[str, RunSpec]:
    """Title -> a spec with that model: those of the presets, then of the newest runs that train.

    Each model is listed once, and again for each way of sharing layers over a tensor group that a profile measures only
    if its spec has it. Of models of one title, each but the first says in what it differs from the first.
    """
    specs = [RunSpec.model_validate(preset.spec) for preset in PRESETS]
    for spec in Run.objects.filter(task={}).order_by("-id").values_list("spec", flat=True)[:RECENT]:
        try:
            specs.append(RunSpec.model_validate(spec))
        except ValueError:  # stored by an older version
            continue
    found: dict[str, RunSpec] = {}
    firsts: dict[str, ModelSpec] = {}
    known: set[tuple[str, str]] = set()
    for spec in specs:
        more_cuts = CUTS.get(spec.parallel.cut, "")
        key = profile_key(spec), more_cuts
        if key not in known:
            known.add(key)
            title = outline_of(spec.model).title
            first = firsts.setdefault(title, spec.model)
            device = CHOICE_LABELS[spec.train.device]
            more = f"{spec.train.global_batch} samples, {spec.train.precision}, {device}{more_cuts}"
            more += ", deterministic" if other_kernels(spec) else ""
            found[f"{with_details(title, differences(spec.model, first))}: {more}"] = spec
    return found


class ProfileForm(Form):
    """A model and the worker that is to profile it."""

    worker = Choice(label="Worker")
    model = Choice(label="Model")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.workers = {str(worker.pk): worker for worker in reporting()}
        kinds = {device["kind"] for worker in self.workers.values() for device in worker.devices}
        self.specs = {title: spec for title, spec in models().items() if spec.train.device in kinds}
        self.fields["worker"].choices = [(pk, worker.name) for pk, worker in self.workers.items()]  # type: ignore[attr-defined]
        self.fields["model"].choices = [(title, title) for title in self.specs]  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if self.errors:
            raise forms.ValidationError("Choose a worker that reports and a model.")
        worker, spec = self.workers[cleaned["worker"]], self.specs[cleaned["model"]]
        wanted = spec.train.device
        kinds = [device["kind"] for device in worker.devices]
        if wanted not in kinds:
            has = f"{len(kinds)} {CHOICE_LABELS[kinds[0]]} device{'s' * (len(kinds) > 1)}" if kinds else "no device"
            raise forms.ValidationError(
                f"Worker {worker.name} has {has}, and the model is to be timed on a {CHOICE_LABELS[wanted]}: "
                "choose another worker or model."
            )
        needed = needs_later(for_worker(spec.model_dump(mode="json")))
        if lacking := [name for name in needed if name not in worker.fields]:
            unable = unable_text([(worker.name, worker.version)], "", lacking)
            raise forms.ValidationError(f"{unable}: update it, or choose another worker or model.")
        return cleaned


class CutForm(Form):
    """A profile and how its layers are cut. Numbers are separated by commas, dashes or spaces."""

    profile = forms.ModelChoiceField(
        Profile.objects.filter(state=ProfileState.DONE).select_related("worker").defer("table"),
        label="Profile",
        empty_label=None,
        error_messages=NO_PROFILE,
    )
    samples = WholeNumber(label="Micro-batch, samples", min_value=1, max_value=4096, required=False)
    workers = WholeNumber(label="Devices", min_value=1, max_value=MOST_REPLICAS, required=False)
    cuts = forms.CharField(label="Cuts", required=False, help_text="layers at which stages 1, 2, … begin")
    replicas = forms.CharField(label="Replicas", required=False, help_text="of each stage, e.g. 2-1")
    form = Choice(label="Cost form", required=False, choices=COST_FORMS)
    optimizer = optimizer_field()

    def show(self, samples: int, workers: int) -> None:
        """Puts the values used for empty fields into their placeholders."""
        for name, value in (("samples", samples), ("workers", workers)):
            self.fields[name].widget.attrs["placeholder"] = str(value)

    def _numbers(self, name: str) -> list[int]:
        text = str(self.cleaned_data[name]).strip()
        if len(parts := _BETWEEN.split(text) if text else []) > MOST_STAGES:
            raise forms.ValidationError(f"At most {MOST_STAGES} numbers; got {len(parts)}.")
        if not all(_NUMBER.fullmatch(part) for part in parts):
            raise forms.ValidationError(f"Whole numbers are needed, separated by commas; got {text[:40]}.")
        return [int(part) for part in parts]

    def clean_cuts(self) -> list[int]:
        return self._numbers("cuts")

    def clean_replicas(self) -> list[int]:
        found = self._numbers("replicas")
        if wrong := [count for count in found if not 1 <= count <= MOST_REPLICAS]:
            raise forms.ValidationError(f"Each stage has 1 to {MOST_REPLICAS} replicas; got {wrong[0]}.")
        if sum(found) > MOST_REPLICAS:
            raise forms.ValidationError(f"All stages have {MOST_REPLICAS} devices at most; got {sum(found)}.")
        return found

    def clean(self) -> dict[str, Any]:
        """Checks rules between fields: a micro-batch is at most the batch of the profiled run, and each stage has a
        replica count."""
        values = dict(super().clean() or {})
        if self.errors:
            return values
        batch, samples = values["profile"].spec["train"]["global_batch"], values["samples"]
        if samples and samples > batch:
            self.add_error("samples", f"{samples} samples are more than the batch of {batch}; use {batch} or fewer.")
        stages, counts = len(values["cuts"]) + 1, len(values["replicas"])
        if values["cuts"] and counts and counts != stages:
            self.add_error("replicas", f"{stages} stages need {stages} numbers of replicas; got {counts}.")
        return values
