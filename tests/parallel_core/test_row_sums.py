"""Gradients that are sums over the rows of a micro-batch, in 16 bits: as exact as fp32, in any micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parallel_core.models.layers import Embedding, Positions, RmsNorm
from parallel_core.models.row_sums import LayerNorm
from parallel_core.observe.recorder import SpanRecorder
from parallel_core.observe.scope import Scope
from parallel_core.outline.temporaries import FEW_ROWS, in_embedding
from parallel_core.spec import RunSpec
from parallel_core.tensor.group import TensorGroup
from parallel_core.tensor.sequence import Rows, SharedPositions
from parallel_core.tensor.vocab import VocabEmbedding
from tests.parallel_core.test_kernels import GPU

ROWS, WIDTH = 4096, 24
NARROW = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
Tensors = list[Tensor]
M = TypeVar("M", bound=nn.Module)


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.empty(shape, dtype=torch.float64).normal_(generator=torch.Generator().manual_seed(seed)).to(dtype)


def summed_in_fp32(module: M) -> M:
    """Gives the parameters fp32 sums, as `engine.flat` does."""
    for seed, parameter in enumerate(module.parameters()):
        parameter.grad_dtype = None
        parameter.grad = torch.zeros(parameter.shape)
        with torch.no_grad():
            parameter.copy_(random(*parameter.shape, seed=seed))
    return module


def grads(module: nn.Module) -> Tensors:
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def shifted(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Inputs, and gradients of a norm's output that do not cancel: as after a linear layer with a mean."""
    return random(ROWS, WIDTH, seed=7, dtype=dtype), (random(ROWS, WIDTH, seed=8) + 0.5).to(dtype)


NORMS: list[tuple[Callable[..., nn.Module], Callable[..., Tensor]]] = [
    (LayerNorm, F.layer_norm),
    (RmsNorm, partial(F.rms_norm, eps=1e-5)),
]


@NARROW
@pytest.mark.parametrize(("kind", "reference"), NORMS)
@pytest.mark.parametrize("micro_batches", [1, 8])
def test_norms_of_16_bits_sum_their_rows_in_fp32(
    kind: Callable[..., nn.Module], reference: Callable[..., Tensor], dtype: torch.dtype, micro_batches: int
) -> None:
    norm, (x, grad) = summed_in_fp32(kind(WIDTH, dtype=dtype)), shifted(dtype)
    moved = []
    for part, given in zip(x.chunk(micro_batches), grad.chunk(micro_batches), strict=True):
        part = part.view(2, -1, WIDTH).requires_grad_()
        norm(part).backward(given.view_as(part))
        moved.append(part.grad)
    exact = [p.detach().double().requires_grad_() for p in norm.parameters()]
    wide = x.double().requires_grad_()
    reference(wide, (WIDTH,), *exact).backward(grad.double())
    for got, want in zip(grads(norm), [p.grad for p in exact], strict=True):
        assert want is not None
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5 * want.abs().max().item())
    assert wide.grad is not None
    eps = torch.finfo(dtype).eps
    seen = torch.cat([part.flatten(0, -2) for part in moved if part is not None])
    assert seen.dtype is dtype
    torch.testing.assert_close(seen.double(), wide.grad, rtol=eps, atol=2 * eps)


