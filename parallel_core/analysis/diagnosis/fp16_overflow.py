"""Overflows of fp16: how many steps a run skipped for them, and what to do where these are too many.

Threshold: more than 3 skipped steps that are more than a fifth of all. A loss scale starts high and is halved a few
times, then one step in thousands overflows (Micikevicius et al. 2018, section 3.2).
"""

from __future__ import annotations

import math

import numpy as np

from parallel_core.analysis.diagnosis.case import Case, Finding
from parallel_core.analysis.quantities import bound_text, plural_text
from parallel_core.spec import RunSpec

SKIPPED, SKIPPED_SHARE = 3, 0.2
_BF16 = "train in bf16, whose range is that of fp32"
IN_BF16 = f"{_BF16.capitalize()}."
PLAIN = 1e7
"""Scales, rates and factors below this are written without an exponent."""


def what_is_skipped(spec: RunSpec) -> tuple[str, int]:
    """(what fp16 skips on overflow, how many of them a step has). Without a flush each stage skips updates of its own;
    rank 0, which reports, is on the first stage."""
    if spec.parallel.flushes:
        return "steps", 1
    return "updates of the first stage", spec.parallel.updates(0)


def skipped_of(spec: RunSpec, counts: np.ndarray, first: int) -> tuple[float, int]:
    """(how many this run skipped of what fp16 skips, of how many) where its points, from step `first` on, have these
    `counts`.

    A checkpoint holds the number so far, so a run that began from one counts on from its source's number. How much of
    its first point is its own is not recorded: such a run is judged by the steps after that one.
    """
    each = what_is_skipped(spec)[1]
    if first == 0 or not len(counts):
        return (float(counts[-1]) if len(counts) else 0.0), each * len(counts)
    return float(counts[-1] - counts[0]), each * (len(counts) - 1)


def overflowing(case: Case) -> Finding | None:
    """The finding of the rule `divergence` where too many steps were skipped; None if not."""
    what, first = what_is_skipped(case.spec)[0], case.first_step
    skipped, of = skipped_of(case.spec, case.skipped, first)
    if skipped <= SKIPPED or skipped < SKIPPED_SHARE * of:
        return None
    title = f"{skipped:.0f} of {of} {what} were skipped: fp16 overflows."
    rises = int((np.diff(case.loss_scale) > 0).sum())
    evidence, change = _of_growth(case, rises) if 2 * rises >= skipped else _of_scale(case, bool(first))
    return Finding("divergence", title, evidence, change, tab="metrics", urgent=True)


def _of_growth(case: Case, rises: int) -> tuple[str, str]:
    """(evidence, change) where the scale rose half as often as a step was skipped: one that begins lower rises, too."""
    window = plural_text(case.spec.train.loss_scale_window, "good step")
    return (
        f"The loss scale rose {plural_text(rises, 'time')}, after {window} each, and overflowed again.",
        f"Raise train.loss_scale_window, or {_BF16}.",
    )


def _of_scale(case: Case, resumed: bool) -> tuple[str, str]:
    """(evidence, change) where the scale had to fall. A run that has `resumed` has that of its checkpoint."""
    scale = _scale_text(float(case.loss_scale[-1])) if len(case.loss_scale) else "unknown"
    still = len(case.skipped) > 1 and case.skipped[-1] > case.skipped[-2]
    known = len(case.loss_scale) > 0 and not still
    begin = "Begin anew" if resumed else "Begin"
    do = f"{begin} with a train.loss_scale of {scale} or less" if known else f"{begin} with a lower train.loss_scale"
    last = f"{scale} in the last step{', skipped, too' if still else ''}"
    began = float(case.loss_scale[0]) if resumed and len(case.loss_scale) else case.spec.train.loss_scale
    kept = "; a checkpoint keeps its own of both" if resumed else ""
    return (
        f"The loss scale began at {_scale_text(began)} and was {last}.",
        f"{do}, or {_BF16}{kept}.",
    )


def _scale_text(value: float) -> str:
    """`65 536`, `2^60`, `2e+23`: with an exponent where it would have too many digits."""
    return bound_text(value) if value < PLAIN or math.frexp(value)[0] == 0.5 else f"{value:.3g}"
