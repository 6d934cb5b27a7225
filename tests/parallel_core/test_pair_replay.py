"""What-if of a step with PAIRs, whose spans are nested as the engine nests them: what a forward makes is sent before
the backward of its PAIR."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parallel_core.engine.executor import _sent_inside
from parallel_core.layout import Layout
from parallel_core.schedule import build
from parallel_core.schedule.ir import Kind, Op, Program, Schedule
from parallel_core.simulate import Costs, simulate
from parallel_core.simulate.measured import Cost, Measured, key, measure
from parallel_core.simulate.replay import FREE, Change, replay
from parallel_core.spec import RunSpec
from tests.parallel_core.test_replay import spec

EACH = 1000
"""Nanoseconds of a forward, of an input gradient and of a weight gradient."""


def executed(program: Program) -> Program:
    """The program in the order of the engine: a forward, the sends of its output, the backward."""
    inside = _sent_inside(program)
    early = {send for sends in inside.values() for send in sends}
    return tuple(each for op in program if op not in early for each in _halves(op, inside))


def _halves(op: Op, inside: dict[Op, list[Op]]) -> list[Op]:
    first, *second = op.parts()
    return [first, *inside.get(op, ()), *second]


def nested(made: Schedule, costs: Costs) -> dict[int, np.ndarray]:
    """Spans by rank, each PAIR's around those of its halves."""
    spans = simulate(replace(made, programs=tuple(map(executed, made.programs))), costs)
    return {rank: _with_pairs(made.programs[rank], rows) for rank, rows in spans.items()}


def _with_pairs(program: Program, rows: np.ndarray) -> np.ndarray:
    names = zip(*(rows[name].tolist() for name in ("kind", "stage", "micro_batch")), strict=True)
    at = {name: i for i, name in enumerate(names)}
    pairs = {at[key(op.parts()[0])[:3]]: at[key(op.parts()[1])[:3]] for op in program if op.kind is Kind.PAIR}
    around = rows[list(pairs)].copy()
    around["kind"], around["end"] = Kind.PAIR, rows["end"][list(pairs.values())]
    return np.insert(rows, list(pairs), around)


def measured(made: RunSpec, costs: Costs, spans: dict[int, np.ndarray] | None = None) -> Measured:
    return measure(build(made), spans or nested(build(made), costs), Layout.of(made))


@pytest.mark.parametrize(("pp", "free"), [(2, 50_000), (3, 52_000), (4, 54_000)])
@pytest.mark.parametrize("message", [0, 300])
def test_the_backward_of_a_pair_is_work(pp: int, free: int, message: int) -> None:
    """Free links take out the messages and nothing else; without messages twice the speed is half the time."""
    made = spec(pp=pp, micro_batches=8, schedule="dualpipe-v")
    found = measured(made, Costs.uniform(2 * pp, EACH, EACH, EACH, message=message))
    assert replay(made, found, Change()).step == found.step
    assert replay(made, found, Change(links=FREE)).step == free
    assert message or replay(made, found, Change(device=2)).step == free / 2
    pairs = [cost for (kind, *_), cost in found.ops.items() if kind is Kind.PAIR]
    assert {(cost.work, cost.moved) for cost in pairs} == {(3 * EACH, 0)}


def test_the_time_of_a_send_inside_is_not_the_pair_s() -> None:
    made = spec(pp=2, micro_batches=8, schedule="dualpipe-v")
    sending = {(stage, Kind.SEND_ACT): 40 for stage in range(4)}
    costs = Costs({**Costs.uniform(4, EACH, EACH, EACH).compute, **sending})
    found = measured(made, costs)
    assert {cost for (kind, *_), cost in found.ops.items() if kind is Kind.PAIR} == {Cost(3 * EACH)}
    assert {cost for (kind, *_), cost in found.ops.items() if kind is Kind.SEND_ACT} == {Cost(moved=40)}


def test_a_collective_within_a_half_of_a_pair_is_its_communication() -> None:
    made = spec(pp=2, tp=2, micro_batches=8, schedule="dualpipe-v")
    spans = nested(build(made), Costs.uniform(4, EACH, EACH, EACH))
    found = measured(made, Costs(), {rank: _with_collectives(spans[rank // 2]) for rank in range(4)})
    pairs = {cost for (kind, *_), cost in found.ops.items() if kind is Kind.PAIR}
    assert pairs == {Cost(3 * EACH - 200, 200)}, "one in each half"
    assert {cost for (kind, *_), cost in found.ops.items() if kind is Kind.F} == {Cost(EACH - 100, 100)}


def _with_collectives(rows: np.ndarray) -> np.ndarray:
    """A tensor-parallel collective of 100 ns in the middle of each forward and each backward."""
    inner = rows[np.isin(rows["kind"], (int(Kind.F), int(Kind.BW)))].copy()
    inner["kind"], inner["micro_batch"] = Kind.TP_COLLECTIVE, -1
    inner["start"] += 500
    inner["end"] = inner["start"] + 100
    return np.concatenate([rows, inner])
