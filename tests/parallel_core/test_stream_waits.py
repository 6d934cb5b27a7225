"""Waiting in a pipeline that never flushes: for a slow stage it is bubble, not communication."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from parallel_core.analysis.critical import critical_path
from parallel_core.analysis.meters import every_step, step_shares
from parallel_core.analysis.step_waits import StepWaits
from parallel_core.analysis.waits import ordered, received, sends, waited
from parallel_core.layout import Layout
from parallel_core.observe.records import SPAN
from parallel_core.schedule import build
from parallel_core.schedule.ir import RECVS, Kind
from parallel_core.schedule.stream import end_of
from parallel_core.simulate import Costs, simulate
from parallel_core.spec import RunSpec
from tests.parallel_core.test_step_waits import Steps, of_ranks

STEPS, FULL = 16, 12
"""Steps of a stream, and one of them in which the pipeline is full."""
PP, SLOWER = 4, 3


def spec(**split: Any) -> RunSpec:
    split = {"pp": PP, "schedule": "1f1b-stash"} | split
    train = {"global_batch": 16, "clip": "stage"}
    return RunSpec.model_validate({"model": {"layers": 4}, "parallel": split, "train": train})


def stream(made: RunSpec, message: int = 0) -> Steps:
    """The spans of the steps of a stream whose first stage is SLOWER times as slow, as its ranks record them: numbered
    from the first micro-batch of each step."""
    whole, size = build(made, STEPS), made.parallel.per_step
    costs = {(stage, kind): 1000 * (1 if stage else SLOWER) for stage in range(PP) for kind in (Kind.F, Kind.B, Kind.W)}
    steps: Steps = [{} for _ in range(STEPS)]
    for rank, rows in simulate(whole, Costs(costs, message=message)).items():
        edges = [0, *(end_of(whole.programs[rank], size * (step + 1)) for step in range(STEPS))]
        begin = 0
        for step, (a, b) in enumerate(pairwise(edges)):
            end = int(rows["end"][b - 1])
            own = rows[a:b].copy()
            own["micro_batch"][own["micro_batch"] >= 0] -= step * size
            steps[step][rank] = np.concatenate([np.array([(Kind.STEP, 3, 0, -1, 0, 0, begin, end, 0)], SPAN), own])
            begin = end
    return steps


CASES = [{"micro_batches": 1}, {"micro_batches": 2}, {"micro_batches": 4}, {"micro_batches": 2, "dp": 2}]


@pytest.mark.parametrize("split", CASES, ids=str)
@pytest.mark.parametrize("numbers", ["all", "gaps", "one by one"])
def test_waiting_for_a_slow_stage_is_bubble_in_every_step(split: dict[str, int], numbers: str) -> None:
    """Messages take no time. Each other stage works a third of the time."""
    made = spec(**split)
    layout, found = Layout.of(made), of_ranks(stream(made), Layout.of(made))
    steps, values = _values(found, layout, numbers)
    full = (steps > PP) & (steps <= FULL)
    assert full.sum() >= 3
    assert values["bubble_share"][full] == pytest.approx(np.full(full.sum(), (PP - 1) / PP * (1 - 1 / SLOWER)))
    assert not values["exposed_share"][full].any()


def _values(found: dict[int, StepWaits], layout: Layout, numbers: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Of all steps, of every second one, or of all, with the records of one step at a time."""
    if numbers == "all":
        return every_step(found, layout)
    if numbers == "gaps":
        return every_step({rank: one.among(np.arange(STEPS) % 2 == 1) for rank, one in found.items()}, layout)
    parts = [every_step(dict(zip(found, part, strict=True)), layout) for part in _parts(found)]
    joined = {name: np.concatenate([values[name] for _, values in parts]) for name in parts[0][1]}
    return np.concatenate([steps for steps, _ in parts]), joined


def _parts(found: dict[int, StepWaits]) -> list[tuple[StepWaits, ...]]:
    return list(zip(*(one.parts(1) for one in found.values()), strict=True))


@pytest.mark.parametrize("split", CASES, ids=str)
@pytest.mark.parametrize("message", [0, 150])
def test_a_single_traced_step_tells_the_two_apart(split: dict[str, int], message: int) -> None:
    """As all steps together do, which have the sends of the step before at hand."""
    made = spec(**split)
    layout, steps = Layout.of(made), stream(made, message)
    alone = step_shares(steps[FULL], layout)
    _, values = every_step(of_ranks(steps, layout), layout)
    assert {name: value[FULL] for name, value in values.items()} == pytest.approx(alone, abs=1e-3)
    assert (alone["exposed_share"] > 0) == (message > 0)
    assert alone["bubble_share"] > 0.4


def test_every_wait_of_a_full_pipeline_names_its_rank() -> None:
    made = spec(micro_batches=1)
    layout, steps = Layout.of(made), stream(made)
    for rank, found in waited(steps[FULL], layout).items():
        receives = np.isin(steps[FULL][rank]["kind"], [int(kind) for kind in RECVS]) & (found.ns > 0)
        assert set(found.ranks[receives].tolist()) <= {rank - 1, rank + 1}
        assert receives.any() == (rank > 0)
    path = critical_path(steps[FULL], layout)
    slow = path["rank"] == 0
    assert (path["end"] - path["start"])[slow].sum() > 0.7 * (path["end"][-1] - path["start"][0])


def test_a_message_of_the_step_before_is_not_a_measured_one() -> None:
    """Its time is inferred: what measures links must not have it."""
    made = spec(micro_batches=1)
    rows = ordered(stream(made)[FULL])
    ranks = received(1, rows[1], Layout.of(made), sends(rows, Layout.of(made))).ranks
    assert sorted(ranks.tolist()) == [-1, 2]
