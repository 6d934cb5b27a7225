"""Trains on real ranks, reassembles full tensors from the shards, and compares them with a run in one process.

The comparison is in fp64. Gradients: max|a - b| <= 1e-9 * max(max|b|, 1e-3 * the largest gradient of that step) per
tensor. Loss: 1e-12 relative. Parameters after 3 steps: the gradients' rule, applied to their change.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

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
TURN_S = 60.0
"""The longest time that one spec may train. With those that `ranks.run_each` lets hang, a launch ends before pytest's
time limit, so that its result is kept.
"""
Tensors = dict[str, np.ndarray]
Key = TypeVar("Key", bound=Hashable)


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


def observe_moves(trainer: Trainer) -> tuple[Any, ...]:
    """As `observe`, without gradients: under ZeRO a replica holds reduced ones of its own part only; without a flush
    they are gone when a step ends. Their norm is compared."""
    place, _, before, after, totals = observe(trainer)
    return place, [{} for _ in totals], before, after, totals


def _work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    return ranks.with_trainer(spec, rank, meeting, folder, observe)


def train(spec: RunSpec) -> Trained:
    """Trains on real ranks and reassembles the shards. Ranks that hold the same tensor must hold the same values."""
    return train_many([spec])[0]


def train_many(specs: Sequence[RunSpec], work: ranks.Work = _work) -> list[Trained]:
    """`train` for several specs with the same world size, in the same processes: one launch for all of them. If any of
    them fails: AssertionError with what went wrong in each.
    """
    every = try_many(specs, work)
    failed = [one for one in every if isinstance(one, str)]
    assert not failed, "\n".join(failed)
    return [one for one in every if not isinstance(one, str)]


def try_many(specs: Sequence[RunSpec], work: ranks.Work = _work) -> list[Trained | str]:
    """As `train_many`, but for each spec that fails: what went wrong. The others are trained all the same."""
    seen = ranks.run_each([(spec, work) for spec in specs], TURN_S)
    return [_try_together(of, spec.parallel.tensor_split) for of, spec in zip(seen, specs, strict=True)]


class Launches(Generic[Key]):
    """What many specs train, by key. Those of one world size and one `part` train in one launch, at the first question
    for any of them; one that fails fails alone, and is not tried again.
    """

    def __init__(
        self,
        keys: Iterable[Key],
        spec: Callable[[Key], RunSpec],
        part: Callable[[Key], Any] = lambda _: None,
        work: ranks.Work = _work,
    ) -> None:
        self._keys, self._spec, self._part, self._work = list(keys), spec, part, work
        self._found: dict[Key, Trained | str] = {}

    def __getitem__(self, key: Key) -> Trained:
        """AssertionError with what went wrong where that spec failed."""
        if key not in self._found:
            keys = [one for one in self._keys if self._launch_of(one) == self._launch_of(key)]
            self._found |= zip(keys, try_many([self._spec(one) for one in keys], self._work), strict=True)
        found = self._found[key]
        assert not isinstance(found, str), found
        return found

    def _launch_of(self, key: Key) -> tuple[int, Any]:
        return self._spec(key).parallel.world, self._part(key)


def _try_together(seen: list[Any] | str, how: TensorSplit) -> Trained | str:
    if isinstance(seen, str):
        return seen
    try:
        return _together(seen, how)
    except Exception:  # shards of wrong values or shapes are the fault of this case alone
        return traceback.format_exc()


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


def reference(tied: bool = False, clip: float | None = 0.5, layers: int = 2) -> Trained:
    found = _reference(tied, clip, layers)
    assert not isinstance(found, str), found
    return found


@cache
def _reference(tied: bool, clip: float | None, layers: int) -> Trained | str:
    return try_many([spec_of({"tied": tied, "layers": layers}, {"clip_norm": clip})])[0]


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
