"""What the sentence on top of a run's page says of its losses: the last ones, and whether they rose or went wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dashboard.runs import selectors
from dashboard.runs.models import Run
from dashboard.runs.skips import skipped
from parallel_core.analysis.diagnosis.divergence import LAST, risen_since
from parallel_core.analysis.diagnosis.divergence_causes import SPIKE
from parallel_core.analysis.diagnosis.fp16_overflow import what_is_skipped
from parallel_core.analysis.quantities import significant, step_text, steps_text
from parallel_core.spec import RunSpec


def diverged(run: Run) -> str:
    """That the loss is not finite any more, which nothing else about the run matters beside; else ''."""
    loss = selectors.series(run, "loss")
    if not len(loss.value) or np.isfinite(loss.value[-1]):
        return ""
    last_good = np.flatnonzero(np.isfinite(loss.value))
    first_bad = loss.step[last_good[-1] + 1] if len(last_good) else loss.step[0]
    return f"The loss is not a finite number from {step_text(first_bad)} on: Findings name the likely cause. "


def rise(run: Run) -> str:
    """That the run ended at a loss above its first one, by more than noise: nothing else matters about it; else ''."""
    last, points = run.summary.get("final_loss"), selectors.first_after(run, "loss", 0, -1, 1)
    if last is None or not len(points.value) or not last >= SPIKE * points.value[0]:
        return ""
    loss = selectors.series(run, "loss")  # only now, as there may be millions
    if not loss.value[-LAST:].min() >= SPIKE * loss.value[0]:
        return ""  # not of the last one alone, which may be that of an odd batch
    if loss.step[0] > 0 and not risen_since(loss.value):
        return ""  # it goes on from a checkpoint, so the first one may be that of an odd batch, too
    began = f"{significant(loss.value[0], 4)} at {step_text(loss.step[0])}"
    return f"The loss rose from {began} to {significant(last, 4)}. "


def final_losses(run: Run) -> str:
    loss, held_out = run.summary.get("final_loss"), run.summary.get("held_out")
    if loss is None:
        return ""
    return f" Final loss {significant(loss, 4)}{_beside(run, held_out) if held_out else ''}."


def _beside(run: Run, held_out: Mapping[str, Any]) -> str:
    """The last held-out loss, with its step where that is not the run's last, and the lowest one if it came earlier."""
    step, best = held_out["step"], held_out.get("best", held_out)
    said = f", held out {significant(held_out['loss'], 4)}"
    said += f" at {step_text(step)}" if step + 1 < run.spec["train"]["steps"] else ""
    if best["step"] >= step:
        return said
    done = best["step"] + 1
    left = run.checkpoints.filter(step=done).exists()
    kept = f", kept in the checkpoint after {steps_text(done)}" if left else ""
    return f"{said} (lowest {significant(best['loss'], 4)} at {step_text(best['step'])}{kept})"


def skipped_updates(run: Run) -> str:
    """How many updates fp16 skipped; '' if none."""
    number, of = skipped(run)
    if not number:
        return ""
    what = what_is_skipped(RunSpec.stored(run.spec))[0]
    return f"{number} of {of} {what} were skipped: their fp16 gradients overflowed."
