"""What a rank's activations, messages and passing gradients take at the worst instant of a step, in elements.

They peak in a backward: every micro-batch in flight (`schedule.in_flight`) keeps what autograd saved, and the layer
whose backward runs needs gradients on top. Under ZeRO-2 the buckets that it fills are there, too (`plan.lean`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, groupby
from operator import add
from typing import NamedTuple

from parallel_core.outline import UnitCost, block_of
from parallel_core.outline.recompute import recomputed
from parallel_core.plan import fully_sharded
from parallel_core.plan.lean import Whole
from parallel_core.plan.messages import Hands
from parallel_core.plan.under_way import in_flight, micro_batches, peers, unproven_gradients
from parallel_core.plan.units import boundary_elements, unit_costs
from parallel_core.schedule import plain
from parallel_core.schedule.ir import AHEAD, Kind, Op, Schedule
from parallel_core.schedule.passes.communicate import communicate
from parallel_core.schedule.traits import TRAITS
from parallel_core.spec import ParallelSpec, RunSpec


class Layers(NamedTuple):
    """All layers of a run: their costs, the elements that enter each (0 behind the last), names, and which blocks
    recompute."""

    costs: Sequence[UnitCost]
    edges: Sequence[int]
    names: Sequence[str]
    chosen: frozenset[str]

    @classmethod
    def of(cls, spec: RunSpec) -> Layers:
        names = spec.model.units()
        costs: Sequence[UnitCost] = unit_costs(spec)
        if fully_sharded.by_torch(spec):
            costs = fully_sharded.let_go_late(spec, costs)
        return cls(costs, [*boundary_elements(spec), 0], names, recomputed(spec.parallel, names))


class Live(NamedTuple):
    """Elements at one instant: kept for backwards, passing (gradients of activations on their way), and gradients of
    parameters, and parameters, in buckets that are whole for a while, in elements of activations."""

    kept: int
    passing: int
    grads: int = 0
    params: int = 0


class Seat(NamedTuple):
    """What ranks of one place differ in: which replica they are, and stages that take nothing from them
    (`Layout.deaf`)."""

    replica: int
    deaf: frozenset[int]


def at_peak(spec: RunSpec, layers: Layers, stages: Mapping[int, Sequence[int]], whole: Whole, seat: Seat) -> Live:
    """The worst instant of a rank that holds `stages` (number -> units), messages among what is passing."""
    edges = layers.edges
    parts = {n: (_segments(spec, layers, units, whole), edges[units[-1] + 1]) for n, units in stages.items()}
    if _in_closed_form(spec.parallel, len(stages)):
        ((stage, units),) = stages.items()
        segments, count = parts[stage][0], in_flight(spec, stage)
        sent = 0 if stage + 1 in seat.deaf else unproven(spec, stage)
        outputs = sent if segments[-1].recomputed else count - 1  # else they end their graphs
        live = _in_backward(*parts[stage], count, outputs)
        return _and_messages(live, messages(spec, stage, edges[units[0]], edges[units[-1] + 1], seat.deaf))
    return _walked(spec, stages, layers, {n: _Part(*part) for n, part in parts.items()}, whole, seat)


def _in_closed_form(split: ParallelSpec, stages: int) -> bool:
    """Whether what a rank holds of so many `stages` is known without a walk through its program. Replicas that take
    turns and flush begin and end a step one by one; of few micro-batches all is received for before the first."""
    few = split.flushes and (split.replicas is not None or (split.pp > 1 and split.micro_batches <= AHEAD))
    return stages == 1 and split.program is None and not few and not TRAITS[split.schedule].split


def _and_messages(live: Live, held: int) -> Live:
    return live._replace(passing=live.passing + held)


@dataclass(frozen=True, slots=True)
class _Segment:
    """Layers that go backward together; where they are recomputed only the input of the first is kept. `grads` are
    what whole buckets take in the backward of each, `before` its first gradient, `resting` before that of the loss;
    `params` those of parameters."""

    units: tuple[UnitCost, ...]
    grads: tuple[int, ...]
    before: tuple[int, ...]
    params: tuple[int, ...]
    recomputed: bool
    resting: int = 0

    @property
    def kept(self) -> int:
        """Elements kept of one micro-batch from forward to backward."""
        if self.recomputed:
            return self.units[0].boundary
        return sum(self.saved(i) for i in range(len(self.units)))

    def saved(self, i: int) -> int:
        """Of the segment's layer `i`, where it is not recomputed."""
        unit = self.units[i]
        return unit.boundary + unit.inner - (unit.copied if i else 0)

    @property
    def weights(self) -> int:
        """Elements that W needs of one micro-batch."""
        return sum(unit.weights for unit in self.units)

    def worst(self, output: int, split: bool) -> Live:
        """The worst instant of its backward, which starts from its `output` and the gradient of that (0: the loss).

        While a layer runs backward, those before it keep theirs and those behind it have let go, where the backward is
        `split` of all but what W needs. Where the next layer behind is another one of this segment, the gradient of its
        input is there, and that of the output until the end (`split`: W needs both anyway); the last layer counts them
        as passing.
        """
        instants, before, behind = [], 0, self.weights
        for i, unit in enumerate(self.units):
            before += self.saved(i)
            behind -= unit.weights
            last = i == len(self.units) - 1
            own = bool(unit.let_go or not unit.weights)  # a gradient that passes whole, of which W keeps part at most
            gradient = 0 if last or (split and not own) else self.units[i + 1].boundary + output
            gradient += unit.leaving if last else 0
            gradient += output if last and (unit.gathered or unit.let_go) else 0  # of its rows, beside what it gathers
            kept = before + unit.core + output + split * behind
            passing, params = unit.passing + gradient + split * (unit.put_off - unit.product), self.params[i]
            grads, resting = (0, 0) if split else (self.grads[i], self.resting)  # B fills no bucket
            instants.append(Live(kept, max(unit.loss, unit.drawn) + gradient, resting, params))
            if self.recomputed:
                instants.append(Live(before + unit.forward, output, resting, params))
            kept -= unit.loss  # of log-probabilities in fp32 their gradient is left
            if unit.late and not split:
                instants.append(Live(kept - unit.late, passing, grads, params))
                grads = self.before[i]
            instants.append(Live(kept, passing, grads, params))
        return max(instants, key=sum)


