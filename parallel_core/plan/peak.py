"""Predicted peak memory of each rank before a run starts, to be compared with the meter's measurement.

Static parts live from the first step to the last, in flat buffers: parameters, gradients, and two moments of AdamW
(Loshchilov and Hutter 2019), or the momentum of SGD, if any. With AdamW that is 16 bytes a parameter in fp32 and 18 in
16 bits: 2 + 4 for parameter and gradient, 12 for both moments and the master weight (Rajbhandari et al. 2020, section
3.1, with gradients in fp32). ZeRO-1 divides the optimizer's states and the master weights by the number of replicas
(section 5.1), ZeRO-2 also the gradients (section 5.2), ZeRO-3 also the parameters (section 5.3), except for the buckets
that backward is filling and the layer that runs (`plan.zero_buckets`).

Activations peak in a backward (`plan.backward`). Full recomputation keeps only the input of each block and rebuilds one
block at a time; embedding and head are not recomputed. `activations` are tensors kept for a backward; `buffers` are
gradients of activations, messages, tokens, tables and running statistics. Without a flush, `params` cover all weight
versions that a stage keeps (Narayanan et al. 2019, section 3.3).

Where samples are large compared with all of that, as images with a small MLP, memory peaks before the step, while they
are read: real numbers arrive in fp32, whatever the precision of the run.

Ranks of one place need the same, except where tensor groups differ in size or replicas take turns. Not counted: the
framework itself, a CUDA context, workspace inside kernels, shared memory between ranks of a host, what gloo or NCCL
hold until a collective is collected, the allocator's rounding.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from parallel_core.layout import Layout
from parallel_core.observe.records import CATEGORIES
from parallel_core.outline import UnitCost, aligned, outline_of
from parallel_core.plan import fully_sharded
from parallel_core.plan.backward import RankVariant, at_peak, in_two
from parallel_core.plan.grad_buckets import (
    TIED,
    BucketKey,
    Places,
    alone_of,
    bucket_bytes,
    bucket_key,
    gathers_ahead,
    shards_of,
)
from parallel_core.plan.grad_buckets import place as place_all
from parallel_core.plan.in_flight import copies
from parallel_core.plan.segments import Layers
from parallel_core.plan.units import unit_costs
from parallel_core.plan.zero_buckets import NOTHING, Whole, whole_buckets, with_layers
from parallel_core.spec import BYTES_PER_ELEMENT, MAIN_BYTES, RunSpec


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Predicted bytes of one rank at its peak, by category (`records.CATEGORIES`)."""

    rank: int
    """Global rank; in `by_stage` the first one of the stage."""
    stage: int
    params: int
    grads: int
    optimizer: int
    activations: int
    buffers: int

    @property
    def total(self) -> int:
        return sum(self.as_dict().values())

    def as_dict(self) -> dict[str, int]:
        """Bytes by category, in the order charts stack them."""
        return {name: getattr(self, name) for name in CATEGORIES}

    def largest(self) -> tuple[str, float]:
        """The category that takes most, and its share of the total, 0 .. 1."""
        sizes = self.as_dict()
        name = max(sizes, key=sizes.__getitem__)
        return name, sizes[name] / max(self.total, 1)


def predict(spec: RunSpec) -> list[RankMemory]:
    """Predicted peak of every global rank, in rank order (for very many ranks use `by_stage`)."""
    layout, layers = Layout.of(spec), Layers.of(spec)
    alike: dict[Hashable, RankMemory] = {}
    out = []
    for rank in range(layout.world):
        kind = layout.coords(rank).place, _variant(spec, layout, rank)
        if kind not in alike:
            alike[kind] = _of_rank(spec, layout, layers, rank)
        out.append(replace(alike[kind], rank=rank))
    return out


def by_stage(spec: RunSpec) -> list[RankMemory]:
    """Predicted peak of the first rank of each place of the pipeline (one or several stages); no other rank of the
    place needs more."""
    layout, layers = Layout.of(spec), Layers.of(spec)
    return [_of_rank(spec, layout, layers, layout.rank(place)) for place in range(layout.pp)]


def standing(spec: RunSpec, place: int) -> RankMemory:
    """What the first rank of a place holds outside of forward and backward: parameters, gradients, optimizer state, and
    as buffers the batch that it reads."""
    layout, layers = Layout.of(spec), Layers.of(spec)
    return _standing(spec, layout, layers, layout.rank(place))


