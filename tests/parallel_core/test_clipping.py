"""Clipping and skipping of updates: decided on the device as on the host."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from parallel_core.engine.device import open_device
from parallel_core.engine.flat import FlatParameters
from parallel_core.engine.norm import clip_factor
from parallel_core.engine.optimizer import FlatOptimizer, flat_optimizer
from parallel_core.engine.precision import LossScale
from parallel_core.observe.memory import MemoryMeter
from parallel_core.spec import DeviceKind, Optimizer, TrainSpec
from tests.parallel_core.test_kernels import GPU

CLOSE = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 1e-2}
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]


def optimizer_of(dtype: torch.dtype, device: DeviceKind, name: Optimizer) -> tuple[FlatParameters, FlatOptimizer]:
    torch.manual_seed(0)
    module = torch.nn.Linear(7, 5, dtype=dtype)
    flat = FlatParameters([(f"a.{leaf}", module, leaf) for leaf in ("weight", "bias")], dtype, open_device(device))
    flat.values[:40] = torch.randn(40).to(flat.values)
    made = flat_optimizer(flat, TrainSpec(lr=0.1, optimizer=name))
    flat.grads[:40] = torch.randn(40).to(flat.grads)
    return flat, made


def state(flat: FlatParameters, optimizer: FlatOptimizer) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in (flat.values, *optimizer.state(), optimizer._steps)]


def number(value: Any, device: DeviceKind) -> torch.Tensor:
    return torch.tensor(value, dtype=None if isinstance(value, bool) else torch.float64, device=device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("factor", [1.0, 0.37, 2.0**-21])
def test_a_factor_on_the_device_scales_gradients_as_one_on_the_host(
    dtype: torch.dtype, factor: float, device: DeviceKind, name: Optimizer
) -> None:
    ours, theirs = optimizer_of(dtype, device, name), optimizer_of(dtype, "cpu", name)
    for _ in range(3):
        ours[1].step(number(factor, device), number(False, device))
        theirs[1].step(factor)
        for flat, _ in (ours, theirs):
            flat.grads.neg_()
    for one, other in zip(state(*ours), state(*theirs), strict=True):
        torch.testing.assert_close(one.cpu().flatten()[:40], other.flatten()[:40], rtol=CLOSE[dtype], atol=CLOSE[dtype])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("there", [False, True])
def test_a_skipped_update_changes_nothing(dtype: torch.dtype, there: bool, device: DeviceKind, name: Optimizer) -> None:
    flat, optimizer = optimizer_of(dtype, device, name)
    optimizer.step()
    flat.grads[3] = math.inf
    before = state(flat, optimizer)
    optimizer.step(*((number(0.0, device), number(True, device)) if there else (0.0, True)))
    assert all(torch.equal(one, other) for one, other in zip(before, state(flat, optimizer), strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("norm", [0.0, 0.5, 1.0, 2.0, 1e30, math.inf, math.nan])
@pytest.mark.parametrize("limit", [None, 1.0])
def test_the_device_clips_as_the_host_does(norm: float, limit: float | None, device: DeviceKind) -> None:
    assert float(clip_factor(number(norm, device), limit)) == pytest.approx(clip_factor(norm, limit), rel=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_is_held_while_it_is_built_that_a_step_does_not_hold(dtype: torch.dtype) -> None:
    """A run that the planner says fits would else run out of memory before its first step."""
    module = torch.nn.Linear(64, 64, dtype=dtype)
    with MemoryMeter().measure() as meter:
        flat = FlatParameters([("a.weight", module, "weight")], dtype, open_device("cpu"))
        flat.values.copy_(torch.arange(len(flat.values)))
        before = meter.final["buffers"]
        made = flat_optimizer(flat, TrainSpec())
        kept = before + sum(buffer.nbytes for buffer in made.state())
    assert kept <= meter.peak_total <= kept + 64, "beside the count of its steps"
    assert made.main is None or torch.equal(made.main, flat.values.float())


@pytest.mark.parametrize(("precision", "norm", "skips"), [("fp16", 3.0, False), ("fp16", math.nan, True)])
def test_an_overflow_is_seen_on_the_device(precision: Any, norm: float, skips: bool) -> None:
    scale = LossScale(TrainSpec(precision=precision))
    assert scale.overflowed(norm) is skips and bool(scale.overflowed(number(norm, "cpu"))) is skips
    assert LossScale(TrainSpec(precision="bf16")).overflowed(number(math.nan, "cpu")) is False
