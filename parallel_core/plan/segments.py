"""Groups of a stage's layers that go forward and backward together, and their peak memory, in elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import add
from typing import NamedTuple

from parallel_core.outline import UnitCost, block_of
from parallel_core.outline.recompute import recomputed
from parallel_core.plan import fully_sharded
from parallel_core.plan.units import boundary_elements, unit_costs
from parallel_core.plan.zero_buckets import Turn, Whole
from parallel_core.spec import RunSpec


class Layers(NamedTuple):
    """All layers of a run: costs, elements that enter each (0 after the last), names, and the blocks that recompute."""

    costs: Sequence[UnitCost]
    edges: Sequence[int]
    names: Sequence[str]
    chosen: frozenset[str]

    @classmethod
    def of(cls, spec: RunSpec) -> Layers:
        """The layers of a run."""
        names = spec.model.units()
        costs: Sequence[UnitCost] = unit_costs(spec)
        if fully_sharded.by_torch(spec):
            costs = fully_sharded.let_go_late(spec, costs)
        return cls(costs, [*boundary_elements(spec), 0], names, recomputed(spec.parallel, names))


class Live(NamedTuple):
    """Elements at one instant, all in elements of activations: `kept` for backwards, `passing` (temporary gradients of
    activations), and gradients and parameters in unsharded buckets."""

    kept: int
    passing: int
    grads: int = 0
    params: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """Layers that go backward together; if recomputed, only the input of the first is kept.

    Elements of unsharded gradient buckets: `grads` in the backward of each layer, `before` its first gradient, `sent`
    when the last has come, `resting` before that of the loss, `in_b` in its B; `params`: unsharded parameters; `turns`:
    set if torch shards them.
    """

    units: tuple[UnitCost, ...]
    grads: tuple[int, ...]
    before: tuple[int, ...]
    params: tuple[int, ...]
    recomputed: bool
    resting: int = 0
    in_b: tuple[int, ...] = ()
    sent: tuple[int, ...] = ()
    turns: tuple[Turn, ...] = ()

    @property
    def kept(self) -> int:
        """Elements kept of one micro-batch from forward to backward."""
        if self.recomputed:
            return self.units[0].boundary
        return sum(self.saved(i) for i in range(len(self.units)))

    def saved(self, i: int) -> int:
        """Elements saved by layer `i` of the segment, where it is not recomputed."""
        unit = self.units[i]
        return unit.boundary + unit.inner - (unit.copied if i else 0)

    def forward(self, i: int) -> int:
        """Elements that the forward of layer `i` holds beside what it saves, at its peak."""
        unit = self.units[i]
        return unit.forward + (unit.original if i else 0)  # `saved` has that of the first layer

    @property
    def weights(self) -> int:
        """Elements that W needs of one micro-batch."""
        return sum(unit.weights for unit in self.units)

    def worst(self, output: int, split: bool) -> Live:
        """The peak of its backward, which starts from its `output` and the gradient of that (0: the loss).

        While a layer runs backward, the layers before it still hold what they saved, and those after it have freed it
        (`split`: all but what W needs). If the next layer is in this segment, the gradient of its input exists, and
        that of the output until the end (`split`: W needs both anyway); the last layer counts them as passing.
        """
        instants, before, behind = [], 0, self.weights
        for i, unit in enumerate(self.units):
            before += self.saved(i)
            behind -= unit.weights
            last = i == len(self.units) - 1
            own = bool(unit.let_go or not unit.weights)  # an unsharded gradient of which W keeps a part at most
            gradient = 0 if last or (split and not own) else self.units[i + 1].boundary - unit.outgoing + output
            gradient += unit.leaving if last else 0
            beside = unit.let_go or (unit.gathered and not unit.outgoing)  # it gathers from its rows
            gradient += output if last and beside else 0
            kept = before + unit.core + output + split * behind
            passing, params = unit.passing + gradient + split * (unit.put_off - unit.product), self.params[i]
            grads, resting = (self.in_b[i], 0) if split else (self.grads[i], self.resting)
            instants.append(Live(kept, max(unit.loss, unit.drawn) + gradient, resting, params))
            if self.recomputed:
                instants.append(Live(before + self.forward(i), output, resting, params))
            kept -= unit.loss  # only the gradient of the fp32 log-probabilities is left
            if unit.late and not split:
                instants.append(Live(kept - unit.late, passing, grads, params))
                grads = self.before[i]
            instants.append(Live(kept, passing, grads, params))
            if self.sent and not split:
                freed = 0 if unit.sent is None else unit.passing - unit.sent
                instants.append(Live(kept - unit.late, passing - freed, self.sent[i], params))
        return max((*instants, *self._turns(output)), key=sum)

    def _turns(self, output: int) -> Iterator[Live]:
        """Memory at two kinds of instants of the segment's backward under `fully_shard`, layer by layer: when a layer's
        parameters have been gathered, and when its gradients are reduced. At the latter, of the layer's activations
        only its input and the gradient of its input are left."""
        before, there = 0, 0
        for i, (unit, turn) in enumerate(zip(self.units, self.turns, strict=False)):
            gradient = output if i == len(self.units) - 1 else self.units[i + 1].boundary + output
            if self.recomputed:  # the layers before it in its block have been gathered again, too
                yield Live(before + unit.boundary, output, 0, there + (turn.earlier if i else 0) + 2 * turn.params)
                yield Live(before + self.saved(i) + self.forward(i), output, 0, there + 2 * turn.params)
            elif not turn.stays:
                yield Live(before + self.saved(i) + output, gradient, turn.behind, 2 * turn.params)
            grads, copied = turn.summed
            passing = unit.boundary + output + copied
            yield Live(before + unit.boundary + output, passing, grads, there if self.recomputed else turn.ahead)
            there += turn.params
            before += self.saved(i)

    def first_turns(self) -> Iterator[Live]:
        """Memory at two kinds of instants of the segment's first forward under `fully_shard`, layer by layer: when a
        layer's parameters have been gathered, and during its computation."""
        before = 0
        for i, (unit, turn) in enumerate(zip(self.units, self.turns, strict=False)):
            yield Live(before + unit.boundary, 0, 0, turn.earlier + 2 * turn.params)
            if not self.recomputed:
                yield Live(before + self.saved(i) + self.forward(i), 0, 0, 2 * turn.params)
                before += self.saved(i)
                continue
            alone = unit.inner if unit.alone is None else unit.alone
            before = self.units[0].boundary
            yield Live((before if i else 0) + unit.boundary + alone, 0, 0, 2 * turn.params)


