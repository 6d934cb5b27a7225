"""The GPT's variants compared with formulas written out, dropout's random generator, and the rules between their
fields.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from parallel_core.models import attention
from parallel_core.models.dropout import Dropout, uniform
from parallel_core.models.microbatch_context import MicroBatchContext
from parallel_core.models.registry import build_unit, parameter_shapes
from parallel_core.plan.partition import flop_weights
from parallel_core.plan.units import parameter_count
from parallel_core.spec import ModelSpec, RunSpec, field_errors
from tests.parallel_core.gradients import grad_of

LLAMA = ModelSpec(
    layers=1, hidden=16, heads=4, kv_heads=2, seq=6, vocab=11, ffn=20,
    positions="rope", activation="swiglu", norm="rmsnorm", bias=False,
)  # fmt: skip


def _norm(x: Tensor, gain: Tensor) -> Tensor:
    return gain * x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-5)


def _turned(x: Tensor) -> Tensor:
    """RoPE as a product of complex numbers: dimensions i and i + d/2 are the real and imaginary parts."""
    seq, dim = x.shape[-2:]
    pairs = torch.complex(x[..., : dim // 2].contiguous(), x[..., dim // 2 :].contiguous())
    angle = torch.arange(seq)[:, None] * 10_000.0 ** (-torch.arange(dim // 2, dtype=torch.float64) * 2 / dim)
    turned = pairs * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], -1)


def _attention(x: Tensor, values: dict[str, Tensor]) -> Tensor:
    """Head by head: queries 0 and 1 share the first key, 2 and 3 the second."""
    rows = (_norm(x, values["norm.weight"]) @ values["qkv.weight"].T).split(4, -1)
    seq = x.shape[1]
    future, out = torch.ones(seq, seq, dtype=torch.bool).triu(1), []
    for head in range(4):
        group = head // 2
        q, k, v = _turned(rows[4 * group + head % 2]), _turned(rows[4 * group + 2]), rows[4 * group + 3]
        scores = (q @ k.transpose(1, 2) / 2).masked_fill(future, -math.inf)
        out.append(scores.softmax(-1) @ v)
    return x + torch.cat(out, -1) @ values["proj.weight"].T


def _mlp(x: Tensor, values: dict[str, Tensor]) -> Tensor:
    wide = _norm(x, values["norm.weight"]) @ values["fc1.weight"].T
    gate, up = wide[..., 0::2], wide[..., 1::2]
    return x + (gate * torch.sigmoid(gate) * up) @ values["fc2.weight"].T


@pytest.mark.parametrize(("name", "formula"), [("block.0.attn", _attention), ("block.0.mlp", _mlp)])
def test_llamas_layers_and_gradients_compute_the_formulas(name: str, formula: Any) -> None:
    unit = build_unit(LLAMA, name, torch.float64, "cpu")
    for module in unit.modules():
        if isinstance(module, Dropout):
            module.passing = MicroBatchContext(0)
    torch.manual_seed(0)
    values = dict(unit.named_parameters())
    with torch.no_grad():
        for value in values.values():
            value.normal_(1.0 if value.ndim == 1 else 0.0, 0.3)
    x = torch.randn(2, LLAMA.seq, LLAMA.hidden, dtype=torch.float64, requires_grad=True)
    inputs = [x, *values.values()]
    got, want = unit(x), formula(x, values)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    grads = (torch.autograd.grad(out.square().sum(), inputs) for out in (got, want))
    torch.testing.assert_close(*grads, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_keys_repeated_for_their_queries_mix_what_shared_ones_do(
    kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = attention.Core(LLAMA.model_copy(update={"kv_heads": kv_heads}))
    qkv = torch.randn(2, LLAMA.seq, (4 + 2 * kv_heads) * 4, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, LLAMA.seq, LLAMA.hidden, dtype=torch.float64)
    shared = core(qkv)
    (gradient,) = torch.autograd.grad(shared, qkv, weights)
    monkeypatch.setattr(attention, "shares_no_keys", lambda queries: True)  # otherwise only on CUDA
    repeated = core(qkv)
    torch.testing.assert_close(repeated, shared, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.autograd.grad(repeated, qkv, weights)[0], gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "capability", "repeated"),
    [
        (torch.float16, (7, 5), True),
        (torch.float16, (8, 0), False),
        (torch.bfloat16, (9, 0), False),
        (torch.float32, (9, 0), True),
    ],
)
def test_heads_share_keys_on_gpus_that_have_a_kernel_for_it(
    dtype: torch.dtype, capability: tuple[int, int], repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    attention.has_flash.cache_clear()
    queries: Any = SimpleNamespace(is_cuda=True, dtype=dtype, device=torch.device("cuda", 0))
    assert attention.shares_no_keys(queries) is repeated
    attention.has_flash.cache_clear()


def test_parameters_are_counted_as_built() -> None:
    for model in (LLAMA, ModelSpec(), LLAMA.model_copy(update={"bias": True, "norm": "layernorm", "tied": True})):
        built = sum(math.prod(shape) for shape in parameter_shapes(model).values())
        assert parameter_count(model) == built
        assert len(flop_weights(model)) == len(model.units())


def test_parameters_of_llama_2() -> None:
    """6 738 415 616 parameters: the published 7 B model, whose MLP is 11 008 wide."""
    llama = ModelSpec(
        layers=32, hidden=4096, heads=32, seq=4096, vocab=32000,
        positions="rope", activation="swiglu", norm="rmsnorm", bias=False,
    )  # fmt: skip
    assert parameter_count(llama) == 6_738_415_616


def _squares64(counter: int, key: int) -> int:
    """The reference code of Widynski 2020, section 4, with Python integers."""
    mask = 2**64 - 1

    def swap(x: int) -> int:
        return (x >> 32 | x << 32) & mask

    y = counter * key & mask
    z = (y + key) & mask
    x = swap((y * y + y) & mask)
    x = swap((x * x + z) & mask)
    x = swap((x * x + y) & mask)
    t = (x * x + z) & mask
    x = swap(t)
    return t ^ (((x * x + y) & mask) >> 32)


def test_generator_is_squares_with_64_bits() -> None:
    keys = torch.tensor([0x548C9DECBCE65297 - 2**63, 12345678912345679])
    got = uniform(keys, 400)
    for row, key in zip(got, keys.tolist(), strict=True):
        want = [_squares64(i, key % 2**64) for i in range(100)]
        assert row.tolist() == [word >> 16 * lane & 0xFFFF for word in want for lane in range(4)]


def _dropped(p: float, first: int, samples: int, step: int = 3, layer: str = "a") -> Tensor:
    layer_ = Dropout(p, layer)
    layer_.passing = MicroBatchContext(7, step, first)
    return layer_(torch.ones(samples, 50, 21, dtype=torch.float64))


def test_masks_belong_to_samples_not_to_micro_batches() -> None:
    whole = _dropped(0.3, 0, 8)
    assert torch.equal(whole, torch.cat([_dropped(0.3, first, 2) for first in (0, 2, 4, 6)]))
    for other in (_dropped(0.3, 8, 8), _dropped(0.3, 0, 8, step=4), _dropped(0.3, 0, 8, layer="b")):
        assert 0.3 < float((whole.bool() ^ other.bool()).double().mean()) < 0.54


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_mean_and_drops_the_share(p: float) -> None:
    """Share and mean are within five standard deviations for 67 200 independent draws."""
    seen = _dropped(p, 0, 64)
    deviation = math.sqrt(p * (1 - p) / seen.numel())
    assert abs(float((seen == 0).double().mean()) - p) < 5 * deviation
    assert abs(float(seen.mean()) - 1) < 5 * deviation / (1 - p)


@pytest.mark.parametrize(
    ("p", "message"),
    [
        (0.999995, "and 0.999995 is less than one step from 1; use dropout=0.9999847412109375, or dropout=0.0."),
        (2**-17, "and 7.62939453125e-06 is less than one step from 0; use dropout=1.52587890625e-05, or dropout=0.0."),
    ],
)
def test_dropout_that_would_be_nothing_or_everything_is_refused(p: float, message: str) -> None:
    with pytest.raises(ValidationError) as error:
        RunSpec.model_validate({"model": {"dropout": p}})
    assert field_errors(error.value) == {"model.dropout": f"Dropout is drawn in steps of 2^-16, {message}"}


@pytest.mark.parametrize("p", [2**-16, 1 - 2**-16])
def test_the_least_and_the_most_dropout_scale_up_what_is_left(p: float) -> None:
    assert RunSpec.model_validate({"model": {"dropout": p}}).model.dropout == p
    seen = _dropped(p, 0, 64).unique()
    assert {*seen.tolist()} <= {0.0, 1 / (1 - p)} and len(seen) == 2


def test_draws_are_even_and_do_not_follow_each_other() -> None:
    draws = uniform(torch.arange(1, 257, 2) * 0x9E3779B97F4A7C1 | 1, 1024).numpy()
    counts = np.bincount(draws.ravel() >> 8, minlength=256)
    expected = draws.size / 256
    assert ((counts - expected) ** 2 / expected).sum() < 255 + 5 * math.sqrt(2 * 255)
    for other in (np.roll(draws, 1, 1), np.roll(draws, 4, 1), np.roll(draws, 1, 0)):
        assert abs(np.corrcoef(draws.ravel(), other.ravel())[0, 1]) < 5 / math.sqrt(draws.size)


def test_gradient_goes_through_the_same_mask() -> None:
    layer, x = Dropout(0.4, "a"), torch.randn(3, 40, requires_grad=True)
    layer.passing = MicroBatchContext(1)
    out = layer(x)
    out.sum().backward()
    slope = grad_of(x)
    assert torch.equal(slope != 0, out != 0)
    torch.testing.assert_close(out, slope * x)


@pytest.mark.parametrize(
    ("model", "tp", "message"),
    [
        ({"heads": 4, "kv_heads": 3}, 1, "kv_heads=3 does not divide heads=4; try one of 1, 2, 4."),
        (
            {"hidden": 12, "heads": 4, "positions": "rope"},
            1,
            "positions=rope turns pairs, and with heads=4 a head has 3 dimensions; try heads=1, 2, 3, 6, or "
            "positions=learned.",
        ),
        ({"kv_heads": 2}, 4, "tp=4 does not divide kv_heads=2; try 1, 2."),
        ({"ffn": 51}, 2, "tp=2 does not divide ffn=51; try 1."),
    ],
)
def test_rules_name_the_nearest_values(model: dict[str, Any], tp: int, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({"model": model, "parallel": {"tp": tp}})
    assert list(field_errors(caught.value).values()) == [message]
