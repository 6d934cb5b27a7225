"""The loss is not finite or has risen sharply: with the most likely cause.

Thresholds: a loss that is not finite, urgent only where it stays so to the end; or one that for the last 3 points is
at least 1.5 times the lowest mean of 5 steps and above its first value, after at least 10 points; or one that rose to
1.25 times that of the untrained model, and, if half of the run is below that, above its median by four times what the
loss usually changes in a step: of a few samples at a time, one may be as far off in a run that learns well. A run that
goes on from a checkpoint begins with the loss of one batch, and the lowest of many windows is low by chance: there the
last 3 are at least 1.5 times its first value, and above it by three such changes; an untrained model guesses among all
classes.
The falling loss of small batches fluctuates by some ten per cent. In fp16, more than 3 skipped steps that are more than
a fifth of all: a loss scale starts high and is halved a few times, then one step in thousands overflows (Micikevicius
et al. 2018, section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from parallel_core.analysis.diagnosis.case import Case, Finding, Floats
from parallel_core.analysis.diagnosis.recipe import decay_too_strong, forgets_too_soon
from parallel_core.analysis.quantities import bound_text, few_text, figure_text, plural_text, significant
from parallel_core.learning_rate import rate_at
from parallel_core.outline import outline_of
from parallel_core.schedule.traits import TRAITS
from parallel_core.spec import RunSpec

SPRING, POINTS, LAST, MEAN = 1.5, 10, 3, 5
SKIPPED, SKIPPED_SHARE = 3, 0.2
GRADIENTS_GREW = 10.0
JUMP = 3.0
"""Factor from one step to the next; a warm-up takes hundreds of steps for as much."""
SPIKE = 1.25
RISEN, HIGHEST = 3.0, 4.0
"""How many usual changes of the logarithm the last losses, or the highest of many, are above others beyond noise."""
LEAST = 1e-12
"""Losses below it count as it: the logarithm of a loss that is 0 is not finite."""
IN_BF16 = "Train in bf16, whose range is that of fp32."
PLAIN = 1e7
"""Scales, rates and factors below this are written without an exponent."""


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
    if (found := _overflowing(case)) is not None or not len(case.loss):
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
    if _first_step(case) == 0:
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
    if _first_step(case) > 0:
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


def _first_step(case: Case) -> int:
    return int(case.loss_steps[0]) if len(case.loss_steps) else 0


def _overflowing(case: Case) -> Finding | None:
    what, first = what_is_skipped(case.spec)[0], _first_step(case)
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
        "Raise train.loss_scale_window, or train in bf16, whose range is that of fp32.",
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
        f"{do}, or train in bf16, whose range is that of fp32{kept}.",
    )


def _scale_text(value: float) -> str:
    """`65 536`, `2^60`, `2e+23`: with an exponent where it would have too many digits."""
    return bound_text(value) if value < PLAIN or math.frexp(value)[0] == 0.5 else f"{value:.3g}"


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


def _finding(case: Case, title: str, at: int) -> Finding:
    evidence, change = _cause(case, at)
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


def _cause(case: Case, at: int) -> tuple[str, str]:
    """(evidence, change) for the most likely cause: the first that is found."""
    return next(found for cause in _CAUSES if (found := cause(case, at)) is not None)


def _fp16_overflow(case: Case, at: int) -> tuple[str, str] | None:
    """Not where the loss rose before: the scale is a factor on gradients alone, so no other one would keep it low."""
    skipped, _ = skipped_of(case.spec, case.skipped[: at + 1], _first_step(case))
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
    if not len(loss) or _first_step(case) > 0:
        return train.lr / 10, ""
    best = int(np.where(np.isfinite(loss), loss, np.inf).argmin())
    rate, step = float(case.lr[best]), case.loss_steps[best]
    if step < train.lr_warmup_steps and 0 < rate <= train.lr / 2:
        return rate / 2, f" The loss fell until the rate had warmed up to {_short(rate)}, at step {step}."
    return (train.lr / 10, "") if best else (train.lr / 100, " The loss never fell at that rate.")


_CAUSES: tuple[Callable[[Case, int], tuple[str, str] | None], ...] = (
    _rate_jump,
    _rate_above_asked,
    _fp16_overflow,
    decay_too_strong,
    forgets_too_soon,
    _older_weights,
    _rate_too_high,
)
"""Each returns (evidence, change) if the run shows it up to the point `at`; the last one always does. A rate that the
spec does not ask for comes first: runs without one may overflow, and apply older gradients, too."""
