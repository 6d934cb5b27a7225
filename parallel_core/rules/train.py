"""Rules about corpus, dropout, steps, optimizer and evaluations of a run. Errors name fields and valid values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallel_core.analysis.quantities import plural_text
from parallel_core.limits import DROPOUT_STEPS
from parallel_core.llama_models import no_llama
from parallel_core.outline import outline_of
from parallel_core.outline.images import DIGITS
from parallel_core.rules import Proposal, nearest, refusal, rule_error

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec


def check_corpus(spec: RunSpec) -> None:
    """Checks that the model's kind can train on the corpus."""
    able, kind = outline_of(spec.model).corpora, spec.train.corpus.partition(":")[0]
    if kind not in able:
        named = {
            "blob": "an uploaded text",
            "tokens": "a token file (tokens:name)",
            "images": "an image file (images:name)",
        }
        words = " or ".join(named.get(word, f"'{word}'") for word in able)
        raise rule_error(
            ("train.corpus", "model.kind"),
            f"kind={spec.model.kind} trains on {words}, got '{spec.train.corpus}'; use corpus={able[0]}.",
        )
    if kind == "digits":
        _check_digits(spec)


def _check_digits(spec: RunSpec) -> None:
    """Checks that the model takes grey images and tells ten classes apart."""
    model = spec.model
    if model.channels > 1:
        raise refusal(
            ("model.channels", "train.corpus"),
            f"channels={model.channels} has no data in corpus=digits, whose images are grey; name an image file "
            "(corpus=images:NAME), or use",
            Proposal("channels={}", "model.channels", [1]),
        )
    if model.classes < DIGITS:
        raise refusal(
            ("model.classes", "train.corpus"),
            f"classes={model.classes} is too few for corpus=digits, which has {DIGITS}; use",
            Proposal("classes={}", "model.classes", [DIGITS]),
        )


def check_weights(spec: RunSpec) -> None:
    """Checks that a run which begins from weights has a model of which such weights can be."""
    if spec.train.weights and (wrong := no_llama(spec.model)):
        raise rule_error(
            ("train.weights", wrong.partition("=")[0]),
            f"weights={spec.train.weights} are those of a Llama, and this model has {wrong}.",
        )


def check_dropout(spec: RunSpec) -> None:
    """Checks that dropout, rounded to a multiple of 2^-16, is neither nothing nor everything."""
    p, least = spec.model.dropout, 1 / DROPOUT_STEPS
    if p == 0 or least <= p <= 1 - least:
        return
    raise refusal(
        ("model.dropout",),
        f"dropout is drawn in steps of 2^-16, and {p:.15g} is less than one step from {round(p)}; use",
        Proposal("dropout={}", "model.dropout", [least if p < least else 1 - least]),
        Proposal("dropout={}", "model.dropout", [0.0]),
    )


def check_steps(spec: RunSpec) -> None:
    """Checks that there are timed steps after the warm-up steps."""
    if spec.train.steps <= spec.train.warmup_steps:
        warm = plural_text(spec.train.warmup_steps, "warm-up step")
        most = spec.train.steps - 1
        raise rule_error(
            ("train.steps", "train.warmup_steps"),
            f"steps={spec.train.steps} leaves none to time after {warm}; use steps="
            f"{spec.train.warmup_steps + 1} or more, or warmup_steps={most}{' or fewer' if most else ''}.",
        )


def check_rate(spec: RunSpec) -> None:
    """Checks that the learning rate reaches its peak before the run ends."""
    train = spec.train
    if train.lr_warmup_steps < train.steps:
        return
    raise refusal(
        ("train.lr_warmup_steps", "train.steps"),
        f"lr_warmup_steps={train.lr_warmup_steps} never lets the learning rate reach its peak in "
        f"{plural_text(train.steps, 'step')}; use",
        Proposal("lr_warmup_steps={}", "train.lr_warmup_steps", [train.steps - 1]),
        Proposal("steps={}", "train.steps", [train.lr_warmup_steps + 1]),
    )


OPTIMIZER_FIELDS = {"adamw": ("beta1", "beta2", "eps"), "sgd": ("momentum",)}
"""Optimizer -> the fields of `train` that it alone reads."""


def check_momentum(spec: RunSpec) -> None:
    """Checks that a momentum is given to an optimizer that has one."""
    train, usual = spec.train, type(spec.train).model_fields["momentum"].default
    if train.optimizer == "sgd" or train.momentum == usual:
        return
    raise refusal(
        ("train.momentum", "train.optimizer"),
        f"momentum={train.momentum:g} is SGD's, and optimizer={train.optimizer} has none (its beta1 is the nearest); "
        "use",
        Proposal("optimizer={}", "train.optimizer", ["sgd"]),
        Proposal("momentum={}", "train.momentum", [usual]),
    )


def check_evaluations(spec: RunSpec) -> None:
    """Checks that the pipeline is empty where the held-out loss is evaluated: filling it again would change what it
    learns."""
    train, split = spec.train, spec.parallel
    if not train.eval_every or split.flushes or train.eval_every >= train.steps:
        return
    saves = train.checkpoint_every
    if saves and train.eval_every % saves == 0:
        return
    where = f"other than after checkpoints, every {saves} steps, and" if saves else "before"
    below = train.eval_every // saves * saves if saves else 0
    multiples = nearest([value for value in (below, below + saves) if 0 < value < train.steps], train.eval_every)
    raise refusal(
        ("train.eval_every", "train.checkpoint_every", "parallel.schedule"),
        f"eval_every={train.eval_every} would drain schedule={split.schedule} {where} the last step, "
        "which changes its updates; use",
        Proposal("eval_every={}, after the last step alone", "train.eval_every", [train.steps]),
        *([Proposal("eval_every={}", "train.eval_every", multiples)] if multiples else []),
        Proposal("schedule={}", "parallel.schedule", ["1f1b"]),
    )
