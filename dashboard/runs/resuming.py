"""Resuming from another run's checkpoint: which checkpoints there are, and whether a spec can begin from one."""

from __future__ import annotations

import re
from typing import Any

from dashboard.one_look import read_once
from dashboard.runs.damaged import damaged
from dashboard.runs.models import Checkpoint, Run
from parallel_core.analysis.quantities import count_text, significant, step_text
from parallel_core.checkpoint.match import mismatches
from parallel_core.limits import MAX_STEPS
from parallel_core.spec import RunSpec
from workers.contract import ResumeFrom

FIELD = "resume_from"
_SPELLING = re.compile(r"^(\d{1,18}):(\d{1,9})$")


def parse(text: str) -> ResumeFrom | None:
    """`12:40` = run 12 after 40 steps; None for an empty text. Else raises ValueError with a message for users."""
    if not text.strip():
        return None
    found = _SPELLING.match(text.strip())
    if found is None:
        raise ValueError("Write the run's number and the step, e.g. 12:40; leave it empty to begin anew.")
    return {"run": int(found[1]), "step": int(found[2])}


@read_once
def steps(run: Run) -> list[int]:
    """Steps of the run's checkpoints that some worker still has, ascending."""
    return sorted(set(Checkpoint.objects.filter(run=run).values_list("step", flat=True)))


def sound(run: Run) -> list[int]:
    """Those of its `steps` that no run has found damaged."""
    bad = damaged(run)
    return [step for step in steps(run) if step not in bad]


def first_choice(run: Run) -> int | None:
    """The default step to resume from: the newest undamaged, else the newest; None if there is none."""
    return max(sound(run) or steps(run), default=None)


def best(run: Run) -> Checkpoint | None:
    """The checkpoint with the lowest held-out loss, of several the first; None where it is known of fewer than two."""
    known = Checkpoint.objects.filter(run=run, held_out__isnull=False).order_by("held_out", "step")
    return known.first() if len({row.step for row in known}) > 1 else None


def remark(best: Checkpoint | None, step: int) -> str:
    """What choices say beside a step: that its checkpoint is the `best`; '' for others."""
    if best is None or best.held_out is None or best.step != step:
        return ""
    return f"lowest held-out loss, {significant(best.held_out, 4)}"


def with_steps_left(spec: dict[str, Any], step: int) -> dict[str, Any]:
    """The spec; if it would have ended by `step`, with as many steps again after `step`."""
    train = spec.get("train", {})
    own = train.get("steps", step)
    return spec if step < own else {**spec, "train": {**train, "steps": min(MAX_STEPS, step + own)}}


def check(spec: RunSpec, named: ResumeFrom) -> dict[str, str]:
    """Message by dotted field if a run of `spec` cannot begin from the checkpoint; at `resume_from` if that does not
    exist."""
    run = Run.objects.filter(pk=named["run"]).first()
    if run is None or absent(run, named["step"]):
        return missing(named)
    never = {field: why for fault in spec.inject for field, why in fault.never_after(named["step"]).items()}
    return {**never, **mismatches(run.spec, spec, named["step"])}


def missing(named: ResumeFrom) -> dict[str, str]:
    """Message at `resume_from` if no worker has the checkpoint; {} if one has."""
    run = Run.objects.filter(pk=named["run"]).first()
    why = f"There is no run {named['run']}." if run is None else absent(run, named["step"])
    return {FIELD: why} if why else {}


def lost_beginning(run: Run) -> str:
    """Why a run like this one cannot begin from the checkpoint that this one began from; '' if it can, or began with
    step 0."""
    if run.resume_step is None:
        return ""
    begins = run.resumes_from
    return missing(begins).get(FIELD, "") if begins else "The run whose checkpoint that was has been deleted."


def absent(run: Run, step: int) -> str:
    """Says that the run has no checkpoint at the step, and which it has; '' if it has."""
    have = steps(run)
    if step in have:
        return ""
    some = f"it has steps {', '.join(map(str, have))}" if have else "it has none"
    return f"Run {run.pk} has no checkpoint at {step_text(step)}; {some}."


def doubt(named: ResumeFrom | None) -> str:
    """A warning if another run found the checkpoint damaged; else ''."""
    run = Run.objects.filter(pk=named["run"]).first() if named else None
    bad = damaged(run).get(named["step"]) if run and named else None
    if run is None or bad is None:
        return ""
    others = [step for step in sound(run) if step != bad.step]
    instead = (
        f"Step {count_text(others[-1])} is not known to be." if others else f"Run {run.pk} has no other checkpoint."
    )
    return f"Run {bad.by} was to begin from it and found: {bad.sentence} {instead}"
