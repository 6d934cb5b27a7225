"""16-bit runs: every layout compared with the single device in the same precision, loss scaling, and skipped steps.

With u the unit roundoff (2^-8 in bf16, 2^-11 in fp16), layouts that sum in another order may differ by u in the losses
of three steps, by 4u in gradient norms, and by 4u in the first gradient (relative L2 norm over all parameters).
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.norm import Totals
from parallel_core.engine.precision import LossScale
from parallel_core.engine.run import run_rank
from parallel_core.engine.trainer import Trainer
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink, events_path
from parallel_core.spec import RunSpec, TrainSpec
from tests.parallel_core import ranks
from tests.parallel_core.frames import read_file
from tests.parallel_core.parity import Tensors, Trained, spec_of, train, train_many
from tests.parallel_core.test_trainer import series

ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11}
PAIRS: list[dict[str, Any]] = [{"dp": 2}, {"tp": 2, "recompute": "full"}, {"pp": 2, "micro_batches": 4}]
FOURS: list[dict[str, Any]] = [
    {"pp": 2, "tp": 2, "schedule": "gpipe", "micro_batches": 4, "recompute": "full"},
    {"dp": 2, "pp": 2, "micro_batches": 2},
]


@cache
def reference(precision: str) -> Trained:
    return train(spec_of({}, {"precision": precision}))


def difference(got: Tensors, want: Tensors) -> float:
    """|got - want| / |want| over all tensors together."""
    pairs = [(got[name].astype(np.float64), want[name].astype(np.float64)) for name in want]
    return math.sqrt(sum(np.square(a - b).sum() for a, b in pairs) / sum(np.square(b).sum() for _, b in pairs))


@pytest.mark.parametrize("splits", [PAIRS, FOURS], ids=["2 ranks", "4 ranks"])
def test_layouts_agree_with_the_single_device(splits: list[dict[str, Any]]) -> None:
    cases = [(precision, split) for precision in ROUNDOFF for split in splits]
    every = train_many([spec_of({}, {"precision": precision}, **split) for precision, split in cases])
    for (precision, split), got in zip(cases, every, strict=True):
        want, u, what = reference(precision), ROUNDOFF[precision], f"{precision} {split}"
        np.testing.assert_allclose(got.losses, want.losses, rtol=u, err_msg=what)
        np.testing.assert_allclose(got.norms, want.norms, rtol=4 * u, err_msg=what)
        assert difference(got.grads[0], want.grads[0]) <= 4 * u, what


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_16_bits_are_near_fp32(precision: str) -> None:
    got, want, u = reference(precision), reference("fp32"), ROUNDOFF[precision]
    assert 0 < difference(got.grads[0], want.grads[0]) <= 4 * u
    np.testing.assert_allclose(got.losses, want.losses, rtol=u)


def test_norms_and_losses_of_16_bit_runs_are_fp32() -> None:
    """Gradients, moments and master weights are fp32; parameters and messages have 16 bits."""
    _, types = ranks.run(spec_of({}, {"precision": "bf16"}, pp=2, micro_batches=2), _types, ranks.scratch())
    assert types == {"params": "bfloat16", "grads": "float32", "state": ["float32"] * 3, "loss": "float32"}


def _types(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    return ranks.with_trainer(spec, rank, meeting, folder, _types_of)


def _types_of(trainer: Trainer) -> dict[str, Any]:
    losses: list[str] = []
    (stage,) = trainer.chunks.stages.values()
    forward = stage.forward

    def seen(micro_batch: int, x: Tensor | None) -> Tensor:
        out = forward(micro_batch, x)
        losses.append(_name(out))
        return out

    stage.forward = seen  # type: ignore[method-assign]
    trainer.step(0)
    flat = trainer.chunks.flat
    return {
        "params": _name(flat.values),
        "grads": _name(flat.grads),
        "state": [_name(tensor) for tensor in trainer.optimizer.state()],
        "loss": losses[-1],
    }


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# Loss scaling


def scale_of(**train: Any) -> LossScale:
    return LossScale(TrainSpec.model_validate({"precision": "fp16"} | train))


def test_the_scale_grows_after_a_window_of_good_steps_and_falls_at_once() -> None:
    scale, seen = scale_of(loss_scale=1024, loss_scale_window=3), []
    for norm in (1.0, 1.0, 1.0, 1.0, math.inf, 1.0, 1.0, math.nan, 1.0, 1.0, 1.0):
        scale.judge(norm)
        seen.append(scale.value)
    assert seen == [1024, 1024, 2048, 2048, 1024, 1024, 1024, 512, 512, 512, 1024]
    assert scale.skipped == 2


def test_the_scale_of_gradients_that_stay_0_does_not_grow_without_end() -> None:
    """It left the range of fp32, in which the loss is, and with it the run ended."""
    scale = scale_of(loss_scale_window=1)
    for _ in range(200):
        assert scale.judge(0.0)
    seed = scale.seed(torch.zeros(()))
    assert seed is not None and torch.isfinite(seed)


def test_its_state_goes_on_where_it_was() -> None:
    scale, other = scale_of(loss_scale_window=4), scale_of(loss_scale_window=4)
    for norm in (1.0, math.inf, 1.0, 1.0):
        scale.judge(norm)
    other.restore(scale.state())
    assert [other.judge(1.0), other.judge(1.0), other.value, other.skipped] == [True, True, 2.0**16, 1]


def test_a_run_that_goes_on_with_a_shorter_window_grows_its_scale_again() -> None:
    scale = scale_of(loss_scale=1024, loss_scale_window=2)
    scale.restore({"value": 1024.0, "good": 5, "skipped": 0})
    seen = []
    for _ in range(4):
        scale.judge(1.0)
        seen.append(scale.value)
    assert seen == [2048, 2048, 4096, 4096]


def test_overflow_at_the_least_scale_ends_the_run_with_advice() -> None:
    scale = scale_of(loss_scale=2)
    assert not scale.judge(math.nan)
    with pytest.raises(FloatingPointError, match=r"least loss scale, 1, after 1 skipped steps: lower train\.lr"):
        scale.judge(math.nan)


def test_other_precisions_are_not_scaled() -> None:
    scale = scale_of(precision="bf16")
    assert scale.judge(math.nan) and scale.value == 1.0 and scale.seed(torch.zeros(())) is None


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_powers_of_two_change_nothing_in_fp32(optimizer: str) -> None:
    """Scaling by them is exact: losses, norms and parameters keep their bits, also with clipping."""
    ((*plain, _), (*scaled, scale)) = (
        ranks.run(spec_of({}, {"precision": "fp32", "optimizer": optimizer}), work, ranks.scratch())[0]
        for work in (_plain, _scaled)
    )
    assert scale == 4096.0
    assert plain[0] == scaled[0]
    assert all(np.array_equal(scaled[1][name], value) for name, value in plain[1].items())


def _plain(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    return ranks.with_trainer(spec, rank, meeting, folder, _three_steps)


def _scaled(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    def use(trainer: Trainer) -> Any:
        trainer.loss_scale.value = 4096.0
        return _three_steps(trainer)

    return ranks.with_trainer(spec, rank, meeting, folder, use)


def _three_steps(trainer: Trainer) -> tuple[list[tuple[float, float]], Tensors, float]:
    totals = [trainer.step(step) for step in range(3)]
    values = {name: value.numpy().copy() for name, value in trainer.chunks.flat.named().items()}
    return [(total.loss, total.grad_norm) for total in totals], values, totals[-1].loss_scale


# Skipped steps


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_overflow_on_one_rank_skips_the_step_on_all(optimizer: str) -> None:
    """The first step's gradient becomes infinite on the last rank only; all ranks skip that step and take the next."""
    split = {"dp": 2, "pp": 2, "micro_batches": 2}
    train = {"precision": "fp16", "optimizer": optimizer}
    seen = ranks.run(spec_of({}, train, **split), _overflow, ranks.scratch())
    for totals, kept, moved in seen:
        assert [total.skipped for total in totals] == [1, 1]
        assert [total.loss_scale for total in totals] == [2.0**16, 2.0**15]
        assert not math.isfinite(totals[0].grad_norm) and math.isfinite(totals[0].loss)
        assert math.isfinite(totals[1].grad_norm)
        assert kept and moved