def _segments(spec: RunSpec, layers: Layers, units: Sequence[int], whole: Whole) -> list[_Segment]:
    """The stage's layers as the engine recomputes them, block by block; layers outside of blocks are not."""

    def segment(of: Sequence[int], again: bool) -> _Segment:
        grads = tuple(whole.at.get(unit, 0) * spec.fp32_elements for unit in of)
        before = tuple(whole.before.get(unit, whole.at.get(unit, 0)) * spec.fp32_elements for unit in of)
        params = [whole.params.get(unit, 0) for unit in of]
        if again:  # those before it have been made whole again, too
            own = accumulate(max(0, count - whole.shared) for count in params)
            params = [whole.shared + count for count in own]
        costs = tuple(layers.costs[unit] for unit in of)
        return _Segment(costs, grads, before, tuple(params), again, whole.resting * spec.fp32_elements)

    if spec.parallel.recompute != "full":
        return [segment(units, False)]
    blocks = groupby(units, key=lambda unit: block_of(layers.names[unit]) or layers.names[unit])
    return [segment(tuple(block), key in layers.chosen) for key, block in blocks]


def _in_backward(segments: Sequence[_Segment], output: int, in_flight: int, sent: int, split: bool = False) -> Live:
    """The worst instant of a backward (`split`: of a B), with `in_flight` micro-batches of which one runs backward.

    The others keep everything, and `sent` of them their `output` (0 on the last stage).
    """
    instants, before, needed = [], 0, sum(segment.weights for segment in segments)
    for i, segment in enumerate(segments):
        needed -= segment.weights
        behind = segments[i + 1].units[0].boundary if i < len(segments) - 1 else output
        live = segment.worst(behind, split)
        received = output if i < len(segments) - 1 and not split else 0  # the gradient that came is held to the end
        instants.append(live._replace(kept=before + live.kept + split * needed, passing=live.passing + received))
        before += segment.kept
    if not any(segment.recomputed for segment in segments):
        instants.append(Live(before + _in_forward(segments), 0))
    worst = max(instants, key=sum)
    return worst._replace(kept=(in_flight - 1) * before + sent * output + worst.kept)


def _in_forward(segments: Sequence[_Segment], output: int = 0) -> int:
    """Most that a forward holds beside what the micro-batch keeps when it is through, its `output` among it; of one
    without a graph what its layers say, or about what the largest would keep."""
    instants, behind = [0], output
    for segment in reversed(segments):
        if segment.recomputed:  # of its inputs it keeps that of the first layer
            inputs = [unit.boundary if i else 0 for i, unit in enumerate(segment.units)]
            alone = [unit.inner if unit.alone is None else unit.alone for unit in segment.units]
            instants.append(max(map(add, inputs, alone)) - behind)
            behind += segment.kept
            continue
        for i in reversed(range(len(segment.units))):
            instants.append(segment.units[i].forward - behind)
            behind += segment.saved(i)
    return max(instants)


