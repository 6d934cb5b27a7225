"""Submits runs that generate text; what they have generated so far is in `generated_text`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from dashboard.fleet.run_on import ANYWHERE, RunOn
from dashboard.fleet.selectors import FleetSnapshot
from dashboard.runs import resuming, services, weights
from dashboard.runs.models import Run
from dashboard.runs.waiting import fleet_checks
from dashboard.runs.waiting import run_on as places
from parallel_core import limits
from parallel_core.analysis.generated import (
    text,
)
from parallel_core.analysis.quantities import count_text
from parallel_core.generation_request import inference, read_request
from parallel_core.model_spec import BYTES
from parallel_core.plan.strategy import degrees_label
from parallel_core.spec import RunSpec, field_errors
from workers.contract import ResumeFrom

LABEL = "Generate"
_NAME = 40
_SPLIT = re.compile(r"(\d{1,9})\s*[x×]\s*(\d{1,9})\s*[x×]\s*(\d{1,9})")


def able(run: Run) -> bool:
    """Whether text can be generated from the run: it is a GPT with a checkpoint, or begins from weights, also to
    generate."""
    if (run.task and not run.generates) or run.spec.get("model", {}).get("kind", "gpt") != "gpt":
        return False
    return bool(weights_of(run)) or bool(resuming.steps(run))


def weights_of(run: Run) -> str:
    """The weights from which the run begins with step 0; '' if it begins otherwise."""
    return str(run.spec.get("train", {}).get("weights", "")) if run.resume_step is None else ""


def of_weights(name: str) -> Run | None:
    """A run that begins from weights of a worker, as a source of text; it is not in the database, and its number is 0.
    None if no worker that reports has them, or tells their model in words of another version."""
    made = weights.spec_of(name, FleetSnapshot.now())
    try:
        return None if made is None else Run(pk=0, name=name, spec=RunSpec.model_validate(made).model_dump(mode="json"))
    except ValidationError:
        return None


def begins_from(run: Run, step: int) -> ResumeFrom | None:
    """The run's checkpoint of `step`; None of step 0 where that is the weights that the run begins from."""
    return None if step == 0 and weights_of(run) else {"run": run.pk, "step": step}


def prompt_tokens(given: str, vocab: int) -> list[int]:
    """The prompt as tokens: its bytes for a vocabulary of at most 256, else the numbers in it.

    Raises ValueError with a message for the user.
    """
    if vocab <= BYTES:
        return list(given.encode())
    try:
        return [int(part) for part in given.replace(",", " ").split()]
    except ValueError as error:
        raise ValueError("Write numbers of tokens with commas or blanks between.") from error


class Split(NamedTuple):
    """The devices to use: `dp` replicas of `pp` stages of `tp` devices each. Written as `2x1x1`, in that order."""

    tp: int = 1
    pp: int = 1
    dp: int = 1

    @classmethod
    def read(cls, written: str) -> Split:
        """The split of a text; `1` is a single device. Raises ValueError with a message for the user."""
        found = _SPLIT.fullmatch("1x1x1" if written.strip() == "1" else written.strip())
        if found is None:
            what = "write tensor ranks x stages x replicas, such as 2x1x1, or 1 for a single device"
            raise ValueError(f"“{written.strip()[:40]}” is no split; {what}.")
        split = cls(*map(int, found.groups()))
        if not all(1 <= degree <= limits.MAX_DEGREE for degree in split):
            raise ValueError(f"Each number of “{written.strip()}” must be from 1 to {count_text(limits.MAX_DEGREE)}.")
        return split

    def __str__(self) -> str:
        return "x".join(map(str, self))

    @property
    def world(self) -> int:
        """Number of devices."""
        return self.tp * self.pp * self.dp

    @property
    def label(self) -> str:
        """`Single`, `TP 2`, `DP 2 x TP 2`."""
        return degrees_label(*self)


ONE = Split()
"""A single device."""


def submit(
    *,
    owner: Any,
    run: Run,
    step: int,
    request: Mapping[str, Any],
    split: Split = ONE,
    name: str = "",
    on: RunOn = ANYWHERE,
    priority: int = 0,
    also: services.Also = services.nothing_else,
) -> Run:
    """Queues a run that generates from `run`'s checkpoint of `step`, on the host that has it or on hosts that share its
    folder, and there on the devices chosen (`on`); `also` gets it.

    Raises services.Invalid with a message by field (`step`, `run_on`, `priority`, those of Split, or of
    parallel_core.generation_request.TextRequest).
    """
    begins = begins_from(run, step)
    if begins and (gone := resuming.absent(run, step)):
        raise services.Invalid({"step": gone})
    spec = spec_of(run, split, step)
    found = read_request(request, spec)
    errors = {**found.errors, **lost_weights(spec), **crowded(split, fleet_check(spec, begins, on))}
    if found.request is None or errors:
        raise services.Invalid(errors)
    return services.submit(
        owner=owner,
        also=also,
        spec=spec.model_dump(mode="json"),
        name=name.strip() or _called(text(found.request["prompt"], spec.model.vocab)),
        resume_from=begins,
        task=dict(found.request),
        run_on=str(on),
        priority=priority,
    )


def _called(start: str) -> str:
    """The name of a run whose prompt starts so."""
    return f"{LABEL}: {start[:_NAME]}{'…' if len(start) > _NAME else ''}".replace("\x00", "")


def lost_weights(spec: RunSpec) -> dict[str, str]:
    """Why no worker that reports can begin from the weights, at `step`; {} if one can, or the spec names none."""
    found = weights.weights_errors(spec, FleetSnapshot.now())
    return {"step": " ".join(found.values())} if found else {}


def fleet_check(spec: RunSpec, begins: ResumeFrom | None, on: RunOn = ANYWHERE) -> fleet_checks.FleetCheck:
    """What the devices chosen of the fleet say to a run that generates text from the checkpoint `begins`, or from the
    weights that the spec names."""
    return fleet_checks.fleet_check(spec, FleetSnapshot.now().narrowed(on), begins=begins, task="generate")


def crowded(split: Split, check: fleet_checks.FleetCheck) -> dict[str, str]:
    """Why no workers can hold so many ranks, at the field with the largest degree, or why those chosen cannot, at
    `run_on`; {} if some can."""
    wide = max(Split._fields, key=lambda name: getattr(split, name))
    at = places.FIELD if places.FIELD in check.errors else wide
    return {at: " ".join(check.errors.values())} if check.errors else {}


def spec_of(run: Run, split: Split, step: int | None = None) -> RunSpec:
    """The run's model on so many devices; `step` 0 may stand for the weights that it begins from (`begins_from`).
    Raises services.Invalid if it cannot be split like that."""
    try:
        read = weights_of(run) if step is not None and begins_from(run, step) is None else ""
        return inference(run.spec, *split, weights=read)
    except ValidationError as error:
        found = field_errors(error)
        field = next((name for name in ("pp", "dp") if f"parallel.{name}" in found), "tp")
        raise services.Invalid({field: " ".join(found.values())}) from error
    except ValueError as error:
        raise services.Invalid({"step": f"{error}."}) from error
