"""Causes of a divergence that the fields of the optimizer show by themselves: each makes weights grow at nearly any
learning rate, so that a lower one does not help."""

from __future__ import annotations

import math

from parallel_core.analysis.diagnosis.case import Case
from parallel_core.analysis.quantities import significant
from parallel_core.spec import TrainSpec

USUAL = TrainSpec()
REMEMBERS = 1.1
"""From this beta1 over the root of beta2 on, steps are found too large: it has to be below 1 (Reddi et al. 2018,
theorem 4). The more it is above, the more of a large gradient is left when its square is forgotten."""


def decay_too_strong(case: Case, at: int) -> tuple[str, str] | None:
    """(evidence, change) where weight decay alone makes the weights grow: AdamW multiplies them by 1 - rate x decay;
    SGD, which adds it to the gradient, overshoots by more than the momentum brings back."""
    train = case.spec.train
    taken = float(case.lr[: at + 1].max(initial=0.0)) * train.weight_decay
    most = 2.0 if train.optimizer == "adamw" else 2.0 * (1 + train.momentum)
    if taken <= most or train.weight_decay <= USUAL.weight_decay:
        return None
    return (
        f"train.weight_decay is {significant(train.weight_decay)}: at this rate each update takes {significant(taken)} "
        f"times a weight from it, and more than {significant(most)} times make it grow.",
        f"Lower train.weight_decay, to {USUAL.weight_decay:g} say.",
    )


def forgets_too_soon(case: Case, at: int) -> tuple[str, str] | None:
    """(evidence, change) where AdamW's mean of the gradients remembers longer than that of their squares: large ones
    still move the weights when nothing scales them down any more."""
    train = case.spec.train
    if train.optimizer != "adamw" or train.beta1 < REMEMBERS * math.sqrt(train.beta2):
        return None
    both = f"Set train.beta1 to {USUAL.beta1:g} and train.beta2 to {USUAL.beta2:g}."
    raised = f"Raise train.beta2, to {USUAL.beta2:g} say."
    return (
        f"train.beta1 is {train.beta1:g}, above {math.sqrt(train.beta2):.2g}, the root of train.beta2: AdamW "
        "forgets how large gradients were before it forgets them.",
        raised if train.beta1 < math.sqrt(USUAL.beta2) else both,
    )
