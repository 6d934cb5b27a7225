"""How large a model would fit: the most layers of a spec's own kind that its worst rank can hold."""

from __future__ import annotations

from functools import lru_cache

from parallel_core.outline import outline_of
from parallel_core.plan.memory import worst_stage
from parallel_core.spec import ModelSpec, RunSpec

EXACT_UP_TO = 64
"""Layers (for each pipeline stage) up to which every count is tried; beyond, memory grows by a constant a layer."""


def largest_layers(spec: RunSpec, limit: int) -> int:
    """The most layers (`model.layers`) with which the predicted worst rank stays within `limit` bytes; 0 if none does.

    Everything but the number of layers stays as it is; own cuts are replaced by the balanced ones. May be more than
    `limits.MAX_LAYERS`: what a spec may say is another question. Exact up to EXACT_UP_TO layers a stage. Beyond, it
    goes along the straight line through two larger counts: parameters, gradients, optimizer state and activations all
    grow by the same amount a layer, and only where the cut falls moves a count by a layer or two.
    """
    return _largest(spec.model_copy(update={"trace": RunSpec().trace}), limit)


@lru_cache(maxsize=512)
def _largest(spec: RunSpec, limit: int) -> int:
    least = least_layers(spec)
    most = EXACT_UP_TO * spec.parallel.stages
    if _bytes(spec, most) <= limit:
        return _along_the_line(spec, limit, most)
    if _bytes(spec, least) > limit:
        return 0
    fits, fails = least, most
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if _bytes(spec, middle) <= limit:
            fits = middle
        else:
            fails = middle
    return fits


def _along_the_line(spec: RunSpec, limit: int, start: int) -> int:
    """Continues from `start` layers, which fit, at the slope between `start` and twice as many."""
    here, there = _bytes(spec, start), _bytes(spec, 2 * start)
    return start + (limit - here) * start // max(there - here, 1)


def least_layers(spec: RunSpec) -> int:
    """The fewest layers that leave no stage of the pipeline empty: a layer of a GPT is two units."""
    one, two = (len(outline_of(spec.model.model_copy(update={"layers": layers})).units()) for layers in (1, 2))
    return -(-spec.parallel.stages // (two - one))


def fixed_depth(model: ModelSpec) -> str:
    """Why there is no largest layer count to look for, and what can be varied instead; '' where there is one."""
    fields = outline_of(model).fields
    if "layers" in fields:
        return ""
    own = ", ".join(fields)
    return f"a {model.kind} model has no layer count, its depth is fixed; vary {own} (a sweep of model.{fields[0]})."


def _bytes(spec: RunSpec, layers: int) -> int:
    """Predicted bytes of the worst rank. The copy is not validated: it may have more layers than a spec may."""
    model = spec.model.model_copy(update={"layers": layers})
    split = spec.parallel.model_copy(update={"cuts": None})
    return worst_stage(spec.model_copy(update={"model": model, "parallel": split})).total
