"""Schedules with several stages per rank, or with a split backward, compute what one process computes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.trainer import Trainer
from parallel_core.schedule.table import from_csv, to_csv, to_json
from parallel_core.schedule.traits import CUSTOM, TRAITS
from parallel_core.spec import RunSpec
from parallel_core.traces.known_programs import torch_zero_bubble
from tests.parallel_core import ranks
from tests.parallel_core.parity import TRAIN, TURN_S, Launches, assert_equal, reference, spec_of

NAMES = [name for name, its in TRAITS.items() if its.sync == "flush" and (its.split or its.chunks > 1)] + [CUSTOM]
"""All flushing schedules that `test_parity` does not cover."""
DEPTHS = (3, 4)
"""Pipelines with a rank in the middle: it has two peers, and in a loop or V messages both ways with each of them."""
LAYERS = 4
"""Of the model in these pipelines: enough for two stages a rank, with several layers on one of them."""
QUICK = ("interleaved-3", "zb-v-3")
"""The cases with a middle rank that always run."""
UNEVEN = {2: (5,), 4: (1, 2, 5)}
"""Cuts for a number of stages: one stage has a single layer, another three or more."""
STEPS = 10
Case = tuple[dict[str, Any], dict[str, Any]]
"""Arguments of `reference`, which are fields of ModelSpec, too; fields of ParallelSpec."""


def _split(name: str, pp: int, micro_batches: int) -> dict[str, Any]:
    """Fields of a pipeline. The own schedule is PyTorch's interleaved zero bubble: it is none of ours."""
    split = {"schedule": name, "pp": pp, "micro_batches": micro_batches}
    return split | ({"program": to_csv(torch_zero_bubble(pp, 2, micro_batches))} if name == CUSTOM else {})


def _cases(name: str) -> dict[str, Case]:
    two = _split(name, 2, 4)
    stages = spec_of(**two).parallel.stages
    cases: dict[str, Case] = {
        f"{name}": ({}, two),
        f"{name}-recompute": ({}, two | {"recompute": "full"}),
        f"{name}-uneven-tied": ({"tied": True}, two | {"cuts": UNEVEN[stages]}),
        f"{name}-dp": ({}, two | {"dp": 2}),
        f"{name}-tp-recompute-tied": ({"tied": True}, two | {"tp": 2, "recompute": "full"}),
    }
    if TRAITS[name].most is None and name != CUSTOM:
        cases[f"{name}-3-chunks"] = ({}, two | {"chunks": 3})
    if name == CUSTOM:
        cases[f"{name}-json"] = ({}, two | {"program": to_json(from_csv(two["program"]))})
    return cases


def _deep_cases(name: str, pp: int) -> dict[str, Case]:
    deep, split = {"layers": LAYERS}, _split(name, pp, 8)
    cases: dict[str, Case] = {
        f"{name}-{pp}": (deep, split),
        f"{name}-{pp}-recompute-tied": (deep | {"tied": True}, split | {"recompute": "full"}),
    }
    if not TRAITS[name].pairs:  # they need more micro-batches than this global batch has for two replicas
        cases[f"{name}-{pp}-dp"] = (deep, _split(name, pp, 4) | {"dp": 2})
    if TRAITS[name].most is None and name != CUSTOM and pp == 3:
        cases[f"{name}-{pp}-3-chunks"] = (deep, split | {"chunks": 3})
    return cases


DEEP = {key: case for name in NAMES for pp in DEPTHS for key, case in _deep_cases(name, pp).items()}
CASES = {key: case for name in NAMES for key, case in _cases(name).items()} | DEEP


def _always(key: str) -> bool:
    return key in QUICK or key not in DEEP


def _spec(case: Case) -> RunSpec:
    return spec_of(case[0], **case[1])


TRAINED = Launches(CASES, lambda key: _spec(CASES[key]), _always)


@pytest.mark.parametrize("key", [pytest.param(key, marks=() if _always(key) else pytest.mark.full) for key in CASES])
def test_equals_one_process(key: str) -> None:
    assert_equal(TRAINED[key], reference(**CASES[key][0]))


def _ten_steps(trainer: Trainer) -> Any:
    totals = [trainer.step(step)[:2] for step in range(STEPS)]
    return totals, {name: value.numpy().copy() for name, value in trainer.chunks.flat.named().items()}


def _work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    return ranks.with_trainer(spec, rank, meeting, folder, _ten_steps)


def _exact(layers: int, micro_batches: int, **parallel: Any) -> RunSpec:
    train = {"precision": "fp32", "steps": STEPS}
    return spec_of({"layers": layers}, train, **{"micro_batches": micro_batches, **parallel})


@cache
def _of_one_process(layers: int, micro_batches: int) -> Any:
    return ranks.run_each([(_exact(layers, micro_batches), _work)], TURN_S)[0]


@cache
def _runs(pp: int, layers: int, micro_batches: int) -> dict[str, Any]:
    specs = {name: _exact(layers, **_split(name, pp, micro_batches)) for name in ["1f1b", *NAMES]}
    return dict(zip(specs, ranks.run_each([(spec, _work) for spec in specs.values()], TURN_S), strict=True))


@pytest.mark.parametrize(
    ("pp", "layers", "micro_batches"), [(2, 2, 4), pytest.param(4, LAYERS, 8, marks=pytest.mark.full)]
)
@pytest.mark.parametrize("name", ["1f1b", *NAMES])
def test_ten_steps_have_the_bits_of_one_process(name: str, pp: int, layers: int, micro_batches: int) -> None:
    """In fp32 with clipping: the bits of losses, norms and parameters do not depend on the order of operations or the
    placement of stages.
    """
    alone, found = _of_one_process(layers, micro_batches), _runs(pp, layers, micro_batches)[name]
    assert not isinstance(alone, str), alone
    assert not isinstance(found, str), found
    totals, want = alone[0]
    assert min(norm for _, norm in totals) > TRAIN["clip_norm"], "clipping must be active"
    got: dict[str, np.ndarray] = {}
    for seen, parameters in found:
        assert seen == totals
        got |= parameters
    assert got.keys() == want.keys()
    for key, value in want.items():
        assert np.array_equal(got[key], value), key
