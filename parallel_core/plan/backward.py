"""What a rank's activations, messages and passing gradients take at the worst instant of a step, in elements.

They peak in a backward: every micro-batch in flight (`schedule.in_flight`) keeps what autograd saved, and the layer
whose backward runs needs gradients on top. Under ZeRO-2 the buckets that it fills are there, too (`plan.lean`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, groupby
from typing import NamedTuple

from parallel_core.outline import UnitCost, block_of
from parallel_core.outline.recompute import recomputed
from parallel_core.plan.lean import Whole
from parallel_core.plan.under_way import in_flight, micro_batches, peers, unproven_gradients
from parallel_core.plan.units import boundary_elements, unit_costs
from parallel_core.schedule import plain
from parallel_core.schedule.ir import AHEAD, Kind, Program
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
        return cls(unit_costs(spec), [*boundary_elements(spec), 0], names, recomputed(spec.parallel, names))


class Live(NamedTuple):
    """Elements at one instant: kept for backwards, passing (gradients of activations on their way), and gradients of
    parameters, and parameters, in buckets that are whole for a while, in elements of activations."""

    kept: int
    passing: int
    grads: int = 0
    params: int = 0


def at_peak(spec: RunSpec, layers: Layers, stages: Mapping[int, Sequence[int]], whole: Whole) -> Live:
    """The worst instant of a rank that holds `stages` (number -> units), messages among what is passing."""
    edges = layers.edges
    parts = {n: (_segments(spec, layers, units, whole), edges[units[-1] + 1]) for n, units in stages.items()}
    if len(stages) == 1 and spec.parallel.program is None and not TRAITS[spec.parallel.schedule].split:
        ((stage, units),) = stages.items()
        segments, count = parts[stage][0], in_flight(spec, stage)
        outputs = _unproven(spec, stage) if segments[-1].recomputed else count - 1  # else they end their graphs
        live = _in_backward(*parts[stage], count, outputs)
        return _and_messages(live, _messages(spec, stage, edges[units[0]], edges[units[-1] + 1]))
    live = _walked(
        spec, {n: _Part(*part, len(parts) == 1) for n, part in parts.items()}, whole.resting * spec.fp32_elements
    )
    return _and_messages(live, _posted(stages, edges))


def _posted(stages: Mapping[int, Sequence[int]], edges: Sequence[int]) -> int:
    """Elements in the hands of the network: receives posted ahead of what other ranks send to `stages`, and where there
    is one stage alone a gradient on its way out. What goes from one stage of a rank to another is no message."""
    entering = {n: edges[units[0]] * (n > 0 and n - 1 not in stages) for n, units in stages.items()}
    leaving = {n: edges[units[-1] + 1] * (n + 1 not in stages) for n, units in stages.items()}
    out = sum(entering.values()) if len(stages) == 1 else 0
    return AHEAD * (sum(entering.values()) + sum(leaving.values())) + out


def _and_messages(live: Live, messages: int) -> Live:
    return live._replace(passing=live.passing + messages)


@dataclass(frozen=True, slots=True)
class _Segment:
    """Layers that go backward together; where they are recomputed only the input of the first is kept. `grads` are
    what whole buckets take in the backward of each, `resting` before that of the loss; `params` those of parameters."""

    units: tuple[UnitCost, ...]
    grads: tuple[int, ...]
    params: tuple[int, ...]
    recomputed: bool
    resting: int = 0

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

    def worst(self, output: int, split: bool) -> Live:
        """The worst instant of its backward, which starts from its `output` and the gradient of that (0: the loss).

        While a layer runs backward, those before it keep theirs and those behind it have let go, where the backward is
        `split` of all but what W needs. Where the next layer behind is another one of this segment, the gradient of its
        input is there (`split`: W needs it anyway); the last layer counts it as passing.
        """
        instants, before, behind = [], 0, self.weights
        for i, unit in enumerate(self.units):
            before += unit.boundary + unit.inner
            behind -= unit.weights
            gradient = self.units[i + 1].boundary if i < len(self.units) - 1 and not split else 0
            kept = before + unit.core + output + split * behind
            passing, params = unit.passing + gradient + split * unit.put_off, self.params[i]
            instants.append(Live(kept, passing, 0 if split else self.grads[i], params))
            instants.append(Live(kept, unit.loss + gradient, self.resting, params))
        return max(instants, key=sum)


def _segments(spec: RunSpec, layers: Layers, units: Sequence[int], whole: Whole) -> list[_Segment]:
    """The stage's layers as the engine recomputes them, block by block; layers outside of blocks are not."""

    def segment(of: Sequence[int], again: bool) -> _Segment:
        grads = tuple(whole.at.get(unit, 0) * spec.fp32_elements for unit in of)
        params = [whole.params.get(unit, 0) for unit in of]
        params = list(accumulate(params)) if again else params  # those before it have been made whole again, too
        costs = tuple(layers.costs[unit] for unit in of)
        return _Segment(costs, grads, tuple(params), again, whole.resting * spec.fp32_elements)

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
        instants.append(live._replace(kept=before + live.kept + split * needed))
        before += segment.kept
    worst = max(instants, key=sum)
    return worst._replace(kept=(in_flight - 1) * before + sent * output + worst.kept)


