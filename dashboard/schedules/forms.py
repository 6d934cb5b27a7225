"""The form of the Schedules page: two schedules, the size of the pipeline, and what its operations cost."""

from __future__ import annotations

from typing import Any

from django import forms
from pydantic_core import PydanticCustomError

from dashboard.fields import Choice, Form, Number, WholeNumber
from dashboard.runs.form.form_words import in_form_words
from dashboard.schedules import searched
from dashboard.schedules.words import EARLY_ONES, LABELS
from parallel_core.plan.orders.problem import OrderError
from parallel_core.plan.orders.search import FoundOrder
from parallel_core.rules.pipeline import check_pipeline
from parallel_core.schedule import names
from parallel_core.schedule.traits import TRAITS
from parallel_core.simulate import typed_stages
from parallel_core.simulate.schedule_preview import EARLY, SchedulePreview, preview, preview_at, preview_of
from parallel_core.simulate.typed_stages import Stage, StagesError, typed_preview
from parallel_core.spec import ParallelSpec

MAX_OPERATIONS = 12_000
"""The most operations of a schedule that is drawn: more cannot be told apart in a picture."""
MAX_SIMULATED = 5 * MAX_OPERATIONS
"""The most operations of a schedule that takes several steps until all of its devices work: more would take seconds."""
NONE = ""
FIELD_OF = {"parallel.pp": "p", "parallel.micro_batches": "m", "parallel.chunks": "v"}
OWN_WORDS = {"parallel.pp": "Devices", "parallel.chunks": "Chunks", "parallel.schedule": "Schedule"}
"""Labels of fields that New run labels differently."""


