"""The most likely cause of a loss that diverged, with the change that would help; `recipe` has those that fields of the
optimizer show by themselves."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from parallel_core.analysis.diagnosis.case import Case
from parallel_core.analysis.diagnosis.fp16_overflow import IN_BF16, PLAIN, SKIPPED, skipped_of, what_is_skipped
from parallel_core.analysis.diagnosis.recipe import decay_too_strong, forgets_too_soon
from parallel_core.analysis.quantities import figure_text, plural_text
from parallel_core.learning_rate import rate_at
from parallel_core.schedule.traits import TRAITS

SPIKE = 1.25
"""From so many times an earlier loss on it rose: the falling loss of small batches fluctuates by some ten per cent."""
GRADIENTS_GREW = 10.0
JUMP = 3.0
"""Factor from one step to the next; a warm-up takes hundreds of steps for as much."""


def likely_cause(case: Case, at: int) -> tuple[str, str]:
    """(evidence, change) for the most likely cause: the first that is found."""
    return next(found for cause in _CAUSES if (found := cause(case, at)) is not None)


def _overflowed(case: Case, at: int) -> tuple[str, str] | None:
    """Not where the loss rose before: the scale is a factor on gradients alone, so no other one would keep it low."""
    skipped, _ = skipped_of(case.spec, case.skipped[: at + 1], case.first_step)
    finite = case.loss[np.isfinite(case.loss)]
    rose = len(finite) > 0 and (finite.max() >= SPIKE * finite[0] or finite[-1] >= SPIKE * finite.min())
    if case.spec.train.precision != "fp16" or skipped <= SKIPPED or rose:
        return None
    return (
        f"{skipped:.0f} {what_is_skipped(case.spec)[0]} had overflowed in fp16 before it.",
        IN_BF16,
    )


def _older_weights(case: Case, at: int) -> tuple[str, str] | None:
    if TRAITS[case.spec.parallel.schedule].sync == "flush":
        return None
    return (
        "Its schedule applies gradients of older weights.",
        "Lower train.lr, or use a schedule that flushes, such as 1f1b.",
    )


def _rate_jump(case: Case, at: int) -> tuple[str, str] | None:
    """The learning rate rose at once by JUMP or more, beyond what its schedule asks for; also over the checkpoint that
    the run goes on from."""
    rates, steps = case.lr[: at + 1], case.loss_steps[: at + 1].tolist()
    if case.rate_before is not None and steps and steps[0] > 0:
        rates, steps = np.concatenate([[case.rate_before], rates]), [steps[0] - 1, *steps]
    if len(rates) < 2 or not (rates > 0).all():
        return None
    asked = np.array([rate_at(case.spec.train, step) for step in steps[: len(rates)]])
    rises = rates[1:] / rates[:-1] / (asked[1:] / asked[:-1])
    step = int(rises.argmax()) + 1
    factor = float(rises[step - 1])
    if factor < JUMP:
        return None
    return (
        f"The learning rate jumped from {_short(float(rates[step - 1]))} to {_short(float(rates[step]))} "
        f"at step {steps[step]}.",
        f"Undo the jump to {_times(factor)} times the rate, or warm it up over hundreds of steps.",
    )


def _rate_above_asked(case: Case, at: int) -> tuple[str, str] | None:
    rate, asked = float(case.lr[: at + 1].max(initial=0.0)), case.spec.train.lr
    if rate < JUMP * asked:
        return None
    return (
        f"The learning rate was {rate:g}, {_short(rate / asked)} times train.lr, at a batch of "
        f"{case.spec.train.global_batch}.",
        f"Train at train.lr, {asked:g}.",
    )


def _rate_too_high(case: Case, at: int) -> tuple[str, str]:
    """What is left: train.lr itself, with the growth of the gradient norm if there was any."""
    batch = f"train.lr is {case.spec.train.lr:g} at a batch of {case.spec.train.global_batch}"
    before = case.grad_norm[: at + 1][np.isfinite(case.grad_norm[: at + 1])]
    grew = float(before.max() / np.median(before)) if len(before) and np.median(before) > 0 else 1.0
    more = f"; the gradient norm grew to {_short(grew)} times its median" if grew >= GRADIENTS_GREW else ""
    warmed = case.spec.train.lr_warmup_steps
    over = f" over more than {plural_text(warmed, 'step')}" if warmed else ""
    rate, why = _rate_to_try(case, at)
    lower = f"Lower train.lr, to {rate:.2g} say, or warm it up{over} (train.lr_warmup_steps)"
    clip = "" if case.spec.train.clip_norm else "; clip the gradient norm"
    return f"{batch}{more}.{why}", f"{lower}{clip}."


def _rate_to_try(case: Case, at: int) -> tuple[float, str]:
    """(a lower train.lr, a sentence on what it rests on): half of the rate at the lowest loss, where it still warmed up
    then; a hundredth where the loss never fell; else a tenth."""
    train, loss = case.spec.train, case.loss[: min(at + 1, len(case.lr))]
    if not len(loss) or case.first_step > 0:
        return train.lr / 10, ""
    best = int(np.where(np.isfinite(loss), loss, np.inf).argmin())
    rate, step = float(case.lr[best]), case.loss_steps[best]
    if step < train.lr_warmup_steps and 0 < rate <= train.lr / 2:
        return rate / 2, f" The loss fell until the rate had warmed up to {_short(rate)}, at step {step}."
    return (train.lr / 10, "") if best else (train.lr / 100, " The loss never fell at that rate.")


def _short(value: float) -> str:
    """A positive number to three digits, from a thousand on whole with its thousands separated; with an exponent where
    it is very small or very large."""
    return figure_text(value) if 1 <= value < PLAIN else f"{value:.3g}"


def _times(factor: float) -> str:
    """A factor as the header of a run with an injected one writes it: a large power of ten as `10^30`, although rates,
    which are kept in float32, have it only nearly."""
    power = round(math.log10(factor))
    near = math.isclose(factor, 10.0**power, rel_tol=1e-5)
    return f"10^{power}" if factor >= PLAIN and near else _short(factor)


_CAUSES: tuple[Callable[[Case, int], tuple[str, str] | None], ...] = (
    _rate_jump,
    _rate_above_asked,
    _overflowed,
    decay_too_strong,
    forgets_too_soon,
    _older_weights,
    _rate_too_high,
)
"""Each returns (evidence, change) if the run shows it up to the point `at`; the last one always does. A rate that the
spec does not ask for comes first: runs without one may overflow, and apply older gradients, too."""
