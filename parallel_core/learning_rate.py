"""The learning rate of each step: a linear warm-up, then constant or decaying to a share of its peak.

It depends on the spec and the number of the step alone, so a run that is resumed with the same spec goes on exactly. A
run resumed with more steps decays over all of them: its rate rises where it goes on. Under a pipeline that never
flushes, an update has the rate of the step whose micro-batches it sums, on every stage.
"""

from __future__ import annotations

from math import cos, pi
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parallel_core.spec import TrainSpec


def rate_at(train: TrainSpec, step: int) -> float:
    """Returns the learning rate of the updates of `step`, counted from 0.

    With W = `train.lr_warmup_steps` it is (step + 1)/(W + 1) of `train.lr` before step W (the gradual warm-up of Goyal
    et al. 2017, section 2.2, from the first increment on), and all of it in step W. From there it decays so that it
    would reach `train.lr_final` of it in step `train.steps`, the first that is not run: along a line, or half a period
    of a cosine (Loshchilov and Hutter 2017, equation 5, without restarts).
    """
    warmup = train.lr_warmup_steps
    if step < warmup:
        return train.lr * (step + 1) / (warmup + 1)
    if train.lr_schedule == "constant":
        return train.lr
    passed = min((step - warmup) / (train.steps - warmup), 1.0)
    left = 1 - passed if train.lr_schedule == "linear" else (1 + cos(pi * passed)) / 2
    return train.lr * (train.lr_final + (1 - train.lr_final) * left)
