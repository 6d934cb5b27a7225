"""Sentences on why runs that are compared may tell less than they seem to, each with its full stop; labels are inserted
unescaped."""

from __future__ import annotations

from collections.abc import Sequence

from parallel_core.analysis.quantities import listed_text, one_of, percent_text
from parallel_core.analysis.sentences import Result
from parallel_core.analysis.stats import LEAST


def few_steps(results: Sequence[Result]) -> str:
    """A warning if runs that are compared have too few timed steps to tell them apart; '' if not."""
    short = sum(result.step.few for result in results)
    if not short or len(results) < 2:
        return ""
    have = f"{short} of {len(results)} runs {'has' if short == 1 else 'have'} fewer than {LEAST} timed steps"
    return f"{have}, too few to tell a difference from noise: train more steps."


def disturbed_baseline(baseline: Result) -> str:
    """A warning that precedes any ratio over the baseline if other processes disturbed it; '' if not."""
    if not baseline.taken:
        return ""
    return (
        f"The baseline, {baseline.label}, was disturbed: other processes took {percent_text(baseline.taken)} of "
        f"{one_of(baseline.devices)}, so speedups over it come out too high."
    )


def disturbed(others: Sequence[float | None], above: float) -> str:
    """A warning if other processes used more than `above` of a device during timed steps; '' if not."""
    known = [share for share in others if share is not None]
    noisy = [share for share in known if share > above]
    if not noisy:
        return ""
    took = f"other processes took up to {percent_text(max(noisy))}"
    if len(known) == 1:
        return f"The run was disturbed: {took} of one of its devices, so repeat it before trusting its times."
    runs = f"{len(noisy)} of {len(known)} runs {'was' if len(noisy) == 1 else 'were'} disturbed"
    whose = "its" if len(noisy) == 1 else "their"
    return f"{runs}: {took} of one of {whose} devices, so repeat before trusting ratios."


def occupied(labels: Sequence[str]) -> str:
    """A warning if other processes were on the GPUs of these runs, of which they used nobody knows how much; '' if
    there are none."""
    if not labels:
        return ""
    their = "its" if len(labels) == 1 else "their"
    return (
        f"{listed_text(labels)} may have been disturbed: other processes were on {their} GPUs. Whether they used them "
        "is not known, so repeat before trusting ratios."
    )


def crowded(many: int, of: int, cores: int) -> str:
    """A note if so many runs have more CPU devices than there are cores that these share; '' if none has."""
    if not many:
        return ""
    have, their = ("has", "its") if many == 1 else ("have", "their")
    shared = "the one core" if cores == 1 else f"the {cores} cores"
    return f"{many} of {of} runs {have} more devices than {shared} that these share: {their} ranks take turns."
