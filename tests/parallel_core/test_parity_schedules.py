"""Schedules with several stages per rank, or with a split backward, compute what one process computes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.trainer import Trainer
from parallel_core.schedule.traits import TRAITS
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks
from tests.parallel_core.parity import TRAIN, Trained, assert_equal, reference, spec_of, train_many

NAMES = [name for name, its in TRAITS.items() if its.sync == "flush" and (its.split or its.chunks > 1)]
"""All flushing schedules that `test_parity` does not cover."""
UNEVEN = {2: (5,), 4: (1, 2, 5)}
"""Cuts for a number of stages: one stage has a single layer, another three or more."""
STEPS = 10
Case = tuple[bool, dict[str, Any]]
"""Whether embedding and head share their weight; fields of ParallelSpec."""


def _cases(name: str) -> dict[str, Case]:
    two = {"schedule": name, "pp": 2, "micro_batches": 4}
    stages = spec_of(**two).parallel.stages
    cases: dict[str, Case] = {
        f"{name}": (False, two),
        f"{name}-recompute": (False, two | {"recompute": "full"}),
        f"{name}-uneven-tied": (True, two | {"cuts": UNEVEN[stages]}),
        f"{name}-dp": (False, two | {"dp": 2}),
        f"{name}-tp-recompute-tied": (True, two | {"tp": 2, "recompute": "full"}),
    }
    if TRAITS[name].most is None:
        cases[f"{name}-3-chunks"] = (False, two | {"chunks": 3})
    return cases


CASES = {key: case for name in NAMES for key, case in _cases(name).items()}


def _spec(case: Case) -> RunSpec:
    return spec_of({"tied": case[0]}, **case[1])


@cache
def _trained(world: int) -> dict[str, Trained]:
    keys = [key for key, case in CASES.items() if _spec(case).parallel.world == world]
    return dict(zip(keys, train_many([_spec(CASES[key]) for key in keys]), strict=True))


@pytest.mark.parametrize("key", CASES)
def test_equals_one_process(key: str) -> None:
    assert_equal(_trained(_spec(CASES[key]).parallel.world)[key], reference(tied=CASES[key][0]))


def _ten_steps(trainer: Trainer) -> Any:
    totals = [trainer.step(step)[:2] for step in range(STEPS)]
    return totals, {name: value.numpy().copy() for name, value in trainer.chunks.flat.named().items()}


def _work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    return ranks.with_trainer(spec, rank, meeting, folder, _ten_steps)


def _exact(**parallel: Any) -> RunSpec:
    return spec_of({}, {"precision": "fp32", "steps": STEPS}, micro_batches=4, **parallel)


@cache
def _of_one_process() -> Any:
    return ranks.run(_exact(), _work, ranks.scratch())[0]


@cache
def _runs() -> dict[str, Any]:
    keys = {"1f1b": _exact(pp=2)} | {name: _exact(pp=2, schedule=name) for name in NAMES}
    return dict(zip(keys, ranks.run_many(list(keys.values()), _work, ranks.scratch()), strict=True))


@pytest.mark.parametrize("name", ["1f1b", *NAMES])
def test_ten_steps_have_the_bits_of_one_process(name: str) -> None:
    """In fp32 with clipping: the bits of losses, norms and parameters do not depend on the order of operations or the
    placement of stages.
    """
    totals, want = _of_one_process()
    assert min(norm for _, norm in totals) > TRAIN["clip_norm"], "clipping must be active"
    got: dict[str, np.ndarray] = {}
    for seen, parameters in _runs()[name]:
        assert seen == totals
        got |= parameters
    assert got.keys() == want.keys()
    for key, value in want.items():
        assert np.array_equal(got[key], value), key
