"""Checkpoints that turned out to be damaged when a run was to begin from them."""

from __future__ import annotations

import re
from typing import NamedTuple

from dashboard.one_look import read_once
from dashboard.runs.models import Checkpoint, Run, State
from parallel_core.analysis.quantities import steps_text

_FOUND = re.compile(r"(is damaged|was changed|is no checkpoint)(?:: ([^\n]{1,200}))?")
_STEP = re.compile(r"step-(\d{8})\b")


class Damage(NamedTuple):
    """What run `by` found wrong with the checkpoint of `step`."""

    step: int
    by: int
    what: str

    @property
    def sentence(self) -> str:
        return f"The checkpoint after {steps_text(self.step)} {self.what}."


@read_once
def damaged(run: Run) -> dict[int, Damage]:
    """The run's damaged checkpoints by step; not those written again since, or from which a later run began."""
    rows = Run.objects.filter(resume_run=run).order_by("pk")
    tried = rows.values_list("pk", "resume_step", "state", "detail", "ended_at")
    written = dict(Checkpoint.objects.filter(run=run).order_by("at").values_list("step", "at"))
    found: dict[int, Damage] = {}
    for pk, step, state, detail, ended in tried:
        if step is None:
            continue
        what = _what(detail, step) if state == State.FAILED else ""
        if what and step in written and (ended is None or written[step] < ended):
            found[step] = Damage(step, pk, what)
        elif state in (State.RUNNING, State.SUCCEEDED):
            found.pop(step, None)
    return found


def _what(detail: str, step: int) -> str:
    """What the sentence on how a run ended says of the damage to its checkpoint of `step`; '' if nothing."""
    said, named = _FOUND.search(detail), _STEP.search(detail)
    if said is None or "checkpoint" not in detail.lower() or (named and int(named[1]) != step):
        return ""
    verb, why = said[1], said[2] or ""
    return f"{verb}: {why.strip().removesuffix('.')}" if why else verb
