"""Pipelines that never flush compute what one process computes that applies the same delayed updates.

The replay walks the micro-batches in order on one rank that holds all layers. For each it puts every stage's weights in
place at the version that the rule of the schedule names, takes the gradient, and lets each stage's AdamW (its own, in
NumPy) apply it to the newest weights. It knows no program, no operation and no rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.trainer import Trainer
from parallel_core.layout import Layout
from parallel_core.schedule.traits import TRAITS
from parallel_core.spec import RunSpec
from tests.parallel_core import parity, ranks
from tests.parallel_core.parity import Tensors, Trained, assert_moved_alike, spec_of, train_many

NAMES = [name for name, traits in TRAITS.items() if traits.sync != "flush"]
TRAIN = {"steps": parity.STEPS, "warmup_steps": 1, "clip": "stage", "clip_norm": 0.3}
Case = dict[str, Any]


def _cases(name: str) -> dict[str, Case]:
    two = {"schedule": name, "pp": 2, "micro_batches": 4}
    return {
        f"{name}": two,
        f"{name}-recompute": two | {"recompute": "full"},
        f"{name}-uneven": two | {"cuts": (2,), "micro_batches": 2},
        f"{name}-few": two | {"micro_batches": 1},
        f"{name}-dp": two | {"dp": 2, "micro_batches": 2},
        f"{name}-tp": two | {"tp": 2},
        f"{name}-4": two | {"pp": 4},
    }


CASES = {key: case for name in NAMES for key, case in _cases(name).items()}


def _spec(case: Case) -> RunSpec:
    return spec_of({"dropout": 0.1}, TRAIN, **case)


def _observe(trainer: Trainer) -> tuple[Any, ...]:
    """Gradients are gone when a step ends; the changes of the parameters are compared."""
    place, _, before, after, totals = parity.observe(trainer)
    return place, [{} for _ in totals], before, after, totals


def _work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    return ranks.with_trainer(spec, rank, meeting, folder, _observe)


@cache
def _trained(world: int) -> dict[str, Trained]:
    keys = [key for key, case in CASES.items() if _spec(case).parallel.world == world]
    return dict(zip(keys, train_many([_spec(CASES[key]) for key in keys], _work), strict=True))


@pytest.mark.parametrize("key", CASES)
def test_equals_a_replay(key: str) -> None:
    spec = _spec(CASES[key])
    got, want = _trained(spec.parallel.world)[key], replay(spec)
    np.testing.assert_allclose(got.losses, want.losses, rtol=1e-12)
    np.testing.assert_allclose(got.norms, want.norms, rtol=1e-9)
    assert_moved_alike(got, want)


class _Stage:
    """The versions of one stage's weights by the number of micro-batches they hold, and its optimizer."""

    def __init__(self, spec: RunSpec, first: Tensors) -> None:
        self.train, self.versions, self.newest = spec.train, {0: first}, 0
        self.mean = {name: np.zeros_like(value) for name, value in first.items()}
        self.square = {name: np.zeros_like(value) for name, value in first.items()}
        self.updates = 0

    def update(self, grads: Tensors, version: int) -> float:
        """AdamW (Loshchilov and Hutter 2019) on the clipped gradients; returns their squared norm before."""
        train, before = self.train, self.versions[self.newest]
        squared = sum(float(np.square(grads[name]).sum()) for name in before)
        norm, limit = np.sqrt(squared), train.clip_norm or np.inf
        clip = limit / (norm + 1e-6) if norm > limit else 1.0
        self.updates += 1
        after = {}
        for name, value in before.items():
            grad = grads[name] * clip
            self.mean[name] = train.beta1 * self.mean[name] + (1 - train.beta1) * grad
            self.square[name] = train.beta2 * self.square[name] + (1 - train.beta2) * grad**2
            mean = self.mean[name] / (1 - train.beta1**self.updates)
            square = self.square[name] / (1 - train.beta2**self.updates)
            decayed = value * (1 - train.lr * train.weight_decay)
            after[name] = decayed - train.lr * mean / (np.sqrt(square) + train.eps)
        self.versions[version], self.newest = after, version
        return squared


def version_of(spec: RunSpec, stage: int, micro_batch: int) -> int:
    """What a stage uses for the forward of a micro-batch, by the papers' rules."""
    split = spec.parallel
    replicas, own = split.dp, micro_batch // split.dp
    if split.schedule == "1f1b-2bw":
        per_step = split.dp * split.micro_batches
        return max(0, micro_batch // per_step - 1) * per_step
    late = split.pp - 1 - (0 if split.schedule == "1f1b-vertical" else stage)
    return replicas * max(0, own - late)


def replay(spec: RunSpec) -> Trained:
    """The same steps in one process."""
    alone = RunSpec.model_validate(
        spec.model_dump()
        | {
            "parallel": {
                "micro_batches": spec.parallel.dp * spec.parallel.micro_batches,
                # without a stash, what is recomputed comes from weights that its forward did not have
                "recompute": spec.parallel.recompute if spec.parallel.schedule == "1f1b-naive" else "none",
            },
            "train": spec.train.model_dump() | {"clip": "global"},
        }
    )
    return ranks.run(alone, _replayer(spec), ranks.scratch())[0]


def _replayer(spec: RunSpec) -> ranks.Work:
    def work(alone: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Trained:
        return ranks.with_trainer(alone, rank, meeting, folder, lambda trainer: _replayed(spec, trainer))

    return work


def _replayed(spec: RunSpec, trainer: Trainer) -> Trained:
    layout, per_step = Layout.of(spec), spec.parallel.dp * spec.parallel.micro_batches
    round_size = per_step if spec.parallel.schedule == "1f1b-2bw" else spec.parallel.dp
    units, before = spec.model.units(), parity._copy(trainer.flat.named())
    stages = [
        _Stage(spec, {n: v for n, v in before.items() if any(n.startswith(f"{units[i]}.") for i in held)})
        for held in layout.stage_units
    ]
    losses, norms = [], []
    model, gathered = trainer.chunks.stages[0], defaultdict[str, Any](float)
    for step in range(parity.STEPS):
        model.begin_step([trainer.reader.read(step)])
        loss, squares, updates = 0.0, 0.0, 0
        for own in range(per_step):
            micro_batch = step * per_step + own
            trainer.flat.grads.zero_()
            _put(trainer, stages, lambda s, mb=micro_batch: version_of(spec, s, mb))
            loss += float(model.forward(own, None))
            if spec.parallel.schedule == "1f1b-naive":
                _put(trainer, stages, lambda s: stages[s].newest)
            model.backward(own, None)
            for name, grad in trainer.flat.named_grads().items():
                gathered[name] = gathered[name] + grad.numpy() * (per_step / round_size)
            if (micro_batch + 1) % round_size == 0:
                squares += sum(stage.update(gathered, micro_batch + 1) for stage in stages)
                updates += 1
                gathered.clear()
        losses.append(loss)
        norms.append(float(np.sqrt(squares / updates)))
    after = {name: value for stage in stages for name, value in stage.versions[stage.newest].items()}
    return Trained([], before, after, losses, norms)


def _put(trainer: Trainer, stages: list[_Stage], version: Callable[[int], int]) -> None:
    """Every stage's weights at the version it is to use."""
    values = {n: v for s, stage in enumerate(stages) for n, v in stage.versions[version(s)].items()}
    for slot in trainer.flat:
        slot.parameter.data = torch.from_numpy(values[slot.name])
