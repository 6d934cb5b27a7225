"""Initial values are drawn slice by slice and have the same bits as one draw of the whole parameter."""

from __future__ import annotations

import hashlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_core.engine.chunks import Chunks
from parallel_core.engine.device import CpuDevice
from parallel_core.models import initial as module
from parallel_core.models.initial import fill
from parallel_core.models.registry import parameter_shapes
from parallel_core.observe.memory import MemoryMeter
from parallel_core.observe.recorder import SpanRecorder
from parallel_core.observe.scope import Scope
from parallel_core.spec import ModelSpec, RunSpec
from parallel_core.tensor.group import TensorGroup
from tests.parallel_core.shards import shard

MODEL = ModelSpec()


def at_once(seed: int, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The whole parameter drawn at once, as the first version of the engine did."""
    key = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "little") >> 1)
    return torch.empty(shape).normal_(0.0, 0.02, generator=generator)


@settings(max_examples=80, deadline=None)
@given(
    rows=st.integers(1, 300),
    inner=st.lists(st.integers(1, 12), min_size=0, max_size=3),
    block=st.sampled_from([16, 64, 1024]),
)
def test_blocks_have_the_bits_of_one_draw(rows: int, inner: list[int], block: int) -> None:
    shape, name = (rows, *inner), "block.0.attn.qkv.weight"
    before = module.BLOCK
    module.BLOCK = block
    try:
        out = torch.empty(shape)
        fill(out, MODEL, 3, name, shape)
    finally:
        module.BLOCK = before
    assert torch.equal(out, at_once(3, name, shape))


@settings(max_examples=40, deadline=None)
@given(parts=st.integers(2, 8), own=st.integers(1, 9), other=st.integers(1, 40), dim=st.sampled_from([0, 1]))
def test_a_slice_has_the_bits_of_the_whole(parts: int, own: int, other: int, dim: int) -> None:
    shape = (parts * own, other) if dim == 0 else (other, parts * own)
    name = "block.0.attn.qkv.weight"
    whole = at_once(5, name, shape)
    for part, want in enumerate(whole.chunk(parts, dim)):
        out = torch.empty(want.shape)
        fill(out, MODEL, 5, name, shape, dim, part * own)
        assert torch.equal(out, want)


def chunks(spec: RunSpec, units: list[str], rank: int) -> Chunks:
    """The parameters of tensor rank `rank` in a stage with these layers; no other rank exists."""
    group = TensorGroup(rank, spec.parallel.tp, None, Scope(SpanRecorder()))
    return Chunks(spec, {0: units}, group, None, CpuDevice(), Scope(SpanRecorder()))


@pytest.mark.parametrize("positions", ["learned", "rope"])
def test_every_tensor_rank_fills_its_share(positions: str) -> None:
    spec = RunSpec.model_validate({"model": {"positions": positions, "bias": True}, "parallel": {"tp": 4}})
    shapes, units = parameter_shapes(spec.model), spec.model.units()
    for rank in range(4):
        for name, value in chunks(spec, units, rank).flat.named().items():
            whole = module.initial(spec.model, spec.train.seed, name, shapes[name])
            assert torch.equal(value, shard(whole, name, rank, 4)), name


@pytest.mark.parametrize("unit", ["embed", "block.20.attn", "block.20.mlp", "head"])
def test_a_rank_of_a_30_b_model_never_holds_more_than_its_share(unit: str) -> None:
    """The sizes of OPT-30B (Zhang et al. 2022, table 1); one layer on one of 28 tensor ranks."""
    model = {"layers": 48, "hidden": 7168, "heads": 56, "seq": 2048, "vocab": 50_400, "dropout": 0.0}
    spec = RunSpec.model_validate({"model": model, "parallel": {"tp": 28}})
    meter = MemoryMeter()
    with meter.measure():
        held = chunks(spec, [unit], 0)
    own = held.flat.values.nbytes + held.flat.grads.nbytes
    block = 4 * max(module.BLOCK, 16 * spec.model.hidden)
    assert own < 250e6
    assert meter.peak_total <= own + 3 * block
