"""The held-out loss rises while the loss of training falls: the model learns its samples, not what holds beyond them.

Threshold: at the last two evaluations the held-out loss is at least 2 % above its lowest, and the mean loss of training
before the last one is below that after the lowest, up to the next. (Before the lowest lies the untrained model where it
is the first.) All evaluations are of the same samples, so without learning they do not differ; between updates of one
small batch each they fluctuate by less than a per cent.
"""

from __future__ import annotations

from math import isfinite

from parallel_core.analysis.diagnosis.case import Case, Finding
from parallel_core.analysis.quantities import percent_text, significant, step_text
from parallel_core.outline import outline_of

RISE, LAST = 1.02, 2


def check(case: Case) -> Finding | None:
    """Judges from three evaluations on."""
    steps, held_out = case.held_out_steps, case.held_out
    if len(held_out) <= LAST:
        return None
    best = int(held_out.argmin())
    low, last = float(held_out[best]), float(held_out[-1])
    if low <= 0 or not (held_out[-LAST:] >= RISE * low).all():
        return None
    then, now = (_trained(case, at) for at in (best + 1, len(held_out) - 1))
    if then is None or now is None or now >= then:
        return None
    began, end = step_text(steps[best]), step_text(steps[-1])
    trained = f"{significant(then, 4)} at {step_text(steps[best + 1])}, {significant(now, 4)} at {end}"
    return Finding(
        "overfitting",
        f"{percent_text(last / low - 1)} above its lowest: the held-out loss has risen since {began}, while "
        "that of training fell.",
        f"Held out: {significant(low, 4)} at {began}, {significant(last, 4)} at {end}. Trained, "
        f"mean since the evaluation before: {trained}.",
        f"Stop earlier, train on more data, or raise {_damper(case)}.{_saved(case, int(steps[best]))}",
        tab="metrics",
    )


def _damper(case: Case) -> str:
    """What can be raised to learn less of single samples: not every kind of model has dropout."""
    dropout = "dropout (model.dropout) or " if "dropout" in outline_of(case.spec.model).fields else ""
    return f"{dropout}weight decay (train.weight_decay)"


def _saved(case: Case, best: int) -> str:
    """Whether the model with the lowest held-out loss, after step `best`, is there still; '' if unknown."""
    if case.checkpoints is None:
        return ""
    if best + 1 in case.checkpoints:
        return " The checkpoint of its lowest held-out loss is kept."
    train = case.spec.train
    if train.checkpoint_every and train.eval_every % train.checkpoint_every == 0:
        return " The checkpoint of its lowest held-out loss is not kept."
    return " A checkpoint at each evaluation (train.checkpoint_every) would keep the best."


def _trained(case: Case, at: int) -> float | None:
    """The mean loss of the steps between an evaluation and the one before; None where none is known or one is not
    finite."""
    steps = case.held_out_steps
    values = case.loss[(case.loss_steps > steps[at - 1]) & (case.loss_steps <= steps[at])]
    mean = float(values.mean()) if len(values) else None
    return mean if mean is not None and isfinite(mean) else None
