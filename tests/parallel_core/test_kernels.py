"""The models' own loss and norm, compared with torch's, and kernels for GPUs with those for CPUs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from parallel_core.models import attention
from parallel_core.models.layers import RmsNorm, _RmsNorm
from parallel_core.models.loss import CrossEntropySum
from parallel_core.observe import host

GPU = [pytest.mark.gpu, pytest.mark.skipif(not host.cuda_devices(), reason="needs a GPU")]


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-6), (torch.float64, 1e-14), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("shape", [(6, 7), (3, 1030), (1, 2)])
def test_summed_loss_and_its_gradient(dtype: torch.dtype, close: float, shape: tuple[int, int]) -> None:
    torch.manual_seed(3)
    drawn = (3 * torch.randn(shape)).to(dtype)
    targets = torch.randint(0, shape[1], (shape[0],))
    targets[0] = -1 if shape[0] > 1 else targets[0]
    ours, theirs = drawn.clone().requires_grad_(), drawn.clone().requires_grad_()
    # "+ 0" makes a non-leaf, as a model's logits are: the loss overwrites them
    mine = CrossEntropySum()(ours + 0, targets)
    want = F.cross_entropy(theirs.double(), targets, reduction="sum", ignore_index=-1)
    for loss in (mine, want):
        (loss * 0.3).backward()
    assert float(mine.detach()) == pytest.approx(float(want.detach()), rel=max(close, 1e-6) if close > 1e-10 else close)
    assert ours.grad is not None and theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=close, atol=close, equal_nan=True)
    assert shape[0] == 1 or not ours.grad[0].any(), "a target of -1 must not count"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_the_gradient_of_the_loss_is_that_in_fp32_rounded_once(dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    narrow, targets = (3 * torch.randn(64, 300)).to(dtype).requires_grad_(), torch.randint(-1, 300, (64,))
    plain = narrow.detach().float().requires_grad_()
    for logits in (narrow, plain):
        (CrossEntropySum()(logits + 0, targets) * 0.37).backward()
    assert narrow.grad is not None and plain.grad is not None
    assert torch.equal(narrow.grad, plain.grad.to(dtype))


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.bfloat16, 8e-2)])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_the_norm_of_one_kernel_is_ours(device: str, dtype: torch.dtype, close: float) -> None:
    """In bf16, ours rounds more often, and gradients are differences of numbers of up to 13."""
    torch.manual_seed(5)
    norm = RmsNorm(64, dtype=dtype, device=device)
    x = torch.randn(32, 64).to(device, dtype)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 1.5, 64))
    found = []
    for apply in (
        lambda given: F.rms_norm(given, (64,), norm.weight, norm.eps),
        lambda given: _RmsNorm.apply(given, norm.weight, norm.eps),
    ):
        given, norm.weight.grad = x.clone().requires_grad_(), None
        out = apply(given)
        out.square().sum().backward()
        found.append((out.detach(), given.grad, norm.weight.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=close, atol=close)
    if device == "cuda":
        assert torch.equal(norm(x), found[0][0])


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_queries_are_rotated_alike_by_few_kernels(device: str, dtype: torch.dtype, close: float) -> None:
    """In both directions, of a strided view as that of the queries in `qkv`; the result is contiguous."""
    torch.manual_seed(6)
    drawn, weight, found = torch.randn(2, 8, 3, 3, 16), torch.randn(2, 8, 3, 16), []
    for turn, tables in ((attention.rotate, attention.rotary), (attention.rotate_whole, attention.rotary_whole)):
        given = drawn.to(device, dtype, copy=True).requires_grad_()
        cos, sin = (table[:, None] for table in tables(8, 16, 1e4, dtype, given.device))
        out = turn(given.unbind(3)[1], cos, sin)
        (out * weight.to(device, dtype)).sum().backward()
        assert out.is_contiguous() and given.grad is not None
        found.append((out.detach(), given.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=close, atol=close)


def test_one_kind_of_table_of_angles_is_kept() -> None:
    """Of a device that uses `rotary_whole` not also those that it is made of."""
    attention.rotary.cache_clear()
    attention.rotary_whole(8, 16, 1e4, torch.float32, torch.device("cpu"))
    assert attention.rotary.cache_info().currsize == 0
