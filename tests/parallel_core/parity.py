"""Trains on real ranks, reassembles full tensors from the shards, and compares them with a run in one process.

The comparison is in fp64. Gradients: max|a - b| <= 1e-9 * max(max|b|, 1e-3 * the largest gradient of that step) per
tensor. Loss: 1e-12 relative. Parameters after 3 steps: the gradients' rule, applied to their change.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.trainer import Trainer
from parallel_core.models.numerics import wide
from parallel_core.outline.splits import TensorSplit, split_dim
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks
from tests.parallel_core.gradients import named_grads

STEPS = 3
MODEL: dict[str, Any] = {"layers": 2, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64}
TRAIN: dict[str, Any] = {"steps": 4, "global_batch": 8, "precision": "fp64", "lr": 1e-2, "clip_norm": 0.5}
Tensors = dict[str, np.ndarray]


class Trained(NamedTuple):
    """Full tensors by name: the (clipped) gradients of each step, parameters before and after; losses and norms of each
    step.
    """

    grads: list[Tensors]
    before: Tensors
    after: Tensors
    losses: list[float]
    norms: list[float]


def spec_of(model: dict[str, Any] | None = None, train: dict[str, Any] | None = None, **parallel: Any) -> RunSpec:
    """A spec of this module's model. Also permits schedules that runs may not use yet, so that those are tested,
    too.
    """
    rooms = {"model": MODEL | (model or {}), "train": TRAIN | (train or {}), "parallel": parallel}
    return RunSpec.model_validate(rooms)


def _copy(named: dict[str, torch.Tensor]) -> Tensors:
    return {name: wide(tensor).numpy().copy() for name, tensor in named.items()}  # NumPy has no bf16


def _state(trainer: Trainer) -> Tensors:
    """Parameters, and running statistics of models that have them."""
    return _copy({**trainer.chunks.flat.named(), **trainer.chunks.buffers()})


def observe(trainer: Trainer) -> tuple[Any, ...]:
    flat = trainer.chunks.flat
    before, grads, totals = _state(trainer), [], []
    for step in range(STEPS):
        totals.append(trainer.step(step))
        grads.append(_copy(named_grads(flat)))
    return trainer.place, grads, before, _state(trainer), totals


def _work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    return ranks.with_trainer(spec, rank, meeting, folder, observe)


def train(spec: RunSpec) -> Trained:
    """Trains on real ranks and reassembles the shards. Ranks that hold the same tensor must hold the same values."""
    return train_many([spec])[0]


def train_many(specs: Sequence[RunSpec], work: ranks.Work = _work) -> list[Trained]:
    """`train` for several specs with the same world size, in the same processes: one launch for all of them."""
    seen = ranks.run_many(specs, work, ranks.scratch())
    return [_together(of, spec.parallel.tensor_split) for of, spec in zip(seen, specs, strict=True)]


def _together(seen: list[Any], how: TensorSplit) -> Trained:
    full = partial(_whole, how, {place: index for index, (place, *_) in enumerate(seen)})
    totals = seen[0][-1]
    assert all(other[-1] == totals for other in seen), "ranks disagree about loss or norm"
    return Trained(
        grads=[full([rank[1][step] for rank in seen]) for step in range(len(totals))],
        before=full([rank[2] for rank in seen]),
        after=full([rank[3] for rank in seen]),
        losses=[total.loss for total in totals],
        norms=[total.grad_norm for total in totals],
    )


def _whole(how: TensorSplit, places: dict[Any, int], shares: list[Tensors]) -> Tensors:
    out: dict[str, np.ndarray] = {}
    for (place, replica, tensor), index in sorted(places.items()):
        if tensor:
            continue
        tensors = range(1 + max(t for p, _, t in places if p == place))
        group = [shares[places[place, replica, t]] for t in tensors]
        for name in shares[index]:
            dim = split_dim(name, how)
            value = np.concatenate([s[name] for s in group], dim) if dim is not None else group[0][name]
            if dim is None:
                assert all(np.array_equal(s[name], value) for s in group), f"{name} differs between tensor ranks"
            assert np.array_equal(out.setdefault(name, value), value), f"{name} differs between its holders"
    return out


@cache
def reference(tied: bool = False, clip: float | None = 0.5, layers: int = 2) -> Trained:
    return train(spec_of({"tied": tied, "layers": layers}, {"clip_norm": clip}))


def assert_equal(got: Trained, want: Trained) -> None:
    np.testing.assert_allclose(got.losses, want.losses, rtol=1e-12)
    np.testing.assert_allclose(got.norms, want.norms, rtol=1e-9)
    for step in range(STEPS):
        assert_close(got.grads[step], want.grads[step], f"gradient of step {step}")
    assert_moved_alike(got, want)


def assert_moved_alike(got: Trained, want: Trained) -> None:
    """Compares the change of each parameter by the rule of this module."""
    moved = {name: want.after[name] - want.before[name] for name in want.after}
    assert_close({name: got.after[name] - got.before[name] for name in got.after}, moved, "change of parameter")


def assert_close(got: Tensors, want: Tensors, what: str) -> None:
    assert got.keys() == want.keys()
    largest = max(float(np.abs(value).max()) for value in want.values())
    for name, b in want.items():
        bound = 1e-9 * max(float(np.abs(b).max()), 1e-3 * largest)
        assert float(np.abs(got[name] - b).max()) <= bound, f"{what} {name}"
