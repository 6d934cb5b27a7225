"""Prices of a replay: what each operation costs in a step that was measured, under a change (`replay.Change`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from parallel_core.layout import Layout
from parallel_core.schedule.ir import P2P, REPLICA_COLLECTIVES, Kind, Op, other_end
from parallel_core.simulate.constant_costs import (
    COME_NS,
    MOST,
    Constant,
    moves_as_much,
    resized,
    resized_part,
)
from parallel_core.simulate.halves import HALVES, halved, joined, parted
from parallel_core.simulate.measured import Cost, Measured, key
from parallel_core.simulate.message_turns import Carrying
from parallel_core.spec import RunSpec

if TYPE_CHECKING:
    from parallel_core.simulate.replay import Change


@dataclass(frozen=True)
class SamePrices:
    """Prices: every operation at its own measured cost."""

    measured: Measured
    change: Change
    message_bytes = 0

    @property
    def norm(self) -> bool:
        return self.measured.norm

    def of(self, op: Op) -> int:
        return _taken(op.kind, self.measured.ops[key(op)], self.change)

    def latency(self, op: Op) -> int:
        return round(self.measured.latency.get(key(op), 0.0) / self.change.links / self.change.messages)

    def turn(self, op: Op) -> int:
        return 0  # each message's own latency has its wait for the one before it

    def begin(self, pipeline_rank: int) -> int:
        return round(self.measured.begins[pipeline_rank])

    def meeting(self, pipeline_rank: int) -> int:
        return round(self.measured.norms[pipeline_rank] / self.change.links)


class TypicalPrices:
    """Prices: every operation at the median cost of its kind and stage, for the program and the stages of `after`.

    `weights`: relative costs of the layers of both specs. `constant`: `constant_costs` of `after`, which stay with
    fewer or more samples; () where its layers are not known.
    """

    message_bytes = 0

    def __init__(
        self,
        before: RunSpec,
        after: RunSpec,
        measured: Measured,
        change: Change,
        weights: Sequence[int],
        constant: Sequence[Constant] = (),
    ) -> None:
        self.norm, self._change = measured.norm, change
        self._begin = round(float(np.median(measured.begins)))
        self._norm = round(float(np.median(measured.norms)) / change.links) if measured.norm else 0
        share = before.parallel.micro_batches / after.parallel.micro_batches
        size, message = 1.0 if change.same_messages else share, constant[0] if constant else Constant()
        # What a message between cores takes however small it is keeps no other one from going.
        come = COME_NS if before.train.device == "cpu" else 0.0
        priced = partial(_message, measured.one_host, size, change.links * change.messages, message.come, come)
        self._usual = priced(measured.messages)
        self._links = {places: priced(carrying) for places, carrying in measured.by_link.items()}
        self._places = Layout.of(after).places
        self._any = _whole(measured, before.parallel.chunks_per_rank / after.parallel.chunks_per_rank)
        for kind in P2P:
            if cost := measured.median(kind):
                self._any[kind] = Cost(moved=resized_part(cost.moved, size, message.handled))
        costs = _by_kind(measured, before, after, change.balanced, weights, bool(constant))
        self._stages = _resized(costs, before, after, share, constant)

    def of(self, op: Op) -> int:
        if op.kind is Kind.PAIR:
            return sum(self.of(part) for part in op.parts())
        cost = self._stages.get((op.kind, op.stage)) or self._any.get(op.kind, Cost())
        return _taken(op.kind, cost, self._change)

    def latency(self, op: Op) -> int:
        return self._message(op)[0]

    def turn(self, op: Op) -> int:
        return self._message(op)[1]

    def _message(self, op: Op) -> tuple[int, int]:
        """Latency and turn of the SEND `op`: those of its link, if messages went over it before."""
        here, there = self._places[op.stage], self._places[other_end(op)[1]]
        return self._links.get((min(here, there), max(here, there)), self._usual)

    def begin(self, pipeline_rank: int) -> int:
        return self._begin

    def meeting(self, pipeline_rank: int) -> int:
        return self._norm


def _taken(kind: Kind, cost: Cost, change: Change) -> int:
    again, again_moved = (0.0, 0.0) if change.no_recompute else (cost.again, cost.again_moved)
    faster = change.links * (change.messages if kind in P2P else 1.0)
    return round((cost.work + again) / change.device + (cost.moved + again_moved) / faster)


def _message(
    one_host: bool, size: float, faster: float, constant: float, come: float, carrying: Carrying
) -> tuple[int, int]:
    """(latency, turn) in ns of a message with `size` times the bytes of those measured, over a link `faster` times as
    fast. `constant`: ns that its latency has at least, `come`: those of them in which it keeps no other from going."""
    stays, holds = (carrying.latency(took, one_host) for took in (carrying.alone, carrying.turn))
    stays, holds = max(stays, min(constant, MOST * carrying.alone)), max(0.0, holds - come)
    alone = stays + (carrying.alone - stays) * size
    return round(alone / faster), round((holds + max(0.0, carrying.turn - holds - come) * size) / faster)


_WHOLE = (*REPLICA_COLLECTIVES, Kind.OPT_STEP)
"""Operations once a step: their total cost on a rank does not depend on its number of stages."""


def _whole(measured: Measured, chunks: float) -> dict[Kind, Cost]:
    """Costs of the operations once a step, on a rank with 1 / `chunks` times as many stages."""
    return {kind: _scaled(cost, chunks) for kind in _WHOLE if (cost := measured.mean(kind))}


def _resized(
    costs: Mapping[Kind, Sequence[Cost]], before: RunSpec, after: RunSpec, share: float, constant: Sequence[Constant]
) -> dict[tuple[Kind, int], Cost]:
    """Costs by kind and stage, with `share` times the samples in a micro-batch; `constant` as in TypicalPrices."""
    plain = [(Constant(), 1.0)] * after.parallel.stages
    stays = list(zip(constant, parted(after), strict=True)) if constant else plain
    moved = 1.0 if moves_as_much(before) else share
    return {
        (kind, stage): resized(cost, share, stays[stage][0], kind, moved, stays[stage][1])
        for kind, of_kind in costs.items()
        for stage, cost in enumerate(of_kind)
    }


def _scaled(cost: Cost, factor: float) -> Cost:
    return Cost(*(part * factor for part in cost))


def _added(costs: Iterable[Cost]) -> Cost:
    return Cost(*(sum(parts) for parts in zip(Cost(), *costs, strict=True)))


def _by_kind(
    measured: Measured, before: RunSpec, after: RunSpec, balanced: bool, weights: Sequence[int], layers: bool
) -> dict[Kind, list[Cost]]:
    """Costs of F, B, W and BW on every stage of `after`; `layers`: whether those of the specs are the run's own."""
    old, new = Layout.of(before), Layout.of(after)
    found, shares = {}, parted(before) if layers else [1.0] * old.stages
    for kind, costs in _of_stages(measured, shares, HALVES[before.train.device]).items():
        again = _moved(costs, old, new, weights)
        found[kind] = _levelled(again, new) if balanced else again
    return found


