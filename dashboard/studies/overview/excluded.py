"""Sentences on runs that are left out of verdicts, bars and counts because they ended without a result; and on runs
whose loss is not finite, or which skipped updates."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.runs.form.form_words import in_ended_words
from dashboard.runs.models import ENDED, Run, State
from parallel_core.analysis.quantities import listed_text

EXPLAINED, NAMED = 2, 4
"""Up to EXPLAINED of them have their reason in the verdict; of more, NAMED are named."""
MANY = 0.1
"""From this share of its updates on, skipping them is said of a run: a scale that begins high skips a few."""
_ENDS = {State.FAILED: "failed", State.CANCELLED: "cancelled", State.LOST: "lost"}
_VERBS = {"failed": "failed", "cancelled": "was cancelled", "lost": "was lost"}


def ended_of(run: Run) -> str:
    """How the run ended without a result, as charts mark it; '' if it has one or has not ended."""
    return _ENDS.get(State(run.state), "") if run.state in ENDED else ""


def sentences(runs: Sequence[tuple[str, Run]]) -> list[str]:
    """For (label, run): which of them are not compared, and why; [] if all are."""
    cut = [(label, run) for label, run in runs if ended_of(run)]
    if len(cut) <= EXPLAINED:
        return [_explained(label, run) for label, run in cut]
    named = [f"{label} {_VERBS[ended_of(run)]}" for label, run in cut[:NAMED]]
    more = len(cut) - len(named)
    listed = listed_text([*named, f"{more} more"] if more else named)
    return [f"{len(cut)} runs are left out: {listed}; the table has their reasons."]


def diverged(labels: Sequence[str]) -> str:
    """A sentence on runs whose loss is not finite; '' if there are none."""
    if not labels:
        return ""
    named = [*labels[:NAMED], f"{len(labels) - NAMED} more"] if len(labels) > NAMED else labels
    one = len(labels) == 1
    return f"The loss{'' if one else 'es'} of {listed_text(named)} {'is' if one else 'are'} not finite any more."


def skipping(runs: Sequence[tuple[str, Run]]) -> str:
    """A sentence on (label, run)s that skipped MANY of their updates, as fp16 does where gradients overflow: they did
    less than the others, and learned less; '' if there are none."""
    counts = [(label, *(run.summary.get("skipped") or (0, 1))) for label, run in runs]
    many = [f"{label} skipped {number} of {of} updates" for label, number, of in counts if number >= MANY * of]
    if not many:
        return ""
    more = [f"{len(many) - NAMED} more skipped many"] if len(many) > NAMED else []
    return f"{listed_text([*many[:NAMED], *more])}: fp16 gradients overflowed."


def _explained(label: str, run: Run) -> str:
    why = in_ended_words(run.detail, run.cause).strip().removesuffix(".")
    return f"{label} {_VERBS[ended_of(run)]} and is left out{f': {why}' if why else ''}."