class _Part:
    """A stage's share of its rank: what micro-batches keep from F to B, its `worst` instant in BW and `in_b`, and what
    W needs of one."""

    def __init__(self, segments: Sequence[_Segment], output: int) -> None:
        self.worst = _in_backward(segments, output, 1, 0)
        self.in_b = _in_backward(segments, output, 1, 0, split=True)
        self.weights = sum(segment.weights for segment in segments)
        self.product = max(unit.product for segment in segments for unit in segment.units)
        self.grads = max(grads for segment in segments for grads in segment.grads)
        self.again = segments[-1].recomputed
        """Its output is made again; elsewhere it is the end of a graph that is kept."""
        ending = 0 if self.again else output
        self.inside = _in_forward(segments, ending)
        self.keeps = sum(segment.kept for segment in segments) + ending


def _walked(
    spec: RunSpec,
    stages: Mapping[int, Sequence[int]],
    layers: Layers,
    parts: Mapping[int, _Part],
    whole: Whole,
    seat: Seat,
) -> Live:
    """The worst instant of a rank's program: what all its stages keep, with at most one in its backward, and what is in
    hand for others. Between backwards whole buckets are under way."""
    forward, weights = Counter[int](), Counter[int]()
    edges = {n: layers.edges[units[0]] for n, units in stages.items()}
    edges |= {n + 1: layers.edges[units[-1] + 1] for n, units in stages.items()}
    both = {n: edges[n + 1] for n, part in parts.items() if n + 1 in parts and not part.again}
    resting, worst, full = 0, Live(0, 0), whole.resting * spec.fp32_elements
    again = frozenset(n for n, part in parts.items() if part.again)
    for op, in_hand in _walk(spec.parallel, next(iter(parts)), edges, again, seat):
        n = op.stage
        forward[n] += (op.kind is Kind.F) - (op.kind in (Kind.B, Kind.BW))
        held = sum(part.keeps * forward[i] + weights[i] * part.weights for i, part in parts.items())
        # What one stage hands to the next one of its rank, both keep: it is one tensor.
        held -= sum(size * forward[i + 1] for i, size in both.items())
        live = Live(held + parts[n].inside * (op.kind is Kind.F), in_hand, resting)
        if op.kind is Kind.W:
            live = Live(held, in_hand + parts[n].product, parts[n].grads)
        if op.kind in (Kind.B, Kind.BW):
            worst_of = parts[n].in_b if op.kind is Kind.B else parts[n].worst
            kept = held + worst_of.kept - both.get(n - 1, 0)
            live = Live(kept, in_hand + worst_of.passing, max(worst_of.grads, resting), worst_of.params)
        weights[n] += (op.kind is Kind.B) - (op.kind is Kind.W)
        resting = full if op.kind in (Kind.W, Kind.BW) else resting
        worst = max(worst, live, key=sum)
    return worst


def _walk(
    split: ParallelSpec, stage: int, edges: Mapping[int, int], again: frozenset[int], seat: Seat
) -> Iterator[tuple[Op, int]]:
    """The program of the rank that holds `stage`; replicas that do not take turns are alike."""
    made = _messaged(split)
    here = made.placement[stage][seat.replica if split.replicas is not None else 0]
    return Hands(made, here, edges, again, seat.deaf).walk()


@lru_cache(maxsize=64)
def _messaged(split: ParallelSpec) -> Schedule:
    return communicate(plain(split))


def unproven(spec: RunSpec, stage: int) -> int:
    """Outputs that the next stage had not taken when it sent the gradient that came first (`schedule.receipts`)."""
    behind = in_flight(spec, stage + 1) if stage + 1 < spec.parallel.pp else 0
    return max(0, in_flight(spec, stage) - behind) if behind else 0


def messages(spec: RunSpec, stage: int, entering: int, leaving: int, deaf: frozenset[int]) -> int:
    """Most elements in the hands of the network while all micro-batches are in flight.

    In the backward of micro-batch k: receives posted ahead for what is still to come (activations unless this is the
    first stage, gradients unless it is the last), and gradients sent that nothing proves to be taken. A message has
    as many elements as what is `entering` or `leaving` it.
    """
    split = spec.parallel
    in_all = micro_batches(spec, stage)
    # Where the stage before has one micro-batch in flight, each activation proves that the last gradient was taken.
    answered = stage and stage - 1 not in deaf and in_flight(spec, stage - 1) > 1
    window = unproven_gradients(split, stage) if answered else 0
    to_come = in_all - in_flight(spec, stage)

    def held(k: int) -> int:
        from_before = min(AHEAD * peers(split, stage, -1), to_come - k) + min(k, window) if stage > 0 else 0
        from_behind = min(AHEAD * peers(split, stage, 1), in_all - 1 - k) if stage < split.pp - 1 else 0
        return from_before * entering + from_behind * leaving

    return max(held(min(k, to_come)) for k in (0, window, max(to_come - AHEAD, 0), to_come))
