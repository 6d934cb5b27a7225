"""Elements of activations, messages and temporary gradients of a rank at the peak of a step.

Memory peaks in a backward: autograd keeps its saved tensors for every micro-batch in flight (`schedule.peaks`), and
the layer that runs backward needs gradients on top. ZeRO-2 adds the buckets that are being filled
(`plan.zero_buckets`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from parallel_core.plan.held_counts import HeldCounts, Moment, What, held_counts
from parallel_core.plan.in_flight import (
    alike,
    in_flight,
    micro_batches,
    peers,
    saturated,
    stream_steps,
    unproven_gradients,
)
from parallel_core.plan.segments import Layers, Live, Segment, in_backward, in_forward, segments_of
from parallel_core.plan.zero_buckets import Whole
from parallel_core.schedule import runs_of
from parallel_core.schedule.ir import AHEAD, Kind
from parallel_core.schedule.traits import TRAITS
from parallel_core.spec import ParallelSpec, RunSpec


class RankVariant(NamedTuple):
    """How ranks of one place differ: their replica, and the stages that receive nothing from them
    (`Layout.unfed_stages`)."""

    replica: int
    unfed_stages: frozenset[int]


def at_peak(
    spec: RunSpec, layers: Layers, stages: Mapping[int, Sequence[int]], whole: Whole, variant: RankVariant
) -> Live:
    """Elements at the peak of a rank that holds `stages` (stage -> its units); messages count as passing."""
    edges = layers.edges
    parts = {n: (segments_of(spec, layers, units, whole), edges[units[-1] + 1]) for n, units in stages.items()}
    if _in_closed_form(spec.parallel, stages):
        ((stage, units),) = stages.items()
        segments, count = parts[stage][0], in_flight(spec, stage, variant.replica)
        sent = 0 if stage + 1 in variant.unfed_stages else unproven(spec, stage)
        outputs = sent if segments[-1].recomputed else count - 1  # not recomputed: each ends a graph that is kept
        live = in_backward(*parts[stage], count, outputs)
        return _and_messages(live, messages(spec, stage, edges[units[0]], edges[units[-1] + 1], variant))
    return _walked(spec, stages, layers, {n: _Part(*part) for n, part in parts.items()}, whole, variant)


def _in_closed_form(split: ParallelSpec, stages: Iterable[int]) -> bool:
    """Whether the peak of a rank that holds `stages` follows from a formula, without a walk through its program.

    Not where replicas take turns and flush, since they begin and end a step one by one; nor with few micro-batches,
    since all receives are posted before the first one.
    """
    few = split.flushes and (split.replicas is not None or (split.pp > 1 and split.micro_batches <= AHEAD))
    return len([*stages]) == 1 and split.program is None and not few and not in_two(split, stages)


def walked(split: ParallelSpec) -> int:
    """About how many compute operations are walked to find the peaks of all ranks, the first time that they are asked
    for; 0 where formulas or runs (`plan.held_counts`) have them, however many micro-batches there are."""
    if runs_of(split, 0) is not None:
        return 0
    if not split.flushes:
        return 2 * sum(split.copies) * split.micro_batches * stream_steps(split)
    if all(_in_closed_form(split, [stage]) for stage in range(split.stages)) and split.chunks_per_rank == 1:
        return 0
    return 3 * split.stages * saturated(split).micro_batches


def in_two(split: ParallelSpec, stages: Iterable[int]) -> bool:
    """Whether a rank of these `stages` runs its backward as two operations, B and W."""
    return TRAITS[split.schedule].split or (split.early_gradients and any(stages))


def _and_messages(live: Live, held: int) -> Live:
    return live._replace(passing=live.passing + held)


class _Part:
    """One stage of a rank: elements that a micro-batch keeps from F to B (`keeps`), the peak of its BW (`worst`) and of
    its B (`in_b`), and what W needs of one micro-batch (`weights`)."""

    def __init__(self, segments: Sequence[Segment], output: int) -> None:
        self.worst = in_backward(segments, output, 1, 0)
        self.in_b = in_backward(segments, output, 1, 0, split=True)
        self.weights = sum(segment.weights for segment in segments)
        self.product = max(unit.product for segment in segments for unit in segment.units)
        self.grads = max(grads for segment in segments for grads in segment.grads)
        self.sent = max((sent for segment in segments for sent in segment.sent), default=0)
        self.again = segments[-1].recomputed
        """The output is recomputed; otherwise it ends a graph that is kept."""
        ending = 0 if self.again else output
        self.inside = in_forward(segments, ending)
        self.keeps = sum(segment.kept for segment in segments) + ending


class _Account:
    """What a rank holds while one of its operations runs: what all its stages keep, at most one of them in its
    backward, and the messages held. Between backwards whole buckets are in flight."""

    def __init__(self, parts: Mapping[int, _Part], edges: Mapping[int, int], full: int, rested: int) -> None:
        """`full`: elements of the whole buckets between backwards, `rested`: those after the first one of a step."""
        self._parts, self._edges, self._resting = parts, edges, (0, rested, full)
        self._both = {n + 1: edges[n + 1] for n, part in parts.items() if n + 1 in parts and not part.again}
        """The output of one stage and the input of the next one of the same rank are one tensor."""

    def worst(self, counts: HeldCounts) -> Live:
        """The peak; of equal ones the first."""
        sizes = np.array([self._size(*column) for column in counts.columns])
        messages = np.array([what == "message" for what, _ in counts.columns])
        own = np.array([sum(self._live(moment, 0, 0)) for moment in counts.moments])
        most = int(np.argmax(counts.rows @ sizes + own[counts.which]))
        held = counts.rows[most] * sizes
        moment = counts.moments[counts.which[most]]
        return self._live(moment, int(held[~messages].sum()), int(held[messages].sum()))

    def _size(self, what: What, stage: int) -> int:
        """Elements of one of a column."""
        if what == "message":
            return self._edges[stage]
        part = self._parts[stage]
        return part.weights if what == "weights" else part.keeps - self._both.get(stage, 0)

    def _live(self, moment: Moment, held: int, in_hand: int) -> Live:
        """Elements at a moment, with `held` waiting for a backward or for W and `in_hand` in messages."""
        kind, part, resting = moment.kind, self._parts[moment.stage], self._resting[moment.rest]
        if kind is Kind.W:
            # The product is freed before a bucket goes.
            product, grads = max((part.product, part.grads), (0, part.sent), key=sum)
            return Live(held, in_hand + product, grads)
        if kind in (Kind.B, Kind.BW):
            worst = part.in_b if kind is Kind.B else part.worst
            kept = held + worst.kept - self._both.get(moment.stage, 0)
            return Live(kept, in_hand + worst.passing, max(worst.grads, resting), worst.params)
        return Live(held + part.inside * (kind is Kind.F), in_hand, resting)


def _walked(
    spec: RunSpec,
    stages: Mapping[int, Sequence[int]],
    layers: Layers,
    parts: Mapping[int, _Part],
    whole: Whole,
    variant: RankVariant,
) -> Live:
    """The peak of a rank's program."""
    edges = {n: layers.edges[units[0]] for n, units in stages.items()}
    edges |= {n + 1: layers.edges[units[-1] + 1] for n, units in stages.items()}
    account = _Account(parts, edges, whole.resting * spec.fp32_elements, whole.rested * spec.fp32_elements)
    again = frozenset(n for n, part in parts.items() if part.again)
    near = frozenset(stage + step for stage in parts for step in (-1, 1))
    unfed = variant.unfed_stages & near
    return account.worst(held_counts(alike(spec.parallel), tuple(parts), variant.replica, again, unfed))


