"""The what-if question and its answer in the API, the same for runs and imported traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from django.forms import Form
from ninja import Query, Schema
from pydantic import Field

from dashboard.api import schemas as s
from dashboard.runs.services import Invalid
from dashboard.runs.tracing.whatif_form import LINKS
from dashboard.runs.tracing.whatif_range import UNKNOWN, Likely
from dashboard.runs.tracing.whatif_replay import Times

Links = Literal["1.5", "2", "3", "4", "6", "10", "20", "50", "100", "free"]
assert {"", *Links.__args__} == {key for key, _ in LINKS}  # type: ignore[attr-defined]


class ChangeIn(Schema):
    """The change; whatever is left out stays as measured."""

    step: Annotated[s.Step | None, Field(description="a traced step")] = None
    links: Annotated[Links | None, Field(description="so many times as fast, or free")] = None
    device: Annotated[float | None, Field(ge=0.1, le=100, allow_inf_nan=False, description="times as fast")] = None
    schedule: Annotated[s.Text | None, Field(description="of a pipeline: one of the engine's schedules, by name")] = (
        None
    )
    micro_batches: Annotated[int | None, Field(ge=1, le=4096, description="of a pipeline")] = None
    early_gradients: Annotated[
        bool, Field(description="of a pipeline: the gradient of a stage's input leaves before those of its weights")
    ] = False
    balanced: Annotated[bool, Field(description="stages of a pipeline take equal time")] = False
    no_recompute: Annotated[bool, Field(description="of a step that recomputes activations")] = False

    def asked(self) -> dict[str, Any]:
        """Returns the fields that change something, as data for the what-if form."""
        given = self.model_dump(exclude={"step"}, exclude_none=True)
        return {name: str(value) for name, value in given.items() if value is not False}


Change = Query[ChangeIn]


class IdeaOut(Schema):
    """A single change."""

    words: str
    query: str = Field(description="asks for it: behind the ? of this operation")
    step_ns: int


class WhatIfOut(Schema):
    """A step replayed with a change. `why_not` says why no prediction is possible; times are then null. The replay
    without a change shows how far off the others may be."""

    step: int | None
    why_not: str
    known: str = Field(description="what was recovered of an imported pipeline, and how surely; '' of runs")
    sentence: str
    measured_ns: int | None
    unchanged_ns: int | None
    predicted_ns: int | None
    low_ns: int | None = Field(description="eight of ten runs with the change take low to high, by earlier ones")
    high_ns: int | None
    likely: str = Field(description="how far off the prediction may be; '' where no run can have it, or it is unknown")
    ideas: list[IdeaOut]


def nothing(step: int | None, why_not: str) -> dict[str, Any]:
    """Returns a WhatIfOut, as a dict, for a step about which nothing can be known."""
    times = dict.fromkeys(("measured_ns", "unchanged_ns", "predicted_ns", "low_ns", "high_ns"))
    return {"step": step, "why_not": why_not, "known": "", "sentence": "", "likely": "", "ideas": [], **times}


def answer(
    step: int,
    asked: Mapping[str, Any],
    form: Form,
    times: Times,
    sentence: str,
    ideas: Sequence[Mapping[str, Any]],
    known: str = "",
    likely: Likely = UNKNOWN,
) -> dict[str, Any]:
    """Returns a WhatIfOut as a dict.

    Raises Invalid if the step has nothing of that kind to change, or the form refuses a value.
    """
    foreign = sorted(set(asked) - set(form.fields))
    errors = {name: f"This step has none to change; {', '.join(form.fields)} can be." for name in foreign}
    errors |= {name: " ".join(map(str, said)) for name, said in form.errors.items()}
    if errors:
        raise Invalid(errors)
    return nothing(step, "") | {
        "known": known,
        "sentence": sentence,
        "measured_ns": round(times.measured),
        "unchanged_ns": round(times.unchanged),
        "predicted_ns": None if times.predicted is None else round(times.predicted),
        "low_ns": None if likely.low is None else round(likely.low),
        "high_ns": None if likely.high is None else round(likely.high),
        "likely": likely.text,
        "ideas": [
            {"words": one["words"], "query": urlencode({"step": step, **one["asked"]}), "step_ns": round(one["ns"])}
            for one in ideas
        ],
    }