def _levelled(costs: Sequence[Cost], layout: Layout) -> list[Cost]:
    """The same total work, divided so that all ranks are busy equally long: a stage with twice the replicas gets twice
    the cost a micro-batch, of which each replica executes half."""
    replicas = [layout.replicas[place] for place in layout.places]
    widths = [layout.widths[place] for place in layout.places]
    total = _added(_scaled(cost, width) for cost, width in zip(costs, widths, strict=True))
    ranks = sum(n * width for n, width in zip(replicas, widths, strict=True))
    return [_scaled(total, n / ranks) for n in replicas]


def _of_stages(measured: Measured, shares: Sequence[float], longer: float) -> dict[Kind, list[Cost]]:
    """Median F, B, W and BW of every measured stage. A backward measured whole is split and the other way round;
    `shares`: how much of each stage's is split, which takes `longer` times as long then."""
    found: dict[Kind, list[Cost]] = {kind: [] for kind in (Kind.F, Kind.B, Kind.W, Kind.BW)}
    for stage, share in enumerate(shares):
        own = {kind: measured.median(kind, stage) or Cost() for kind in found}
        if any(own[Kind.B]):
            own[Kind.BW] = joined(own[Kind.B], own[Kind.W], longer, share)
        else:
            own[Kind.B], own[Kind.W] = halved(own[Kind.F], own[Kind.BW], longer, share)
        for kind, cost in own.items():
            found[kind].append(cost)
    return found


def _moved(costs: Sequence[Cost], old: Layout, new: Layout, weights: Sequence[int]) -> list[Cost]:
    """Costs of the stages of `new` from those of the stages of `old`: each layer gets its share by FLOPs, and half of
    it on twice the tensor ranks."""
    if old.stage_units == new.stage_units:
        return list(costs)
    narrower = [a / b for a, b in zip(old.unit_widths(), new.unit_widths(), strict=True)]
    each: dict[int, Cost] = {}
    for cost, units in zip(costs, old.stage_units, strict=True):
        total = sum(weights[unit] for unit in units)
        for unit in units:
            each[unit] = _scaled(cost, narrower[unit] * (weights[unit] / total if total else 1 / len(units)))
    return [_added(each[unit] for unit in units) for units in new.stage_units]
