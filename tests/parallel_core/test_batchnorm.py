"""Batch norm: running statistics are kept in fp32 at least, and normalise held-out samples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from parallel_core.models.batchnorm import BatchNorm
from parallel_core.models.microbatch_context import MicroBatchContext


def norm_of(dtype: torch.dtype, replicas: bool) -> BatchNorm:
    norm = BatchNorm(3, dtype=dtype)
    norm.passing = MicroBatchContext(seed=0)
    with torch.no_grad():
        norm.weight.fill_(1.5)
        norm.bias.fill_(0.25)
    if replicas:
        norm.gather = lambda mine: mine[None]
    return norm


def inputs(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    scale, shift = torch.tensor([0.99, 1.01, 3.0])[:, None, None], torch.tensor([2.05, -0.3, 40.0])[:, None, None]
    return [torch.randn(8, 3, 4, 4, generator=generator) * scale + shift for _ in range(count)]


@pytest.mark.parametrize("replicas", [False, True], ids=["one", "gathered"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_running_statistics_do_not_stop_short_in_16_bits(dtype: torch.dtype, replicas: bool) -> None:
    half, full = norm_of(dtype, replicas), norm_of(torch.float32, replicas)
    for x in inputs(200):
        half(x.to(dtype)), full(x.to(dtype).float())
    assert half.running_mean.dtype == half.running_var.dtype == torch.float32
    torch.testing.assert_close(half.running_mean, full.running_mean, rtol=3e-3, atol=3e-3)
    torch.testing.assert_close(half.running_var, full.running_var, rtol=6e-3, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_held_out_samples_are_normalised_with_them_and_change_nothing(dtype: torch.dtype) -> None:
    norm = norm_of(dtype, replicas=False)
    x, *others = (each.to(dtype) for each in inputs(30))
    for each in others:
        norm(each)
    mean, var = norm.running_mean.clone(), norm.running_var.clone()
    norm.passing.held_out = True
    out = norm(x)
    wide = x.double()
    want = (wide - mean.double()[:, None, None]) / (var.double()[:, None, None] + 1e-5).sqrt() * 1.5 + 0.25
    torch.testing.assert_close(out, want.to(dtype), rtol=2e-2 if dtype == torch.bfloat16 else 1e-4, atol=2e-2)
    assert torch.equal(norm.running_mean, mean) and torch.equal(norm.running_var, var)
