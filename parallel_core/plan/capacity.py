"""The largest model that fits: the most layers of a spec's own kind that its worst rank can hold."""

from __future__ import annotations

from functools import lru_cache

from parallel_core.outline import outline_of
from parallel_core.plan.alike import of_memory
from parallel_core.plan.backward import walked
from parallel_core.plan.memory import worst_stage
from parallel_core.spec import ModelSpec, RunSpec

EXACT_UP_TO = 64
"""Layers a pipeline stage up to which every count is predicted exactly; beyond, memory is linear in the layers."""


def largest_layers(spec: RunSpec, limit: int) -> int:
    """The most layers (`model.layers`) with which the predicted worst rank stays within `limit` bytes; 0 if none does.

    All else stays as it is, except that given cuts are replaced by the balanced ones. The result may exceed
    `limits.MAX_LAYERS`, the bound of a valid spec. Exact up to EXACT_UP_TO layers a stage; beyond, extrapolated along
    the line through two larger counts: parameters, gradients, optimizer state and activations all grow by the same
    amount a layer, and where the cuts fall changes the count by a layer or two only.
    """
    return _largest(of_memory(spec), limit)


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


def walked_in_search(spec: RunSpec) -> int:
    """About how many operations `largest_layers` walks through at most (`backward.walked`), the first time that it is
    asked; 0 where formulas have the memory. What a walk finds serves any number of layers, unless chosen blocks
    recompute: then a stage may end with one of them or not."""
    return walked(spec.parallel) * (1 if spec.parallel.recompute_layers is None else 2)


def _along_the_line(spec: RunSpec, limit: int, start: int) -> int:
    """Extrapolates from `start` layers, which fit, with the slope between `start` and twice as many."""
    here, there = _bytes(spec, start), _bytes(spec, 2 * start)
    return start + (limit - here) * start // max(there - here, 1)


def least_layers(spec: RunSpec) -> int:
    """The fewest layers that leave no pipeline stage empty: a layer of a GPT is two units, beside its two ends."""
    one, two = (len(outline_of(spec.model.model_copy(update={"layers": layers})).units()) for layers in (1, 2))
    each = two - one
    return max(1, -(-(spec.parallel.stages - (one - each)) // each))


def fixed_depth(model: ModelSpec) -> str:
    """Why a model has no largest layer count, and what can be varied instead; '' where it has one."""
    fields = outline_of(model).fields
    if "layers" in fields:
        return ""
    own = ", ".join(fields)
    return f"a {model.kind} model has no layer count, its depth is fixed; vary {own} (a sweep of model.{fields[0]})."


def _bytes(spec: RunSpec, layers: int) -> int:
    """Predicted bytes of the worst rank. The copied spec is not validated: it may have more layers than a valid one."""
    model = spec.model.model_copy(update={"layers": layers})
    split = spec.parallel.model_copy(update={"cuts": None})
    return worst_stage(spec.model_copy(update={"model": model, "parallel": split})).total
