"""The page docs/combinations.md is up to date, and every pair of features it declares as running trains like one
device, or like a replay of its updates (`combinations.proof`).

All requested pairs with the same number of ranks train in one launch. A part of them always runs, the rest with
`--full`.
"""

from __future__ import annotations

import hashlib
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from parallel_core import combinations
from parallel_core.engine.device import be_deterministic
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.trainer import Trainer
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks
from tests.parallel_core.delayed import replay

PAGE = Path(__file__).resolve().parents[2] / "docs" / "combinations.md"
STEPS = 2
BOUNDS = {"fp64": 1e-9, "fp32": 1e-5, "bf16": 2e-2, "fp16": 5e-3}
RUNNING = combinations.running()
ALWAYS = 40
"""One in this many pairs always runs."""
ALWAYS_TOO = (
    "pipeline 1f1b-naive + selective recomputation",
    "pipeline 1f1b-2bw + model gnmt",
    "pipeline zb-v + clipping by stage",
)
"""Pairs that are held against a replay, and always run, too."""


def _always(name: str) -> bool:
    return name in ALWAYS_TOO or int(hashlib.sha256(name.encode()).hexdigest(), 16) % ALWAYS == 0


def _work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> list[float]:
    if spec.train.deterministic:
        be_deterministic()

    def use(trainer: Trainer) -> list[float]:
        return [trainer.step(step).loss for step in range(STEPS)]

    return ranks.with_trainer(spec, rank, meeting, folder, use)


@cache
def _losses(world: int, asked: frozenset[str]) -> dict[str, list[list[float]]]:
    """The losses by rank of each pair."""
    chosen = {n: s for n, s in RUNNING.items() if s.parallel.world == world and n in asked}
    return dict(zip(chosen, ranks.run_many(list(chosen.values()), _work, ranks.scratch()), strict=True))


@cache
def _alone(text: str) -> list[float]:
    return ranks.run(RunSpec.model_validate_json(text), _work, ranks.scratch())[0]


def _single(spec: RunSpec) -> str:
    """The same run on one device: the same layers, samples and micro-batches."""
    whole: dict[str, Any] = spec.model_dump(mode="json")
    batches = spec.parallel.micro_batches if spec.parallel.flushes else 1
    train = whole["train"] | {"clip": "global", "deterministic": False}
    single = {"model": whole["model"], "train": train, "parallel": {"micro_batches": batches}}
    return RunSpec.model_validate(single).model_dump_json()


@pytest.fixture(scope="module")
def asked(request: pytest.FixtureRequest) -> frozenset[str]:
    """The pairs that this session runs."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and hasattr(item, "callspec")]
    return frozenset(str(item.callspec.params["name"]) for item in items if item.originalname == test_runs.__name__)


FULL = (pytest.mark.full, pytest.mark.timeout(1800))


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if _always(name) else FULL) for name in RUNNING])
def test_runs(name: str, asked: frozenset[str]) -> None:
    spec = RUNNING[name]
    of_ranks = _losses(spec.parallel.world, asked)[name]
    assert all(losses == of_ranks[0] for losses in of_ranks)
    assert all(map(math.isfinite, of_ranks[0]))
    proof = combinations.proof(spec)
    if proof == "only run":
        return
    # If each stage is clipped by its own norm, parameters after the first update differ from those of one device.
    comparable = 1 if spec.train.clip == "stage" and proof == "one device" else STEPS
    want = replay(spec).losses if proof == "replay" else _alone(_single(spec))
    assert of_ranks[0][:comparable] == pytest.approx(want[:comparable], rel=BOUNDS[spec.train.precision])


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == combinations.page(), (
        "python -m parallel_core.combinations docs/combinations.md writes it again"
    )


def test_a_refusal_names_what_would_do() -> None:
    said = combinations.verdict("ZeRO-1", "pipeline 1f1b-stash")
    assert isinstance(said, str)
    assert "use zero=0" in said
    assert combinations.verdict("bf16", "fp16") is None


@pytest.mark.parametrize(
    ("schedule", "runs"),
    [("naive", True), ("interleaved", True), ("zb-h1", False), ("1f1b-stash", False)],
)
def test_early_gradients_are_tried_with_every_schedule(schedule: str, runs: bool) -> None:
    found = combinations.verdict(f"pipeline {schedule}", "early gradients")
    assert isinstance(found, RunSpec) if runs else "early_gradients=true parts a backward" in str(found)


def test_what_a_pair_is_held_against() -> None:
    assert set(ALWAYS_TOO) <= set(RUNNING) and all(combinations.proof(RUNNING[name]) == "replay" for name in ALWAYS_TOO)
    assert combinations.proof(RUNNING["pipeline 1f1b-stash + fp32"]) == "only run"
    assert combinations.proof(RUNNING["fp32 + clipping by stage"]) == "one device"
    only_run = [name for name, spec in RUNNING.items() if combinations.proof(spec) == "only run"]
    assert all(name in PAGE.read_text(encoding="utf-8") for name in only_run)
