"""What-if: a measured step simulated again with changes.

There are two kinds of change. Those that keep every operation (links, device, recomputation) change each measured cost,
so that even the jitter of the step remains. Those that change the program (schedule, micro-batches, chunks) or the
stages (balanced) use the median of each stage's operations; costs are divided over a model's layers by their FLOPs, and
over micro-batches by their size, beside `constant_costs`. The prediction then is the measured step times the
ratio of the changed to the unchanged program at these medians. A message of half the size is taken to need half the
time, beside what one costs however small: one step shows messages of one size, so that part is known of CPUs alone, and
of links so slow that it must be most (`message_turns.SLOWEST`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.rows import last_end
from parallel_core.layout import Layout
from parallel_core.plan.partition import flop_weights
from parallel_core.schedule import build
from parallel_core.schedule.ir import P2P, REPLICA_COLLECTIVES, Kind, Op, other_end
from parallel_core.schedule.traits import TRAITS, takes_early_gradients
from parallel_core.simulate import simulate
from parallel_core.simulate.constant_costs import (
    COME_NS,
    MOST,
    Constant,
    constant_costs,
    moves_as_much,
    resized,
    resized_part,
)
from parallel_core.simulate.halves import HALVES, halved, joined, parted
from parallel_core.simulate.measured import Cost, Measured, key
from parallel_core.simulate.message_turns import Carrying
from parallel_core.spec import RunSpec

FREE = math.inf
"""Factor on links: communication takes no time."""
ASSUMED = (
    "Other schedules and micro-batches take the median cost of each stage's operations; smaller micro-batches are "
    "assumed to cost in proportion, and so are their messages, but for launches, weights and the handling of a "
    "message, of which a CPU core's usual costs are taken, and more of them in flight to cost the same, though a CPU's "
    "caches then hold less of each. A link is assumed to carry one message at a time each way, unless this step shows "
    "that it carries several, and 100 Mbit/s or more, 500 MB/s within a host: what "
    "messages take beyond that is latency, whatever their size."
)
"""Assumptions of a replay that changes the program, for its reader."""
GATHERS_ASIDE = (
    "Waits for gathers of parameters, which run on a stream of their own here, are within the operations and count as "
    "work: free or faster links leave them as they are, and a faster device shortens them."
)
"""Added for a step of which `waits.gathers_aside` is true."""
TAKE_TURNS = (
    "Ranks took turns on shared devices here, and the replay gives each a device of its own: whatever has them work "
    "at the same time instead of waiting is predicted too fast."
)
"""Added for a step of ranks that share devices."""


@dataclass(frozen=True)
class Change:
    """What to change; the defaults leave everything as measured."""

    links: float = 1.0
    """Speedup of all communication; FREE: none at all."""
    messages: float = 1.0
    """Further speedup of messages between stages alone."""
    device: float = 1.0
    """Speedup of the device."""
    no_recompute: bool = False
    balanced: bool = False
    """Every stage gets the mean of all stages."""
    schedule: str = ""
    micro_batches: int = 0
    """Micro-batches a replica; 0: as measured."""
    early_gradients: bool = False
    """Gradients leave a stage before its weight gradients (`schedule.passes.early_gradients`); False: as measured."""
    same_messages: bool = False
    """Messages of smaller or larger micro-batches take as long as before, as where all their time is latency."""

    @property
    def makes_a_program(self) -> bool:
        """Whether it changes the program or the stages, not only costs."""
        return self.balanced or self.early_gradients or bool(self.schedule) or bool(self.micro_batches)


@dataclass(frozen=True)
class Replay:
    """`spans` by pipeline rank, ns from the start of the step; `step`: the prediction in ns."""

    spec: RunSpec
    spans: Mapping[int, NDArray[np.void]]
    step: float


def changed(spec: RunSpec, change: Change) -> RunSpec:
    """The spec with the program of `change`; its cuts stay where the schedule allows (`recut`). Raises pydantic's
    ValidationError for incompatible values."""
    split: dict[str, Any] = spec.parallel.model_dump()
    if change.schedule and change.schedule != spec.parallel.schedule:
        split |= {"schedule": change.schedule, "chunks": None, "program": None}
        split |= {"cuts": None} if recut(spec, change.schedule) else {}
        split["early_gradients"] &= change.schedule in takes_early_gradients()
    if change.micro_batches:
        split["micro_batches"] = change.micro_batches
    split["early_gradients"] |= change.early_gradients
    return RunSpec.model_validate(spec.model_dump() | {"parallel": split})


def recut(spec: RunSpec, schedule: str) -> bool:
    """Whether `schedule` ('': as measured) has another number of stages than the spec, whose cuts then cannot stay: the
    stages are cut by FLOPs, which may save more than the schedule does."""
    split = spec.parallel
    other = schedule not in ("", split.schedule) and TRAITS[schedule].chunks * split.pp != split.stages
    return split.cuts is not None and other


def replay(spec: RunSpec, measured: Measured, change: Change) -> Replay:
    """The step of `spec` with costs `measured`, with `change`. Raises as `changed` does."""
    after = changed(spec, change) if change.makes_a_program else spec
    return replay_as(after, spec, measured, change, flop_weights(spec.model), constant_costs(after))


def replay_as(
    after: RunSpec,
    spec: RunSpec,
    measured: Measured,
    change: Change,
    weights: Sequence[int],
    constant: Sequence[Constant] = (),
) -> Replay:
    """As `replay`, for the program and stages of `after`; `weights`: relative costs of the layers of both; `constant`:
    `constant_costs` of `after`, () where its layers are not known."""
    if not change.makes_a_program:
        spans = simulate(build(spec), _Same(measured, change))
        return Replay(spec, spans, last_end(spans))
    plain = simulate(build(spec), _Typical(spec, spec, measured, Change(), weights))
    spans = simulate(build(after), _Typical(spec, after, measured, change, weights, constant))
    scale = measured.step / last_end(plain)
    for rows in spans.values():
        for side in ("start", "end"):
            rows[side] = (rows[side] * scale).round()
    return Replay(after, spans, float(last_end(spans)))


def plan(spec: RunSpec, measured: Measured) -> dict[int, NDArray[np.void]]:
    """The step with every operation at the median cost of its kind and stage: spans by pipeline rank. A measured
    operation that is later than here was delayed by chance or by another rank."""
    return simulate(build(spec), _Typical(spec, spec, measured, Change(), flop_weights(spec.model)))


def _taken(kind: Kind, cost: Cost, change: Change) -> int:
    again, again_moved = (0.0, 0.0) if change.no_recompute else (cost.again, cost.again_moved)
    faster = change.links * (change.messages if kind in P2P else 1.0)
    return round((cost.work + again) / change.device + (cost.moved + again_moved) / faster)


@dataclass(frozen=True)
class _Same:
    """Prices: every operation at its own measured cost."""

    measured: Measured
    change: Change
    message_bytes: int = 0

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


class _Typical:
    """Prices: every operation at the median cost of its kind and stage, for the program and the stages of `after`."""

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
        share = before.parallel.micro_batches / after.parallel.micro_batches
        size = 1.0 if change.same_messages else share
        message = constant[0] if constant else Constant()
        faster = change.links * change.messages
        # What a message between cores takes however small it is keeps no other one from going.
        come = COME_NS if before.train.device == "cpu" else 0.0

        def priced(carrying: Carrying) -> tuple[int, int]:
            stays, holds = (carrying.latency(took, measured.one_host) for took in (carrying.alone, carrying.turn))
            stays, holds = max(stays, min(message.come, MOST * carrying.alone)), max(0.0, holds - come)
            alone = stays + (carrying.alone - stays) * size
            return round(alone / faster), round((holds + max(0.0, carrying.turn - holds - come) * size) / faster)

        self._usual = priced(measured.messages)
        self._links = {places: priced(carrying) for places, carrying in measured.by_link.items()}
        self._places = Layout.of(after).places
        self._norm = round(float(np.median(measured.norms)) / change.links) if measured.norm else 0
        chunks = before.parallel.chunks_per_rank / after.parallel.chunks_per_rank
        self._any = {kind: _scaled(cost, chunks) for kind in _WHOLE if (cost := measured.mean(kind))}
        for kind in P2P:
            if cost := measured.median(kind):
                self._any[kind] = Cost(moved=resized_part(cost.moved, size, message.handled))
        moved = 1.0 if moves_as_much(before) else share
        stays = (
            list(zip(constant, parted(after), strict=True)) if constant else [(Constant(), 1.0)] * after.parallel.stages
        )
        self._stages = {
            (kind, stage): resized(cost, share, stays[stage][0], kind, moved, stays[stage][1])
            for kind, costs in _by_kind(measured, before, after, change.balanced, weights, bool(constant)).items()
            for stage, cost in enumerate(costs)
        }

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


_WHOLE = (*REPLICA_COLLECTIVES, Kind.OPT_STEP)
"""Operations once a step: their total cost on a rank does not depend on its number of stages."""


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
