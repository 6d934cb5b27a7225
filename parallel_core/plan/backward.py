"""What a rank's activations, messages and passing gradients take at the worst instant of a step, in elements.

They peak in a backward: every micro-batch in flight (`schedule.in_flight`) keeps what autograd saved, and the layer
whose backward runs needs gradients on top. Under ZeRO-2 the buckets that it fills are there, too (`plan.lean`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from parallel_core.plan.in_flight import in_flight, micro_batches, peers, unproven_gradients
from parallel_core.plan.messages import Hands
from parallel_core.plan.segments import Layers, Live, Segment, in_backward, in_forward, segments_of
from parallel_core.plan.zero_buckets import Whole
from parallel_core.schedule import plain
from parallel_core.schedule.ir import AHEAD, Kind, Op, Schedule
from parallel_core.schedule.passes.communicate import communicate
from parallel_core.schedule.traits import TRAITS
from parallel_core.spec import ParallelSpec, RunSpec


class Seat(NamedTuple):
    """What ranks of one place differ in: which replica they are, and stages that take nothing from them
    (`Layout.deaf`)."""

    replica: int
    deaf: frozenset[int]


def at_peak(spec: RunSpec, layers: Layers, stages: Mapping[int, Sequence[int]], whole: Whole, seat: Seat) -> Live:
    """The worst instant of a rank that holds `stages` (number -> units), messages among what is passing."""
    edges = layers.edges
    parts = {n: (segments_of(spec, layers, units, whole), edges[units[-1] + 1]) for n, units in stages.items()}
    if _in_closed_form(spec.parallel, stages):
        ((stage, units),) = stages.items()
        segments, count = parts[stage][0], in_flight(spec, stage, seat.replica)
        sent = 0 if stage + 1 in seat.deaf else unproven(spec, stage)
        outputs = sent if segments[-1].recomputed else count - 1  # else they end their graphs
        live = in_backward(*parts[stage], count, outputs)
        return _and_messages(live, messages(spec, stage, edges[units[0]], edges[units[-1] + 1], seat.deaf))
    return _walked(spec, stages, layers, {n: _Part(*part) for n, part in parts.items()}, whole, seat)


def _in_closed_form(split: ParallelSpec, stages: Iterable[int]) -> bool:
    """Whether what a rank holds of `stages` is known without a walk through its program. Replicas that take
    turns and flush begin and end a step one by one; of few micro-batches all is received for before the first."""
    few = split.flushes and (split.replicas is not None or (split.pp > 1 and split.micro_batches <= AHEAD))
    return len([*stages]) == 1 and split.program is None and not few and not in_two(split, stages)


def in_two(split: ParallelSpec, stages: Iterable[int]) -> bool:
    """Whether the backward of a rank's `stages` is two operations, B and W."""
    return TRAITS[split.schedule].split or (split.early_gradients and any(stages))


def _and_messages(live: Live, held: int) -> Live:
    return live._replace(passing=live.passing + held)


class _Part:
    """A stage's share of its rank: what micro-batches keep from F to B, its `worst` instant in BW and `in_b`, and what
    W needs of one."""

    def __init__(self, segments: Sequence[Segment], output: int) -> None:
        self.worst = in_backward(segments, output, 1, 0)
        self.in_b = in_backward(segments, output, 1, 0, split=True)
        self.weights = sum(segment.weights for segment in segments)
        self.product = max(unit.product for segment in segments for unit in segment.units)
        self.grads = max(grads for segment in segments for grads in segment.grads)
        self.again = segments[-1].recomputed
        """Its output is made again; elsewhere it is the end of a graph that is kept."""
        ending = 0 if self.again else output
        self.inside = in_forward(segments, ending)
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
    resting, worst, once = 0, Live(0, 0), set[int]()
    full, rested = (size * spec.fp32_elements for size in (whole.resting, whole.rested))
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
        if op.kind in (Kind.W, Kind.BW):
            resting = full if n in once else rested
            once.add(n)
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
