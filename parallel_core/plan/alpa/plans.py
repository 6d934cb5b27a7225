"""Alpa's plan of a model on a cluster compared with other partitions at the same costs, and each plan as a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from math import inf, lcm
from typing import Any

from pydantic import ValidationError

from parallel_core.analysis.quantities import bytes_beside, bytes_text
from parallel_core.outline.recompute import recompute_fields
from parallel_core.outline.splits import IN_WORDS, Cut, cut_fields
from parallel_core.plan.alpa.costs import CUTS, LayerCosts, uniform
from parallel_core.plan.alpa.inter import Plan, Search
from parallel_core.plan.alpa.programme import Stage
from parallel_core.plan.layer_graph import GraphError, GraphLayer, LayerGraph
from parallel_core.plan.network_levels import Level
from parallel_core.plan.pipedream import Form, partition
from parallel_core.plan.stages import balanced_cut, even_cut
from parallel_core.spec import RunSpec

OPTIMUM, OVERSIZE = "Alpa's optimum", "Alpa's optimum with more memory"
UNEVEN = "Its replicas do not divide the samples of a micro-batch."
NOTHING = "Nothing fits this memory."
MIXED = (
    "Its layers are split in ways that one run cannot mix: a run takes data, or all column-row and vocab, "
    "or all columns, or all sequence."
)


@dataclass(frozen=True)
class Named:
    """A plan and what to call it. `spec`: the plan as a run. `why_not`: why there is no plan, or no run of it."""

    name: str
    plan: Plan | None
    spec: RunSpec | None = None
    why_not: str = ""


def with_alternatives(search: Search, form: Form = "released") -> list[Named]:
    """Alpa's optimum, the one that would not fit if a faster one does not, its best plans that a run can have (fastest
    first), then the partitions of PipeDream (by this form of its costs) and others.

    If the search did not finish, the fastest plan found comes first, if there is one."""
    best = search.best()
    plain = sorted(chain(search.even(), search.uneven()), key=lambda plan: plan.seconds)
    able = [Named(f"Alpa, {_shape(plan)}", plan, *_run(search, plan)) for plan in plain]
    return [*_first(search, best, plain), *_without_limit(search), *able, *_others(search, form)]


def _first(search: Search, best: Plan | None, plain: Sequence[Plan]) -> Iterator[Named]:
    if not search.finished:
        found = min(filter(None, [best, *plain]), key=lambda plan: plan.seconds, default=None)
        if found is not None:
            yield Named("Alpa's best plan found", found, *_run(search, found))
        each = bytes_text(search.mesh.memory)
        yield Named(OPTIMUM, None, None, f"The search within {each} a device did not finish.")
    elif best is None:
        yield Named(OPTIMUM, None, None, NOTHING)
    else:
        yield Named(OPTIMUM, best, *_run(search, best))


def _without_limit(search: Search) -> Iterator[Named]:
    """Alpa's optimum on devices with any memory, where these have too little for it."""
    plan = search.unlimited.best() if search.mesh.memory < inf else None
    if plan is not None and plan.memory > search.mesh.memory:
        yield Named(OVERSIZE, plan, None, _too_large(search, plan))


def summary(plan: Plan, units: Sequence[str]) -> list[str]:
    """One line a stage: its layers, its mesh, and the shardings of consecutive layers."""
    return [
        f"{_layers(stage, units)} on {stage.dp} x {stage.tp}: {sharding_text(stage, units)}" for stage in plan.stages
    ]


def sharding_text(stage: Stage, units: Sequence[str]) -> str:
    """The shardings of a stage's layers as text: `vocab embed; column-row block.0.attn to block.3.mlp; vocab head`."""
    named = groupby(
        zip(stage.shardings, units[stage.first : stage.stop], strict=True), key=lambda pair: pair[0].strategy
    )
    return "; ".join(f"{strategy} {_span([unit for _, unit in part])}" for strategy, part in named)


def _layers(stage: Stage, units: Sequence[str]) -> str:
    return _span(units[stage.first : stage.stop])


def _span(units: Sequence[str]) -> str:
    return units[0] if len(units) == 1 else f"{units[0]} to {units[-1]}"


def _shape(plan: Plan) -> str:
    stages, by = plan.stages, IN_WORDS[_cut(plan) or "pairs"]
    if len({(stage.dp, stage.tp) for stage in stages}) > 1:
        return " then ".join(f"{stage.dp} x {stage.tp}" for stage in stages) + (by and f",{by}")
    dp, tp, pp = stages[0].dp, stages[0].tp, len(stages)
    parts = [f"{n} {what}" for n, what in ((dp, "replicas"), (tp, "tensor ranks"), (pp, "stages")) if n > 1]
    return (" x ".join(parts) or "one device") + by


