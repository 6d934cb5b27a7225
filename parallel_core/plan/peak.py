"""How much memory a run will take on each rank, before it starts; to be held against the meter's measured peak.

Static parts live from the first step to the last, in flat buffers: parameters, gradients, and two moments of AdamW
(Loshchilov and Hutter 2019). That is 16 bytes a parameter in fp32 and 18 in 16 bits: 2 + 4 for parameter and gradient,
12 for both moments and the master weight (Rajbhandari et al. 2020, section 3.1, with gradients in fp32). ZeRO-1 divides
the moments and the master weights by the number of replicas (section 5.1).

Activations peak in a backward: every micro-batch in flight (`schedule.in_flight`) keeps what autograd saved, and the
layer whose backward runs needs gradients on top. Full recomputation keeps only the input of each block and rebuilds one
block at a time; embedding and head are not recomputed. `activations` are what is kept for a backward; `buffers` are
gradients of activations, messages and tokens. Without a flush, `params` are those of all weight versions that a stage
keeps (Narayanan et al. 2019, section 3.3).

All ranks of a stage need the same. Not counted: the framework itself, a CUDA context, workspace inside kernels, the
allocator's rounding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from parallel_core.layout import Layout
from parallel_core.observe.records import CATEGORIES
from parallel_core.outline import UnitCost, aligned, block_of, outline_of
from parallel_core.outline.recompute import recomputed
from parallel_core.plan.places import BUCKET_BYTES, TIED, Places, alone_of, place, shards_of
from parallel_core.plan.units import boundary_elements, unit_costs
from parallel_core.schedule import in_flight, plain
from parallel_core.schedule.held import peak_copies
from parallel_core.schedule.ir import AHEAD, Kind, Program
from parallel_core.schedule.passes.versions import update
from parallel_core.schedule.traits import TRAITS
from parallel_core.spec import BYTES_PER_ELEMENT, MAIN_BYTES, ParallelSpec, RunSpec

_MOMENTS = 2


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
    """Predicted peak of every global rank, in rank order (see `by_stage` where there may be very many)."""
    same = spec.parallel.dp * spec.parallel.tp
    return [
        RankMemory(memory.rank + i, memory.stage, *memory.as_dict().values())
        for memory in by_stage(spec)
        for i in range(same)
    ]


def by_stage(spec: RunSpec) -> list[RankMemory]:
    """Predicted peak of the first rank of each place of the pipeline, which holds one stage or several; the others of
    that place need the same."""
    layout = Layout.of(spec)
    size, main = BYTES_PER_ELEMENT[spec.train.precision], MAIN_BYTES[spec.train.precision]
    states = _MOMENTS + (size != main)
    names = spec.model.units()
    layers = _Layers(unit_costs(spec), [*boundary_elements(spec), 0], names, recomputed(spec.parallel, names))
    out = []
    for home in range(layout.pp):
        stages = layout.stages_of(home)
        held = _parameters(spec, layers.costs, [layout.stage_units[stage] for stage in stages])
        live = _at_peak(spec, layers, {stage: layout.stage_units[stage] for stage in stages})
        out.append(
            RankMemory(
                rank=layout.rank(home),
                stage=home,
                params=size * held * (1 + _copies(spec, home)),
                grads=main * held,
                optimizer=states * main * held // shards_of(spec),
                activations=size * live.kept,
                buffers=size * live.passing + _batch_bytes(spec, home),
            )
        )
    return out


def _parameters(spec: RunSpec, costs: Sequence[UnitCost], stages: Sequence[Sequence[int]]) -> int:
    """Elements of a rank's flat buffer; a rank that holds embedding and head holds a tied matrix once."""
    units = [unit for stage in stages for unit in stage]
    if spec.parallel.zero:
        return places_of(spec, costs, units).size
    total = sum(costs[unit].flat for unit in units)
    if spec.model.tied and {0, len(costs) - 1} <= set(units):
        total -= aligned(outline_of(spec.model).shared() // spec.parallel.tp)
    return total


def places_of(spec: RunSpec, costs: Sequence[UnitCost], units: Sequence[int]) -> Places:
    """Where the parameters of `units` lie in a rank's flat buffers; only the name of a tied matrix matters."""
    sizes: dict[str, int] = {}
    for unit in units:
        parameters, head = costs[unit].parameters, unit == len(costs) - 1
        for i, size in enumerate(parameters):
            tied = spec.model.tied and i == (len(parameters) - 1 if head else 0) and (head or unit == 0)
            sizes.setdefault(TIED if tied else f"{unit}.{i}", size)
    bucket = BUCKET_BYTES[spec.train.device] // MAIN_BYTES[spec.train.precision]
    return place(sizes, bucket, shards_of(spec), alone_of(spec))


class _Layers(NamedTuple):
    """All layers of a run: their costs, the elements that enter each (0 behind the last), names, and which blocks
    recompute."""

    costs: Sequence[UnitCost]
    edges: Sequence[int]
    names: Sequence[str]
    chosen: frozenset[str]


def _at_peak(spec: RunSpec, layers: _Layers, stages: Mapping[int, Sequence[int]]) -> _Live:
    """The worst instant of a rank that holds `stages` (number -> units), messages among what is passing."""
    edges = layers.edges
    parts = {n: (_segments(spec, layers, units), edges[units[-1] + 1]) for n, units in stages.items()}
    if len(stages) == 1 and spec.parallel.program is None and not TRAITS[spec.parallel.schedule].split:
        ((stage, units),) = stages.items()
        live = _in_backward(*parts[stage], _in_flight(spec, stage), _unproven(spec, stage))
        return _Live(live.kept, live.passing + _messages(spec, stage, edges[units[0]], edges[units[-1] + 1]))
    live = _walked(spec, {n: _Part(*part) for n, part in parts.items()})
    ahead = AHEAD + (len(stages) == 1)  # and one on its way out
    messages = sum(ahead * (edges[units[0]] * (n > 0) + edges[units[-1] + 1]) for n, units in stages.items())
    return _Live(live.kept, live.passing + messages)


class _Live(NamedTuple):
    """Elements at one instant: kept for backwards, and passing (gradients on their way)."""

    kept: int
    passing: int


@dataclass(frozen=True, slots=True)
class _Segment:
    """Layers that go backward together; where they are recomputed only the input of the first is kept."""

    units: tuple[UnitCost, ...]
    recomputed: bool

    @property
    def kept(self) -> int:
        """Elements kept of one micro-batch from forward to backward."""
        if self.recomputed:
            return self.units[0].boundary
        return sum(unit.boundary + unit.inner for unit in self.units)

    @property
    def weights(self) -> int:
        """Elements that W needs of one micro-batch."""
        return sum(unit.weights for unit in self.units)

    def worst(self, output: int, split: bool) -> _Live:
        """The worst instant of its backward, which starts from its `output` and the gradient of that (0: the loss).

        While a layer runs backward, those before it keep theirs and those behind it have let go, where the backward is
        `split` of all but what W needs. Where the next layer behind is another one of this segment, the gradient of its
        input is there; the last layer counts it as passing.
        """
        instants, before, behind = [], 0, self.weights
        for i, unit in enumerate(self.units):
            before += unit.boundary + unit.inner
            behind -= unit.weights
            gradient = self.units[i + 1].boundary if i < len(self.units) - 1 else 0
            instants.append(_Live(before + unit.core + output + split * behind, unit.passing + gradient))
        return max(instants, key=sum)


def _segments(spec: RunSpec, layers: _Layers, units: Sequence[int]) -> list[_Segment]:
    """The stage's layers as the engine recomputes them, block by block; layers outside of blocks are not."""
    if spec.parallel.recompute != "full":
        return [_Segment(tuple(layers.costs[unit] for unit in units), False)]
    blocks = groupby(units, key=lambda unit: block_of(layers.names[unit]) or layers.names[unit])
    return [
        _Segment(tuple(layers.costs[unit] for unit in block), recomputed=key in layers.chosen) for key, block in blocks
    ]


def _in_backward(segments: Sequence[_Segment], output: int, in_flight: int, sent: int, split: bool = False) -> _Live:
    """The worst instant of a backward (`split`: of a B), with `in_flight` micro-batches of which one runs backward.

    The others keep everything, and `sent` of them their `output` (0 on the last stage): nothing yet proves it taken.
    """
    instants, before, needed = [], 0, sum(segment.weights for segment in segments)
    for i, segment in enumerate(segments):
        needed -= segment.weights
        behind = segments[i + 1].units[0].boundary if i < len(segments) - 1 else output
        live = segment.worst(behind, split)
        instants.append(_Live(before + live.kept + split * needed, live.passing))
        before += segment.kept
    worst = max(instants, key=sum)
    return _Live((in_flight - 1) * before + sent * output + worst.kept, worst.passing)


class _Part:
    """A stage's share of its rank: what one micro-batch `keeps` from F to B, its `worst` instant in BW and `in_b`, and
    what W needs of it."""

    def __init__(self, segments: Sequence[_Segment], output: int) -> None:
        self.worst = _in_backward(segments, output, 1, 0)
        self.in_b = _in_backward(segments, output, 1, 0, split=True)
        self.keeps = _in_backward(segments, output, 2, 1).kept - self.worst.kept
        self.weights = sum(segment.weights for segment in segments)


def _walked(spec: RunSpec, parts: Mapping[int, _Part]) -> _Live:
    """The worst instant of a rank's program: what all its stages keep, with at most one in its backward."""
    forward, weights = Counter[int](), Counter[int]()
    worst = _Live(0, 0)
    for op in (part for pair in _program(spec.parallel, next(iter(parts))) for part in pair.parts()):
        n = op.stage
        forward[n] += op.kind is Kind.F
        held = sum(forward[i] * part.keeps + weights[i] * part.weights for i, part in parts.items())
        live = _Live(held, 0)
        if op.kind in (Kind.B, Kind.BW):
            worst_of = parts[n].in_b if op.kind is Kind.B else parts[n].worst
            live = _Live(held - parts[n].keeps + worst_of.kept, worst_of.passing)
            forward[n] -= 1
        weights[n] += (op.kind is Kind.B) - (op.kind is Kind.W)
        worst = max(worst, live, key=sum)
    return worst


@lru_cache(maxsize=64)
def _program(split: ParallelSpec, stage: int) -> Program:
    """Compute operations of one replica of the rank that holds `stage`."""
    made = plain(split)
    return made.programs[made.placement[stage][0]]


def _in_flight(spec: RunSpec, stage: int) -> int:
    return in_flight(spec.parallel.schedule, stage, spec.parallel.pp, _micro_batches(spec))


def _micro_batches(spec: RunSpec) -> int:
    """Micro-batches of a replica between an empty pipeline and an empty one."""
    return spec.parallel.micro_batches * (1 if spec.parallel.flushes else spec.train.steps)


def _copies(spec: RunSpec, place: int) -> int:
    """Most older weight versions that a rank of `place` keeps; 0 where the pipeline flushes."""
    if spec.parallel.flushes:
        return 0
    few = -(-2 * spec.parallel.pp // spec.parallel.micro_batches) + 2  # steps after which it is full, and all is kept
    return _stream_copies(spec.parallel.model_copy(update={"dp": 1}), min(spec.train.steps, few))[place]


@lru_cache(maxsize=64)
def _stream_copies(split: ParallelSpec, steps: int) -> tuple[int, ...]:
    return tuple(map(peak_copies, update(plain(split, steps), split.micro_batches).programs))


def _unproven(spec: RunSpec, stage: int) -> int:
    """Outputs that the next stage had not taken when it sent the gradient that came first (`engine.receipts`)."""
    behind = _in_flight(spec, stage + 1) if stage + 1 < spec.parallel.pp else 0
    return max(0, _in_flight(spec, stage) - behind) if behind else 0


def _messages(spec: RunSpec, stage: int, entering: int, leaving: int) -> int:
    """Most elements in the hands of the network while all micro-batches are in flight.

    In the backward of micro-batch k: receives posted ahead for what is still to come (activations unless this is the
    first stage, gradients unless it is the last), and gradients sent that nothing proves to be taken yet, up to 2. One
    message has as many elements as what is `entering` or `leaving` the stage.
    """
    split = spec.parallel
    in_all, window = _micro_batches(spec), 2 if spec.parallel.flushes else 1  # no drain, in which none are proven
    to_come = in_all - _in_flight(spec, stage)

    def held(k: int) -> int:
        from_before = min(AHEAD, to_come - k) + min(k, window) if stage > 0 else 0
        from_behind = min(AHEAD, in_all - 1 - k) if stage < split.pp - 1 else 0
        return from_before * entering + from_behind * leaving

    return max(held(min(k, to_come)) for k in (0, window, max(to_come - AHEAD, 0), to_come))


def _batch_bytes(spec: RunSpec, place: int) -> int:
    """Bytes of a replica's batch; of those of steps to come, too, where the stage already works on them."""
    split = spec.parallel
    ahead = 0 if split.flushes else -(-(split.pp - 1 - place) // split.micro_batches)
    batches = 1 + min(spec.train.steps - 1, ahead)
    return batches * outline_of(spec.model).sample_bytes * (spec.train.global_batch // split.dp)