def _of_rank(spec: RunSpec, layout: Layout, layers: Layers, rank: int) -> RankMemory:
    still, size = _standing(spec, layout, layers, rank), BYTES_PER_ELEMENT[spec.train.precision]
    place, variant = still.stage, _variant(spec, layout, rank)
    stages = {stage: layout.stage_units[stage] for stage in layout.stages_of(place)}
    live = at_peak(spec, layers, stages, _whole(spec, layers.costs, stages), variant)
    units = [layers.names[unit] for of in stages.values() for unit in of]
    batch = _batch_bytes(spec, place, variant.replica, units) + outline_of(spec.model).standing(units, size)
    working = replace(
        still,
        params=still.params + size * live.params,
        grads=still.grads + size * live.grads,
        activations=size * live.kept,
        buffers=batch + size * live.passing,
    )
    return max(working, still, key=lambda memory: memory.total)


def _standing(spec: RunSpec, layout: Layout, layers: Layers, rank: int) -> RankMemory:
    place = layout.coords(rank).place
    size, main = BYTES_PER_ELEMENT[spec.train.precision], MAIN_BYTES[spec.train.precision]
    torchs = fully_sharded.by_torch(spec)
    masters = size != main and not torchs  # with fully_shard the parameters are the master weights
    states = spec.train.optimizer_states + masters
    stages = {stage: layout.stage_units[stage] for stage in layout.stages_of(place)}
    held = _parameters(spec, layers.costs, list(stages.values()))
    mine, variant = [held // _shards(spec, n) for n in (1, 2, 3)], _variant(spec, layout, rank)
    if torchs:
        mine = [fully_sharded.owned(spec, layers.costs, variant.replica)] * 2 + [fully_sharded.room(spec, layers.costs)]
    units = [layers.names[unit] for of in stages.values() for unit in of]
    reading = _batch_bytes(spec, place, variant.replica, units, reading=True)
    return RankMemory(
        rank=rank,
        stage=place,
        params=(main if torchs else size) * mine[2] * (1 + copies(spec, place, variant.replica)),
        grads=main * mine[1],
        optimizer=states * main * mine[0],
        activations=0,
        buffers=reading + outline_of(spec.model).standing(units, size),
    )


def _variant(spec: RunSpec, layout: Layout, rank: int) -> RankVariant:
    """Replicas differ only where they take turns or where torch shards parameters by rows; otherwise the first one
    stands for all."""
    differ = layout.in_turn or fully_sharded.by_torch(spec)
    return RankVariant(layout.coords(rank).replica if differ else 0, layout.unfed_stages(rank))


def _shards(spec: RunSpec, stage: int) -> int:
    """Number of parts of a tensor that ZeRO shards from `stage` on."""
    return shards_of(spec) if spec.parallel.zero >= stage else 1


def flat_bytes(spec: RunSpec, place: int) -> int:
    """Bytes of all unsharded gradients of a rank of `place`, as they are reduced."""
    layout = Layout.of(spec)
    stages, costs = [layout.stage_units[stage] for stage in layout.stages_of(place)], unit_costs(spec)
    torchs = fully_sharded.by_torch(spec)
    elements = sum(fully_sharded.unsharded(spec, costs)) if torchs else _parameters(spec, costs, stages)
    return MAIN_BYTES[spec.train.precision] * elements


def _parameters(spec: RunSpec, costs: Sequence[UnitCost], stages: Sequence[Sequence[int]]) -> int:
    """Elements of a rank's flat buffer; a matrix tied within the rank counts once."""
    if spec.parallel.zero:
        return places_of(spec, costs, stages).size
    units = [unit for stage in stages for unit in stage]
    total = sum(costs[unit].flat for unit in units)
    if spec.model.tied and {0, len(costs) - 1} <= set(units):
        width = next(iter(Layout.of(spec).unit_widths()))
        total -= aligned(outline_of(spec.model).shared() // width)
    return total


def places_of(spec: RunSpec, costs: Sequence[UnitCost], stages: Sequence[Sequence[int]]) -> Places:
    """Offsets of the parameters of these stages' units in a rank's flat buffers."""
    sizes: dict[str, int] = {}
    keys: dict[str, BucketKey] = {}
    for number, units in enumerate(stages):
        for unit in units:
            for name, size in zip(_names(spec, costs, unit), costs[unit].parameters, strict=True):
                sizes.setdefault(name, size)
                keys.setdefault(name, bucket_key(spec, number, unit))
    bucket = bucket_bytes(spec)
    elements = None if bucket is None else bucket // MAIN_BYTES[spec.train.precision]
    return place_all(sizes, elements, shards_of(spec), alone_of(spec), keys.__getitem__)


def _names(spec: RunSpec, costs: Sequence[UnitCost], unit: int) -> list[str]:
    """Names for the parameters of a layer; only that of a tied matrix matters."""
    parameters, head = costs[unit].parameters, unit == len(costs) - 1
    tied = (len(parameters) - 1 if head else 0) if spec.model.tied and (head or unit == 0) else None
    return [TIED if i == tied else f"{unit}.{i}" for i in range(len(parameters))]


def _whole(spec: RunSpec, costs: Sequence[UnitCost], stages: Mapping[int, Sequence[int]]) -> Whole:
    """Unsharded buckets that exist temporarily under ZeRO-2 and 3."""
    if spec.parallel.zero < 2:
        return NOTHING
    if fully_sharded.by_torch(spec):
        return fully_sharded.whole(spec, costs)
    places = places_of(spec, costs, list(stages.values()))
    named = {n: {unit: _names(spec, costs, unit) for unit in units} for n, units in stages.items()}
    late = _late(spec, named) if in_two(spec.parallel, stages) else None
    found = whole_buckets(places, named, shards_of(spec), spec.parallel.micro_batches, late)
    if spec.parallel.zero < 3:
        return found
    by_unit = {u: names for of in named.values() for u, names in of.items()}
    return with_layers(found, places, by_unit, gathers_ahead(spec))


def _late(spec: RunSpec, named: Mapping[int, Mapping[int, list[str]]]) -> frozenset[str]:
    """Names of the parameters of linear layers, whose gradients W computes where a backward is split in two."""
    outline, units = outline_of(spec.model), spec.model.units()
    every = [item for of in named.values() for item in of.items()]
    return frozenset(name for unit, names in every for name in names[len(names[: outline.by_autograd(units[unit])]) :])


def unsharded(spec: RunSpec) -> tuple[list[int], list[int]]:
    """Bytes of the parameter gathers in the forward and in the backward of one micro-batch under ZeRO-3: every layer's,
    and every bucket's except the last layer's, whose backward follows its forward at once (`engine.zero3`)."""
    costs, size = unit_costs(spec), BYTES_PER_ELEMENT[spec.train.precision]
    if fully_sharded.by_torch(spec):
        each = [size * elements for elements in fully_sharded.unsharded(spec, costs)]
        return each, each[:-1]
    buckets = places_of(spec, costs, Layout.of(spec).stage_units).buckets
    named = [{*_names(spec, costs, unit)} for unit in range(len(costs))]
    forward = [size * (b.stop - b.start) for names in named for b in buckets if names & {*b.names}]
    return forward, [size * (b.stop - b.start) for b in buckets if not named[-1] & {*b.names}]


def _batch_bytes(spec: RunSpec, place: int, replica: int, units: Iterable[str], reading: bool = False) -> int:
    """Bytes of a replica's batch if one of the rank's `units` reads it, including those of later steps that the stage
    already works on.

    While `reading` a batch, a pipeline without flushes still holds that of the step that has just ended, and on a CPU
    real numbers also exist in fp32, as read (a GPU receives them in the run's precision).
    """
    split, outline = spec.parallel, outline_of(spec.model)
    if not outline.readers & set(units):
        return 0
    most = -(-(split.per_step - replica) // split.copies[place])
    in_front = (sum(split.copies[place:]) - 1) // split.copies[place]
    batches = min(spec.train.steps, 1 if split.flushes else 1 + reading - (-in_front // most))
    copied = reading and spec.train.device == "cpu" and spec.train.precision != "fp32"
    as_read = outline.sample_bytes(BYTES_PER_ELEMENT["fp32"]) - outline.sample_bytes(0) if copied else 0
    return (batches * outline.sample_bytes(spec.element_bytes) + as_read) * most * spec.micro_batch_size