def _run(search: Search, plan: Plan) -> tuple[RunSpec | None, str]:
    """(the plan as a run, '') or (None, why the engine cannot run it)."""
    spec, cut = search.costs.spec, _cut(plan)
    if cut is None:
        return None, MIXED
    parallel = _split(plan, search.costs.samples) | cut_fields(cut) | recompute_fields(spec.parallel)
    train = spec.train.model_dump() | {"global_batch": search.costs.samples * plan.micro_batches}
    try:
        return RunSpec.model_validate(spec.model_dump() | {"parallel": parallel, "train": train}), ""
    except ValidationError as error:
        return None, str(error.errors()[0]["msg"])


def _cut(plan: Plan) -> Cut | None:
    """The cut by which a run splits all layers as the plan does; None where there is none."""
    every = [(sharding, stage.tp) for stage in plan.stages for sharding in stage.shardings]
    return next((cut for cut in CUTS if all(uniform(sharding, tp, cut) for sharding, tp in every)), None)


def _split(plan: Plan, samples: int) -> dict[str, Any]:
    """Fields of ParallelSpec. Alpa divides each micro-batch of `samples` over a stage's replicas. Where stages differ
    in their number of replicas, each micro-batch is cut into lcm(replicas) smaller ones (if that divides `samples`),
    which replicas take in turn."""
    dps, tps = ([getattr(stage, axis) for stage in plan.stages] for axis in ("dp", "tp"))
    found: dict[str, Any] = {"pp": len(plan.stages), "cuts": plan.cuts or None, "micro_batches": plan.micro_batches}
    found |= {"tp": tps[0]} if len(set(tps)) == 1 else {"widths": tps}
    if len(set(dps)) == 1:
        return found | {"dp": dps[0]}
    every = lcm(*dps)
    times = every if samples % every == 0 else 1
    return found | {"replicas": dps, "micro_batches": plan.micro_batches * times}


def _others(search: Search, form: Form) -> Iterator[Named]:
    """Other partitions over the same number of devices, priced with Alpa's costs."""
    devices, units = search.mesh.devices, search.costs.units
    layers = _graph(search.costs)
    stages = min(devices, len(units))
    yield _pipedream(search, layers, form)
    for name, cut in (
        ("Exact min-max split", lambda: balanced_cut(layers, stages)),
        ("Megatron's even split", lambda: even_cut(units, stages)),
    ):
        try:
            yield _priced(search, name, cut(), [(devices // stages, 1)] * stages)
        except ValueError as error:
            yield Named(name, None, None, str(error))


def _graph(costs: LayerCosts) -> list[GraphLayer]:
    """The layers on one device, as input for PipeDream's programme."""
    shardings = costs.shardings(1, 1) or []
    return [
        GraphLayer(unit, sharding.seconds / 3, 2 * sharding.seconds / 3, costs.boundary(i + 1), sharding.weights)
        for i, (unit, (sharding,)) in enumerate(zip(costs.units, shardings, strict=True))
    ]


def _pipedream(search: Search, layers: list[GraphLayer], form: Form) -> Named:
    name, machine = "PipeDream's optimum", search.costs.machine
    size = max((layer.activation for layer in layers), default=1.0) or 1.0
    level = Level(search.mesh.devices, size / machine.send(size, search.mesh.hosts == 1))
    try:
        found = partition(LayerGraph.chain(layers), [level], form)
    except GraphError as error:
        return Named(name, None, None, str(error))
    cuts = tuple(stage.layers[0] for stage in found.stages[1:])
    return _priced(search, name, cuts, [(stage.replicas, 1) for stage in found.stages])


def _priced(search: Search, name: str, cuts: Sequence[int], shapes: Sequence[tuple[int, int]]) -> Named:
    plan = search.given(cuts, shapes)
    if plan is None:
        large = search.unlimited.given(cuts, shapes)
        return Named(name, None, None, UNEVEN if large is None else _too_large(search, large))
    return Named(name, plan, *_run(search, plan))


def _too_large(search: Search, plan: Plan) -> str:
    """How much the fullest stage of a plan without a limit needs, as a sentence."""
    return f"It needs {memory_beside(plan, search)} a device."


def memory_beside(plan: Plan, search: Search) -> str:
    """The fullest stage of a plan and a device's memory, in as many digits as they differ in: `5.2 GiB of 4 GiB`."""
    needs, has = plan.memory, search.mesh.memory
    return f"{bytes_beside(needs, has)} of {bytes_beside(has, needs)}"