class _Part:
    """A stage's share of its rank: what micro-batches keep from F to B, its `worst` instant in BW and `in_b`, and what
    W needs of one."""

    def __init__(self, segments: Sequence[_Segment], output: int, alone: bool) -> None:
        self.worst = _in_backward(segments, output, 1, 0)
        self.in_b = _in_backward(segments, output, 1, 0, split=True)
        self.weights = sum(segment.weights for segment in segments)
        self.grads = max(grads for segment in segments for grads in segment.grads)
        self._own = sum(segment.kept for segment in segments)
        self._output, self._again, self._sent = output, segments[-1].recomputed, AHEAD if alone else 1

    def keeps(self, count: int) -> int:
        """Elements that `count` micro-batches keep. Their outputs are the ends of their graphs; where those are made
        again, they are there until something proves them taken: few at a time, fewer where each comes back soon."""
        return count * self._own + (min(count, self._sent) if self._again else count) * self._output


def _walked(spec: RunSpec, parts: Mapping[int, _Part], resting: int) -> Live:
    """The worst instant of a rank's program: what all its stages keep, with at most one in its backward. Between
    backwards whole buckets of `resting` elements are under way."""
    forward, weights = Counter[int](), Counter[int]()
    worst = Live(0, 0)
    for op in (part for pair in _program(spec.parallel, next(iter(parts))) for part in pair.parts()):
        n = op.stage
        forward[n] += (op.kind is Kind.F) - (op.kind in (Kind.B, Kind.BW))
        held = sum(part.keeps(forward[i]) + weights[i] * part.weights for i, part in parts.items())
        live = Live(held, 0, parts[n].grads if op.kind is Kind.W else resting)
        if op.kind in (Kind.B, Kind.BW):
            worst_of = parts[n].in_b if op.kind is Kind.B else parts[n].worst
            live = worst_of._replace(kept=held + worst_of.kept, grads=max(worst_of.grads, resting))
        weights[n] += (op.kind is Kind.B) - (op.kind is Kind.W)
        worst = max(worst, live, key=sum)
    return worst


@lru_cache(maxsize=64)
def _program(split: ParallelSpec, stage: int) -> Program:
    """Compute operations of one replica of the rank that holds `stage`."""
    made = plain(split)
    return made.programs[made.placement[stage][0]]


def _unproven(spec: RunSpec, stage: int) -> int:
    """Outputs that the next stage had not taken when it sent the gradient that came first (`engine.receipts`)."""
    behind = in_flight(spec, stage + 1) if stage + 1 < spec.parallel.pp else 0
    return max(0, in_flight(spec, stage) - behind) if behind else 0


def _messages(spec: RunSpec, stage: int, entering: int, leaving: int) -> int:
    """Most elements in the hands of the network while all micro-batches are in flight.

    In the backward of micro-batch k: receives posted ahead for what is still to come (activations unless this is the
    first stage, gradients unless it is the last), and gradients sent that nothing proves to be taken. A message has
    as many elements as what is `entering` or `leaving` it.
    """
    split = spec.parallel
    in_all, window = micro_batches(spec, stage), unproven_gradients(split, stage) if stage else 0
    to_come = in_all - in_flight(spec, stage)

    def held(k: int) -> int:
        from_before = min(AHEAD * peers(split, stage, -1), to_come - k) + min(k, window) if stage > 0 else 0
        from_behind = min(AHEAD * peers(split, stage, 1), in_all - 1 - k) if stage < split.pp - 1 else 0
        return from_before * entering + from_behind * leaving

    return max(held(min(k, to_come)) for k in (0, window, max(to_come - AHEAD, 0), to_come))