@NARROW
def test_rows_of_one_token_are_all_counted(dtype: torch.dtype) -> None:
    """bf16 cannot add 1 to 256, nor fp16 to 2048."""
    ids = torch.full((4, ROWS // 4), 3)
    whole = summed_in_fp32(Embedding(8, WIDTH, dtype=dtype))
    group = TensorGroup(0, 2, None, Scope(SpanRecorder()))
    split = summed_in_fp32(VocabEmbedding(nn.Embedding(8, WIDTH, dtype=dtype), group))
    for module, out in ((whole, whole(ids)), (split, split.mine(ids))):
        assert out.dtype is dtype
        out.backward(torch.ones_like(out))
        (got,) = grads(module)
        assert torch.equal(got, torch.zeros_like(got).index_fill_(0, torch.tensor(3), ROWS))


@pytest.mark.parametrize("count", [FEW_ROWS, FEW_ROWS + 1])
@pytest.mark.parametrize("device", ["meta", pytest.param("cuda", marks=GPU)])
@NARROW
def test_few_rows_of_a_table_on_a_gpu_are_summed_in_fp32(dtype: torch.dtype, device: str, count: int) -> None:
    """There torch itself rounds to 16 bits after every 32 rows; of more rows its sums have fp32, rounded once."""
    table = Embedding(8, WIDTH, dtype=dtype, device=device)
    table.weight.grad_dtype = None
    table(torch.full((1, count), 3, device=device)).sum().backward()
    (got,) = grads(table)
    assert got.dtype is (torch.float32 if count == FEW_ROWS else dtype) and got.shape == (8, WIDTH)
    if device != "meta":
        want = torch.zeros(8, WIDTH).index_fill_(0, torch.tensor(3), count)
        assert torch.equal(got.cpu().float(), want.to(got.dtype).float())


@NARROW
def test_positions_of_several_samples_are_not_added_up_in_16_bits_on_a_gpu(dtype: torch.dtype) -> None:
    positions = Positions(2, WIDTH, dtype=dtype, device="meta")
    positions.weight.grad_dtype = None
    own = SharedPositions(positions, Rows(TensorGroup(1, 2, None, Scope(SpanRecorder())), 2))
    own(torch.empty(1, 32, WIDTH, dtype=dtype, device="meta")).sum().backward()
    (got,) = grads(own)
    assert got.dtype is torch.float32


def test_the_planner_counts_what_few_rows_are_summed_in() -> None:
    spec = RunSpec.model_validate({"train": {"precision": "bf16", "device": "cuda"}})
    assert in_embedding(spec, 100, FEW_ROWS * WIDTH, WIDTH) == 2 * (100 + FEW_ROWS * WIDTH)
    assert in_embedding(spec, 100, (FEW_ROWS + 1) * WIDTH, WIDTH) == 100
    assert in_embedding(RunSpec.model_validate({"train": {"device": "cuda"}}), 100, WIDTH, WIDTH) == 100


@NARROW
def test_rows_of_one_position_are_all_counted(dtype: torch.dtype) -> None:
    """With the rows of a micro-batch split over tensor ranks, or not."""
    positions, x = Positions(2, WIDTH, dtype=dtype), random(ROWS, 2, WIDTH, seed=1, dtype=dtype)
    group = TensorGroup(1, 2, None, Scope(SpanRecorder()))
    own, rows = SharedPositions(positions, Rows(group, 2)), x.view(1, -1, WIDTH)[:, ROWS:]
    for module, given in ((own, rows), (positions, x)):
        out = summed_in_fp32(module)(given)
        assert torch.equal(out.view(-1, 2, WIDTH), given.view(-1, 2, WIDTH) + positions.weight)
        out.backward(torch.ones_like(out))
        (got,) = grads(module)
        assert torch.equal(got, torch.full_like(got, given.numel() // WIDTH / 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wider_types_have_the_bits_of_torch(dtype: torch.dtype) -> None:
    (x, grad), ids = shifted(dtype), torch.arange(ROWS) % 5
    norm, table = LayerNorm(WIDTH, dtype=dtype), Embedding(8, WIDTH, dtype=dtype)
    plain, rows = nn.LayerNorm(WIDTH, dtype=dtype), nn.Embedding(8, WIDTH, dtype=dtype)
    for mine, theirs, given in ((norm, plain, x), (table, rows, ids)):
        with torch.no_grad():
            for seed, (parameter, other) in enumerate(zip(mine.parameters(), theirs.parameters(), strict=True)):
                other.copy_(parameter.copy_(random(*parameter.shape, seed=seed)))
        out, want = mine(given), theirs(given)
        out.backward(grad)
        want.backward(grad)
        assert torch.equal(out, want)
        assert all(torch.equal(a, b) for a, b in zip(grads(mine), grads(theirs), strict=True))
