"""Every layout computes what one process computes (ARCHITECTURE, "Numbers that are part of the design").

fp64. The reference runs the same layers on the whole batch. Per tensor, max|a - b| <= 1e-9 * max(max|b|, 1e-3 * the
largest gradient of that step); loss to a relative 1e-12; parameters after 3 steps by the same rule on their change.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.trainer import Trainer
from parallel_core.spec import RunSpec
from parallel_core.tensor.parallelise import split_dim
from tests.parallel_core import ranks

STEPS = 3
MODEL = {"layers": 2, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64}
TRAIN = {"steps": 4, "global_batch": 8, "precision": "fp64", "lr": 1e-2, "clip_norm": 0.5}
Tensors = dict[str, np.ndarray]


class Trained(NamedTuple):
    """Full tensors by name: gradients of each step (as clipped), parameters before and after; totals of each step."""

    grads: list[Tensors]
    before: Tensors
    after: Tensors
    losses: list[float]
    norms: list[float]


def spec_of(model: dict[str, Any] | None = None, train: dict[str, Any] | None = None, **parallel: Any) -> RunSpec:
    return RunSpec.model_validate(
        {"model": MODEL | (model or {}), "train": TRAIN | (train or {}), "parallel": parallel}
    )


def _copy(named: dict[str, torch.Tensor]) -> Tensors:
    return {name: tensor.numpy().copy() for name, tensor in named.items()}


def _observe(trainer: Trainer) -> tuple[Any, ...]:
    flat = trainer.chunks.flat
    before, grads, totals = _copy(flat.named()), [], []
    for step in range(STEPS):
        totals.append(trainer.step(step))
        grads.append(_copy(flat.named_grads()))
    return trainer.place, grads, before, _copy(flat.named()), totals


def _work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    return ranks.with_trainer(spec, rank, meeting, folder, _observe)


def train(spec: RunSpec) -> Trained:
    """Train on real ranks and put the shares together. Ranks that hold the same tensor must hold the same values."""
    seen = ranks.run(spec, _work, ranks.scratch())
    full = partial(_whole, {place: index for index, (place, *_) in enumerate(seen)})
    totals = seen[0][-1]
    assert all(other[-1] == totals for other in seen), "ranks disagree about loss or norm"
    return Trained(
        grads=[full([rank[1][step] for rank in seen]) for step in range(STEPS)],
        before=full([rank[2] for rank in seen]),
        after=full([rank[3] for rank in seen]),
        losses=[total.loss for total in totals],
        norms=[total.grad_norm for total in totals],
    )


def _whole(places: dict[Any, int], shares: list[Tensors]) -> Tensors:
    out: dict[str, np.ndarray] = {}
    for (stage, replica, tensor), index in sorted(places.items()):
        if tensor:
            continue
        group = [shares[places[stage, replica, t]] for t in range(1 + max(t for _, _, t in places))]
        for name in shares[index]:
            dim = split_dim(name)
            value = np.concatenate([s[name] for s in group], dim) if dim is not None else group[0][name]
            if dim is None:
                assert all(np.array_equal(s[name], value) for s in group), f"{name} differs between tensor ranks"
            assert np.array_equal(out.setdefault(name, value), value), f"{name} differs between its holders"
    return out


@cache
def reference(tied: bool = False, clip: float | None = 0.5) -> Trained:
    return train(spec_of({"tied": tied}, {"clip_norm": clip}))


def assert_equal(got: Trained, want: Trained) -> None:
    np.testing.assert_allclose(got.losses, want.losses, rtol=1e-12)
    np.testing.assert_allclose(got.norms, want.norms, rtol=1e-9)
    for step in range(STEPS):
        _assert_close(got.grads[step], want.grads[step], f"gradient of step {step}")
    moved = {name: want.after[name] - want.before[name] for name in want.after}
    _assert_close({name: got.after[name] - got.before[name] for name in got.after}, moved, "change of parameter")


def _assert_close(got: Tensors, want: Tensors, what: str) -> None:
    assert got.keys() == want.keys()
    largest = max(float(np.abs(value).max()) for value in want.values())
    for name, b in want.items():
        bound = 1e-9 * max(float(np.abs(b).max()), 1e-3 * largest)
        assert float(np.abs(got[name] - b).max()) <= bound, f"{what} {name}"


def _cases() -> list[Any]:
    """{dp, tp, pp in 1, 2} on at most 4 ranks x schedules (they differ only with stages) x recomputation."""
    cases = []
    for dp, tp, pp in product((1, 2), repeat=3):
        if dp * tp * pp > 4:
            continue
        for schedule, recompute in product(("naive", "gpipe", "1f1b") if pp > 1 else ("1f1b",), ("none", "full")):
            split = {"dp": dp, "tp": tp, "pp": pp, "schedule": schedule, "recompute": recompute}
            cases.append(pytest.param(split | {"micro_batches": 4 // dp}, id=f"{dp}-{tp}-{pp}-{schedule}-{recompute}"))
    return cases


@pytest.mark.parametrize("split", _cases())
def test_equals_one_process(split: dict[str, Any]) -> None:
    assert_equal(train(spec_of(**split)), reference())


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(("dp", "tp", "pp"), [(1, 1, 2), (1, 2, 2), (2, 1, 2), (2, 2, 1)])
def test_tied_embedding(dp: int, tp: int, pp: int, recompute: str) -> None:
    got = train(spec_of({"tied": True}, dp=dp, tp=tp, pp=pp, micro_batches=2, recompute=recompute))
    assert_equal(got, reference(tied=True))


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("cuts", [(2,), (4,), (1,), (5,)])
def test_uneven_cut(cuts: tuple[int, ...], recompute: str) -> None:
    """(2,) and (4,) cut a block between attention and MLP; (1,) and (5,) leave a stage with one layer."""
    got = train(spec_of(pp=2, cuts=cuts, micro_batches=4, recompute=recompute))
    assert_equal(got, reference())


def test_three_uneven_stages() -> None:
    assert_equal(train(spec_of(pp=3, cuts=(2, 3), micro_batches=4)), reference())


def test_without_clipping() -> None:
    assert_equal(train(spec_of({}, {"clip_norm": None}, dp=2, pp=2, micro_batches=2)), reference(clip=None))


def test_eight_ranks() -> None:
    """2 x 2 x 2 with 1F1B and recomputation."""
    split = {"dp": 2, "tp": 2, "pp": 2, "micro_batches": 2, "recompute": "full"}
    assert_equal(train(spec_of({"tied": True}, **split)), reference(tied=True))


def test_norm_has_the_same_bits_under_every_cut() -> None:
    """Placement alone must not change the norm: the parts are added in parameter order, not in rank order."""
    placements: list[dict[str, Any]] = [{"pp": 1}, *({"pp": 2, "cuts": (cut,)} for cut in (1, 2, 4))]
    norms = [train(spec_of({}, {"precision": "fp32"}, micro_batches=2, **placed)).norms for placed in placements]
    assert all(other == norms[0] for other in norms)


def test_clipping_is_at_work() -> None:
    """The other tests would not see a clip that is never applied: gradients are seen behind it."""
    seen = reference()
    for norm, grads in zip(seen.norms, seen.grads, strict=True):
        assert norm > TRAIN["clip_norm"]
        clipped = np.sqrt(sum(float(np.square(value).sum()) for value in grads.values()))
        assert clipped == pytest.approx(TRAIN["clip_norm"], rel=1e-5)