class ScheduleForm(Form):
    """All fields are in the query and have defaults. A valid form has `previews`."""

    a = Choice(label="Schedule")
    b = Choice(label="Held against", required=False)
    p = WholeNumber(label="Devices", min_value=1, max_value=32)
    m = WholeNumber(label="Micro-batches", min_value=1, max_value=256)
    v = WholeNumber(label="Chunks, if any", min_value=1, max_value=8, required=False)
    forward = Number(label="Forward", min_value=0.1, max_value=100)
    grad = Number(label="Input gradient", min_value=0, max_value=100)
    weight = Number(label="Weight gradient", min_value=0, max_value=100)
    message = Number(label="Message", min_value=0, max_value=100)
    keep = Number(label="Found order keeps", min_value=1, max_value=256, required=False)
    stages = forms.CharField(
        label="Free stages", required=False, max_length=1500, widget=forms.Textarea({"rows": 5, "spellcheck": "false"})
    )

    DEFAULTS = {"a": "1f1b", "b": "gpipe", "p": 4, "m": 8, "v": "", "forward": 1, "grad": 1, "weight": 1, "message": 0}

    WIDE = ("stages",)
    """Fields outside the grid of short ones."""

    previews: list[SchedulePreview]
    found: list[FoundOrder]
    """The results for those schedules that were searched for."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__({**self.DEFAULTS, **given}, auto_id="f-%s", use_required_attribute=False)
        choices = [(name, LABELS[name]) for name in (*names(), *EARLY_ONES, *searched.SHAPES)]
        self.fields["a"].choices = choices  # type: ignore[attr-defined]
        self.fields["b"].choices = [(NONE, "nothing"), *choices]  # type: ignore[attr-defined]
        for name, field in self.fields.items():
            field.widget.attrs["aria-describedby"] = f"error-{name}{' help-stages' if name == 'stages' else ''}"

    def short(self) -> list[forms.BoundField]:
        return [field for field in self if field.name not in self.WIDE]

    def clean_stages(self) -> tuple[Stage, ...]:
        try:
            return typed_stages.read(text) if (text := self.cleaned_data["stages"].strip()) else ()
        except StagesError as error:
            raise forms.ValidationError(str(error)) from None

    def clean(self) -> dict[str, Any]:
        asked = dict(super().clean() or {})  # without fields that have errors
        if not self.errors:
            self.found = []
            chosen = [asked[side] for side in ("a", "b") if asked[side]]
            self.previews = [made for i, name in enumerate(chosen) if (made := self._preview("ab"[i], name, asked))]
        return asked

    def _searched(self, name: str, asked: dict[str, Any]) -> SchedulePreview | None:
        """Searches for an order; None, with an error at a field, if there is none within the limits."""
        each = 3 * (len(asked["stages"]) or asked["p"]) * (2 if searched.SHAPES[name] == "v" else 1)
        if each * asked["m"] > searched.MOST_OPERATIONS:
            most = searched.MOST_OPERATIONS // each
            self.add_error("m", f"{each * asked['m']} operations are too many to search; use at most {most}.")
            return None
        try:
            made = searched.search(name, asked)
        except OrderError as error:
            self.add_error("keep", str(error).removeprefix("limit: "))
            return None
        self.found.append(made)
        if asked["stages"]:
            prices = typed_stages.prices(asked["stages"], asked["message"])
            return preview_at(searched.schedule_of(name, made), prices)
        costs = asked["forward"], asked["grad"], asked["weight"]
        return preview_of(searched.schedule_of(name, made), costs, asked["message"])

    def _typed(self, side: str, name: str, asked: dict[str, Any]) -> SchedulePreview | None:
        """Simulates the schedule with the stages that were typed; None, with an error at a field, if that is
        impossible."""
        stages, m = asked["stages"], asked["m"]
        plain = max(stage.replicas for stage in stages) == 1 and not typed_stages.silent(stages)
        possible = [*typed_stages.names(stages), *(["found"] if plain else [])]
        if name not in possible:
            listed = "; ".join(LABELS[other] for other in possible)  # some have commas
            self.add_error(side, f"{LABELS[name]} cannot have these stages. Choose one of {listed}.")
        elif name in TRAITS and (why := typed_stages.wrong_count(name, stages, m)):
            self.add_error("m", f"{LABELS[name]}: {why}")
        elif m * (each := 3 * len(stages)) > MAX_OPERATIONS:
            self.add_error("m", f"{each * m} operations are too many to draw; use at most {MAX_OPERATIONS // each}.")
        elif name in searched.SHAPES:
            return self._searched(name, asked)
        elif (whole := m * each * typed_stages.steps_of(name, stages, m)) > MAX_SIMULATED:
            devices = sum(stage.replicas for stage in stages)
            self.add_error("stages", f"{whole} operations until {devices} devices are full; use fewer replicas.")
        else:
            return typed_preview(name, stages, m, asked["message"])
        return None

    def _preview(self, side: str, name: str, asked: dict[str, Any]) -> SchedulePreview | None:
        """Simulates or searches for one schedule; None, with an error at a field, if that is impossible."""
        if asked["stages"]:
            return self._typed(side, name, asked)
        if name in searched.SHAPES:
            return self._searched(name, asked)
        p, m, early, plain = asked["p"], asked["m"], name in EARLY_ONES, name.removesuffix(EARLY)
        traits = TRAITS[plain]
        chunks = asked["v"] if p > 1 and traits.most != 1 else None
        try:
            split = ParallelSpec(schedule=plain, pp=p, micro_batches=m, chunks=chunks, early_gradients=early)  # type: ignore[arg-type]
            check_pipeline(split, split.stages)
        except PydanticCustomError as error:
            field = next((FIELD_OF[f] for f in (error.context or {}).get("fields", ()) if f in FIELD_OF), "a")
            self.add_error(field, in_form_words(error.message(), OWN_WORDS))
            return None
        each = split.stages * (3 if traits.split or early else 2)
        if each * m > MAX_OPERATIONS:
            self.add_error("m", f"{each * m} operations are too many to draw; use at most {MAX_OPERATIONS // each}.")
            return None
        costs = (asked["forward"], asked["grad"], asked["weight"])
        return preview(name, p, m, costs, asked["message"], chunks)
