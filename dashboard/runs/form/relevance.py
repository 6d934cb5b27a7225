"""When a leaf of the spec applies: some mean nothing with another model, schedule or precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dashboard.runs.form import break_it
from parallel_core.llama_models import LLAMA
from parallel_core.outline import KINDS
from parallel_core.rules.train import OPTIMIZER_FIELDS
from parallel_core.schedule.traits import round_robins, takes_early_gradients


class Condition(NamedTuple):
    """The leaf applies while `leaf` has one of `values`; if `negated`, while it has none of them."""

    leaf: str
    values: tuple[str, ...]
    negated: bool = False


def condition(path: str) -> Condition | None:
    """When the leaf applies; None = always."""
    switch = break_it.switch_of(path)
    if switch is not None:
        return Condition(switch, ("true",))
    if path == "parallel.program":
        return Condition("parallel.schedule", ("custom",))
    if path == "parallel.early_gradients":
        return Condition("parallel.schedule", tuple(takes_early_gradients()))
    if path == "parallel.replicas":
        return Condition("parallel.schedule", tuple(round_robins()))
    if path == "parallel.recompute_layers":
        return Condition("parallel.recompute", ("selective", "full"))
    if path == "parallel.zero_backend":
        return Condition("parallel.zero", ("3",))
    if path == "train.lr_final":
        return Condition("train.lr_schedule", ("linear", "cosine"))
    for optimizer, fields in OPTIMIZER_FIELDS.items():
        if path.removeprefix("train.") in fields:
            return Condition("train.optimizer", (optimizer,))
    if path == "train.eval_samples":
        return Condition("train.eval_every", ("0",), negated=True)
    if path == "train.weights":
        return Condition("model.kind", (str(LLAMA["kind"]),))
    if path.startswith("train.loss_scale"):
        return Condition("train.precision", ("fp16",))
    return of_kinds(kinds_of(path))


def of_kinds(kinds: Sequence[str]) -> Condition | None:
    """The condition that the model is of one of the kinds; None = of any."""
    return Condition("model.kind", tuple(kinds)) if len(kinds) < len(KINDS) else None


def takers(corpus: str) -> list[str]:
    """Kinds of models that can be trained on a corpus, or on all of a word of `Outline.corpora`."""
    return [kind for kind, outline in KINDS.items() if corpus.partition(":")[0] in outline.corpora]


def kinds_of(path: str) -> list[str]:
    """Kinds of models to which the leaf applies: those with such a field of `model`, or with a choice of corpus."""
    section, leaf = path.split(".", 1)
    if path == "train.corpus":
        return [kind for kind, outline in KINDS.items() if len(outline.corpora) > 1]
    return [kind for kind, outline in KINDS.items() if section != "model" or leaf in ("kind", *outline.fields)]


def is_read(path: str, value_of: Callable[[str], Any]) -> bool:
    """Whether the leaf applies, given the values of the others (`value_of`).

    An unknown kind of model hides nothing: the kind itself will be refused.
    """
    needed = condition(path)
    if needed is None:
        return True
    value = str(value_of(needed.leaf)).strip()
    unknown = needed.leaf == "model.kind" and value not in KINDS
    return unknown or (value in needed.values) != needed.negated
