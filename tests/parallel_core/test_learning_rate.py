"""The learning rate of each step: as PyTorch's schedulers have it, in the spec, and in what diagnosis asks of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

from parallel_core.analysis.diagnosis import diagnose
from parallel_core.learning_rate import rate_at
from parallel_core.spec import RunSpec
from tests.parallel_core.test_diagnosis import healthy, spec


def made(**train: Any) -> RunSpec:
    return RunSpec.model_validate({"train": train})


def theirs(train: dict[str, Any]) -> list[float]:
    """The rates of the same run by torch.optim.lr_scheduler."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=train["lr"])
    warmup, steps, final = train["lr_warmup_steps"], train["steps"], train["lr_final"]
    parts: list[LRScheduler] = []
    if warmup:
        parts.append(LinearLR(optimizer, 1 / (warmup + 1), 1.0, total_iters=warmup))
    parts.append(
        {
            "constant": lambda: ConstantLR(optimizer, 1.0, total_iters=1),
            "linear": lambda: LinearLR(optimizer, 1.0, final, total_iters=steps - warmup),
            "cosine": lambda: CosineAnnealingLR(optimizer, steps - warmup, eta_min=train["lr"] * final),
        }[train["lr_schedule"]]()
    )
    schedule = SequentialLR(optimizer, parts, [warmup]) if warmup else parts[0]
    rates = []
    for _ in range(steps):
        rates.append(float(schedule.get_last_lr()[0]))
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 1, 7])
@pytest.mark.parametrize("final", [0.0, 0.1, 1.0])
def test_it_is_that_of_pytorch_s_schedulers(name: str, warmup: int, final: float) -> None:
    train = {"lr": 3e-3, "steps": 20, "lr_schedule": name, "lr_warmup_steps": warmup, "lr_final": final}
    own = [rate_at(made(**train).train, step) for step in range(20)]
    np.testing.assert_allclose(own, theirs(train), rtol=1e-9)
    assert all(0 < rate <= 3e-3 for rate in own)


def test_without_a_schedule_it_has_the_same_bits_in_every_step() -> None:
    assert {rate_at(made(lr=3e-4, steps=50).train, step) for step in range(60)} == {3e-4}


def test_a_warm_up_that_outlasts_the_run_is_refused() -> None:
    with pytest.raises(ValidationError) as refused:
        made(steps=10, lr_warmup_steps=10)
    assert "lr_warmup_steps=10 never lets the learning rate reach its peak in 10 steps" in str(refused.value)
    assert "use lr_warmup_steps=9, or steps=11." in str(refused.value)
    made(steps=10, lr_warmup_steps=9)
    with pytest.raises(ValidationError, match="reach its peak in 1 step; use lr_warmup_steps=0, or steps=2"):
        made(steps=1, warmup_steps=0, lr_warmup_steps=1)


def test_a_warm_up_is_no_jump_of_the_rate() -> None:
    base = spec()
    train = base.train.model_copy(update={"lr": 0.1, "lr_warmup_steps": 30, "lr_schedule": "cosine"})
    warmed = base.model_copy(update={"train": train})
    nan = np.where(np.arange(40) < 25, 3.0, np.nan)
    rates = np.array([rate_at(train, step) for step in range(40)])
    assert rates[1] == pytest.approx(2 * rates[0])
    (own,) = diagnose(healthy(warmed, loss=nan, lr=rates))
    assert "jumped" not in own.evidence and "train.lr is 0.1" in own.evidence
    (jump,) = diagnose(healthy(warmed, loss=nan, lr=np.where(np.arange(40) < 24, rates, 50 * rates)))
    assert f"jumped from {rates[23]:.3g} to {50 * rates[24]:.3g} at step 24" in jump.evidence