def unproven(spec: RunSpec, stage: int) -> int:
    """Outputs that the first gradient from the next stage does not acknowledge: that stage had not received them yet
    (`schedule.send_completion`)."""
    there = in_flight(spec, stage + 1) if stage + 1 < spec.parallel.pp else 0
    return max(0, in_flight(spec, stage) - there) if there else 0


def messages(spec: RunSpec, stage: int, entering: int, leaving: int, variant: RankVariant) -> int:
    """Most elements held for messages while all micro-batches are in flight.

    In the backward of micro-batch k these are the buffers of receives posted ahead (activations unless this is the
    first stage, gradients unless it is the last), and sent gradients that are not implicitly acknowledged yet. A
    message from or to the previous stage has `entering` elements, one from or to the next stage `leaving`.
    """
    split, replica = spec.parallel, variant.replica
    in_all = micro_batches(spec, stage)
    # A previous stage with one micro-batch in flight: each activation acknowledges the last gradient.
    answered = stage and stage - 1 not in variant.unfed_stages and in_flight(spec, stage - 1) > 1
    window = unproven_gradients(split, stage) if answered else 0
    to_come = in_all - in_flight(spec, stage)

    def held(k: int) -> int:
        from_previous = min(AHEAD * peers(split, stage, -1, replica), to_come - k) + min(k, window) if stage > 0 else 0
        from_next = min(AHEAD * peers(split, stage, 1, replica), in_all - 1 - k) if stage < split.pp - 1 else 0
        return from_previous * entering + from_next * leaving

    return max(held(min(k, to_come)) for k in (0, window, max(to_come - AHEAD, 0), to_come))