def _overflow(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    def use(trainer: Trainer) -> tuple[list[Totals], bool, bool]:
        flat = trainer.chunks.flat
        before = [tensor.clone() for tensor in (flat.values, *trainer.optimizer.state())]
        totals = [_step_with_infinity(trainer) if rank == spec.parallel.world - 1 else trainer.step(0)]
        after = (flat.values, *trainer.optimizer.state())
        kept = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        totals.append(trainer.step(1))
        return totals, kept, not torch.equal(before[0], flat.values)

    return ranks.with_trainer(spec, rank, meeting, folder, use)


def _step_with_infinity(trainer: Trainer) -> Totals:
    gain = next(slot.parameter for slot in trainer.chunks.flat if slot.name.endswith("norm.weight"))
    hook = gain.register_hook(lambda grad: grad * math.inf)
    try:
        return trainer.step(0)
    finally:
        hook.remove()


def test_a_scale_that_is_too_high_comes_down_by_itself(tmp_path: Path) -> None:
    spec = spec_of({}, {"precision": "fp16", "loss_scale": 2.0**26, "steps": 14, "warmup_steps": 1})
    run_rank(spec, 0, FileSink(tmp_path, 0), Rendezvous("", 0, 1, True), Progress(tmp_path, 0))
    seen = read_file(events_path(tmp_path, 0))
    scale, skipped = (series(seen, name)["value"].tolist() for name in ("loss_scale", "skipped_steps"))
    losses = series(seen, "loss")["value"]
    assert len(scale) == spec.train.steps
    assert scale == [2.0**26 / 2 ** max(0, i) for i in [0, *(int(count) for count in skipped[:-1])]]
    assert 0 < skipped[-1] < spec.train.steps - 3
    assert np.isfinite(losses).all() and losses[-1] < losses[0]


def test_a_loss_that_is_no_number_is_reported_and_ends_an_fp16_run(tmp_path: Path) -> None:
    """Updates of this size push the activations out of fp16's range, whatever the loss scale."""
    train = {"precision": "fp16", "lr": 100.0, "weight_decay": 0.0, "loss_scale": 4.0, "steps": 60}
    with pytest.raises(FloatingPointError, match=r"lower train\.lr, or set train\.precision to bf16"):
        run_rank(spec_of({}, train), 0, FileSink(tmp_path, 0), Rendezvous("", 0, 1, True), Progress(tmp_path, 0))
    losses = series(read_file(events_path(tmp_path, 0)), "loss")["value"]
    assert not np.isfinite(losses).all()