def segments_of(spec: RunSpec, layers: Layers, units: Sequence[int], whole: Whole) -> list[Segment]:
    """The stage's layers grouped as the engine recomputes them, by blocks; other layers are not recomputed."""

    def segment(of: Sequence[int], again: bool) -> Segment:
        grads = tuple(whole.at.get(unit, 0) * spec.fp32_elements for unit in of)
        before = tuple(whole.before.get(unit, whole.at.get(unit, 0)) * spec.fp32_elements for unit in of)
        params = [whole.params.get(unit, 0) for unit in of]
        if again:  # the layers before it have been gathered again, too
            own = accumulate(max(0, count - whole.shared) for count in params)
            params = [whole.shared + count for count in own]
        costs = tuple(layers.costs[unit] for unit in of)
        sent = tuple(whole.sent.get(unit, 0) * spec.fp32_elements for unit in of)
        turns = tuple(whole.turns[unit] for unit in of if unit in whole.turns)
        in_b = tuple(whole.in_b.get(unit, 0) * spec.fp32_elements for unit in of)
        return Segment(
            costs, grads, before, tuple(params), again, whole.resting * spec.fp32_elements, in_b, sent, turns
        )

    if spec.parallel.recompute != "full":
        return [segment(units, False)]
    blocks = groupby(units, key=lambda unit: block_of(layers.names[unit]) or layers.names[unit])
    return [segment(tuple(block), key in layers.chosen) for key, block in blocks]


def in_backward(segments: Sequence[Segment], output: int, in_flight: int, sent: int, split: bool = False) -> Live:
    """The peak of a backward (`split`: of a B), with `in_flight` micro-batches of which one runs backward.

    The others keep everything, and `sent` of them also their `output` (0 on the last stage).
    """
    instants, before, needed = [], 0, sum(segment.weights for segment in segments)
    for i, segment in enumerate(segments):
        needed -= segment.weights
        behind = segments[i + 1].units[0].boundary if i < len(segments) - 1 else output
        live = segment.worst(behind, split)
        received = output if i < len(segments) - 1 and not split else 0  # the received gradient is held to the end
        instants.append(live._replace(kept=before + live.kept + split * needed, passing=live.passing + received))
        instants += [turn._replace(kept=before + turn.kept) for turn in segment.first_turns()]
        before += segment.kept
    if not any(segment.recomputed for segment in segments):
        instants.append(Live(before + in_forward(segments), 0))
    worst = max(instants, key=sum)
    return worst._replace(kept=(in_flight - 1) * before + sent * output + worst.kept)


def in_forward(segments: Sequence[Segment], output: int = 0) -> int:
    """Most elements that a forward holds besides what the micro-batch keeps afterwards, its `output` included. Without
    a graph: what its layers specify, or about what the largest would keep."""
    instants, behind = [0], output
    for segment in reversed(segments):
        if segment.recomputed:  # of its inputs it keeps that of the first layer
            inputs = [unit.boundary if i else 0 for i, unit in enumerate(segment.units)]
            alone = [unit.inner if unit.alone is None else unit.alone for unit in segment.units]
            instants.append(max(map(add, inputs, alone)) - behind)
            behind += segment.kept
            continue
        for i in reversed(range(len(segment.units))):
            instants.append(segment.forward(i) - behind)
            behind += segment.saved(i)
    return max(instants)
