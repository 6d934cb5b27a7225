"""The loss is not finite or has risen sharply: with the most likely cause.

Thresholds: a loss that is not finite, urgent only where it stays so to the end; or one that for the last 3 points is
at least 1.5 times the lowest mean of 5 steps and above its first value, after at least 10 points; or one that rose to
1.25 times that of the untrained model, and, if half of the run is below that, above its median by four times what the
loss usually changes in a step: of a few samples at a time, one may be as far off in a run that learns well. A run that
goes on from a checkpoint begins with the loss of one batch, and the lowest of many windows is low by chance: there the
last 3 are at least 1.5 times its first value, and above it by three such changes; an untrained model guesses among all
classes.
The falling loss of small batches fluctuates by some ten per cent. In fp16 too many skipped steps count, too
(`fp16_overflow`).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from parallel_core.analysis.diagnosis.case import Case, Finding, Floats
from parallel_core.analysis.diagnosis.divergence_causes import SPIKE, likely_cause
from parallel_core.analysis.diagnosis.fp16_overflow import overflowing
from parallel_core.analysis.quantities import few_text, significant
from parallel_core.outline import outline_of

SPRING, POINTS, LAST, MEAN = 1.5, 10, 3, 5
RISEN, HIGHEST = 3.0, 4.0
"""How many usual changes of the logarithm the last losses, or the highest of many, are above others beyond noise."""
LEAST = 1e-12
"""Losses below it count as it: the logarithm of a loss that is 0 is not finite."""


def check(case: Case) -> Finding | None:
    """The first of: not finite at the end, risen sharply, overflowing in fp16, spiked, not finite before."""
    good = np.flatnonzero(np.isfinite(case.loss))
    since = int(good[-1]) + 1 if len(good) else 0
    if since < len(case.loss):
        return _finding(case, f"The loss is not a number from step {case.loss_steps[since]} on.", since)
    if len(good) == len(case.loss):
        return _grown(case)
    filled = np.interp(np.arange(since), good, case.loss[good])
    return _grown(replace(case, loss=filled)) or _recovered(case)


def _recovered(case: Case) -> Finding:
    bad = np.flatnonzero(~np.isfinite(case.loss))
    steps = f"step{'s' * (len(bad) > 1)} {few_text(case.loss_steps[bad].tolist())}"
    return replace(_finding(case, f"The loss was not a number at {steps}; it recovered.", int(bad[0])), urgent=False)


def _grown(case: Case) -> Finding | None:
    """The first of: risen sharply, overflowing in fp16, spiked. Every loss is finite."""
    if (risen := _sprung(case)) is not None:
        low, at = risen
        title = f"{significant(float(case.loss[-1]) / low)} times its lowest: the loss has sprung up."
        return _finding(case, title, at)
    if (found := overflowing(case)) is not None or not len(case.loss):
        return found
    at = int(case.loss.argmax())
    high, begun = float(case.loss[at]), max(float(case.loss[0]), _untrained(case))
    middle = float(np.median(case.loss))
    if high < SPIKE * begun or (middle < begun and high < math.exp(HIGHEST * _usual(case.loss)) * middle):
        return None
    title = f"{significant(high)} at step {case.loss_steps[at]}: the loss rose above that of the untrained model."
    return _finding(case, title, at)


def _untrained(case: Case) -> float:
    """The loss of a model that guesses among all classes, where the run goes on from a checkpoint; else 0, as its first
    loss is that."""
    if case.first_step == 0:
        return 0.0
    model = case.spec.model
    return math.log(model.vocab if "vocab" in outline_of(model).fields else model.classes)


def _usual(loss: Floats) -> float:
    """By how much the logarithm of the loss usually changes in a step; of one that rises most of the time, by how much
    it falls: what diverges is no noise."""
    changes = np.diff(np.log(np.maximum(loss, LEAST)))
    falls = -changes[changes < 0]
    return float(min(np.median(np.abs(changes)), np.median(falls))) if len(falls) else 0.0


def _sprung(case: Case) -> tuple[float, int] | None:
    """(lowest mean, index of the first loss far above it, up to which its cause is sought) if it ended so."""
    if len(case.loss) < POINTS:
        return None
    means = np.convolve(case.loss, np.ones(MEAN) / MEAN, "valid")
    low, low_at, first = float(means.min()), int(means.argmin()) + MEAN - 1, float(case.loss[0])
    at = low_at + int((case.loss[low_at:] >= SPRING * low).argmax())
    if case.first_step > 0:
        return ((low, at) if low < first else (first, 0)) if risen_since(case.loss) else None
    last = case.loss[-LAST:]
    if low <= 0 or last.min() < SPRING * low or last.min() < first:
        return None
    return low, at


def risen_since(loss: Floats) -> bool:
    """Whether the finite losses of a run that goes on from a checkpoint ended above the first by more than noise."""
    if len(loss) < POINTS:
        return False
    return bool(loss[-LAST:].min() >= max(SPRING, math.exp(RISEN * _usual(loss))) * loss[0])


def _finding(case: Case, title: str, at: int) -> Finding:
    evidence, change = likely_cause(case, at)
    return Finding("divergence", title, f"{_before(case, at)}{evidence}", change, tab="metrics", urgent=True)


def _before(case: Case, at: int) -> str:
    """A sentence on the lowest loss before it went wrong; '' if there is none."""
    earlier = case.loss[:at]
    if not np.isfinite(earlier).any():
        return ""
    best = int(np.nanargmin(np.where(np.isfinite(earlier), earlier, np.nan)))
    if not best:
        return f"It began at {significant(float(earlier[best]))}. "
    return f"It had come down to {significant(float(earlier[best]))} at step {case.loss_steps[best]}. "
