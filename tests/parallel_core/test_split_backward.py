"""B and W together equal BW: same bits, deferred matmuls, and what W needs is kept and metered."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from parallel_core.engine.chunks import Chunks
from parallel_core.engine.device import CpuDevice
from parallel_core.engine.stage import Batch
from parallel_core.models.microbatch_context import Sample
from parallel_core.observe.memory import MemoryMeter
from parallel_core.observe.recorder import SpanRecorder
from parallel_core.observe.scope import Scope
from parallel_core.spec import RunSpec
from parallel_core.tensor.group import TensorGroup
from tests.parallel_core.gradients import named_grads

MICRO_BATCHES = 3


class Made(NamedTuple):
    chunks: Chunks
    scope: Scope
    batch: torch.Tensor


def make(recompute: str, tied: bool = False) -> Made:
    """The whole model as one stage, and random tokens (micro-batch, sample, seq + 1)."""
    spec = RunSpec.model_validate(
        {
            "model": {"layers": 2, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64, "tied": tied},
            "train": {"global_batch": 6},
            "parallel": {"micro_batches": MICRO_BATCHES, "recompute": recompute},
        }
    )
    scope = Scope(SpanRecorder())
    chunks = Chunks(spec, {0: spec.model.units()}, TensorGroup(0, 1, None, scope), None, CpuDevice(), scope)
    tokens = torch.randint(64, (MICRO_BATCHES, 2, 17), generator=torch.Generator().manual_seed(1))
    return Made(chunks, scope, tokens)


def forward(made: Made) -> None:
    samples = {i: Sample(tokens[:, :-1], tokens[:, 1:].contiguous()) for i, tokens in enumerate(made.batch)}
    made.chunks.begin_step([Batch(0, samples, 1 / (MICRO_BATCHES * 2 * 16))])
    for i in samples:
        made.chunks.stages[0].forward(i, None)


def gradients(made: Made) -> dict[str, np.ndarray]:
    return {name: grad.numpy().copy() for name, grad in named_grads(made.chunks.flat).items()}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_sums_have_the_same_bits(recompute: str, tied: bool) -> None:
    """W may come long after B, as in zero-bubble schedules, as long as the micro-batches keep their order."""
    whole, split = make(recompute, tied), make(recompute, tied)
    for made in (whole, split):
        forward(made)
    for i in range(MICRO_BATCHES):
        whole.chunks.stages[0].backward(i, None)
        split.chunks.stages[0].backward_input(i, None)
    before = gradients(split)
    for i in range(MICRO_BATCHES):
        split.chunks.stages[0].backward_weights(i)
    want, got = gradients(whole), gradients(split)
    for name in want:
        # shared by two layers: the sum of one is complete before the other's begins
        if tied and name == "embed.token.weight":
            np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-7)
        else:
            assert np.array_equal(got[name], want[name]), name
        assert np.any(want[name] != 0), name
        put_off = "norm" not in name and not name.startswith("embed")
        assert np.any(before[name] != 0) != put_off, name


class _Products(TorchDispatchMode):
    """Counts the multiply-adds of the matmuls inside."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm", "addmm_"):
            a, b = (arg for arg in args[-2:])
            self.count += a.shape[0] * a.shape[1] * b.shape[1]
        return func(*args, **(kwargs or {}))


def test_half_of_the_products_are_put_off() -> None:
    made = make("none")
    forward(made)
    stage, counts = made.chunks.stages[0], []
    for part in (lambda: stage.backward_input(0, None), lambda: stage.backward_weights(0)):
        with _Products() as products:
            part()
        counts.append(products.count)
    hidden, vocab, rows = 32, 64, 32
    assert counts == [rows * hidden * (2 * 12 * hidden + vocab)] * 2


def test_a_recomputation_leaves_out_the_last_product_of_each_block() -> None:
    """Nothing reads it: the residual sum of the block's output needs no value for its backward. So the gradients have
    the same bits."""
    counts, grads = [], []
    for recompute in ("none", "full"):
        made = make(recompute)
        forward(made)
        with _Products() as products:
            made.chunks.stages[0].backward(0, None)
        counts.append(products.count)
        grads.append(made.chunks.flat.grads.clone())
    assert grads[0].abs().max() > 0 and torch.equal(*grads)
    hidden, rows, blocks = 32, 32, 2
    assert counts[1] - counts[0] == blocks * rows * (12 - 4) * hidden**2


def test_each_gradient_is_told_as_often_as_expected() -> None:
    """The data-parallel reduction of a bucket starts when all its gradients have arrived: neither early nor never."""
    for tied in (False, True):
        for recompute in ("none", "full"):
            made = make(recompute, tied)
            told: dict[Any, int] = {}

            def arrived(parameter: Any, told: dict[Any, int] = told) -> None:
                told[parameter] = told.get(parameter, 0) + 1

            made.chunks.weights.listener = arrived
            for slot in made.chunks.flat:
                slot.parameter.register_post_accumulate_grad_hook(arrived)
            forward(made)
            for i in range(MICRO_BATCHES):
                made.chunks.stages[0].backward_input(i, None)
                made.chunks.stages[0].backward_weights(i)
            assert told == {slot: n * MICRO_BATCHES for slot, n in made.chunks.arrivals().items()}


def test_what_w_needs_is_held_as_activations_until_then() -> None:
    made = make("none")
    forward(made)
    stage, meter = made.chunks.stages[0], MemoryMeter()
    with meter.measure():
        made.scope.meter = meter
        stage.backward_input(0, None)
        held = meter.final["activations"]
        stage.backward_weights(0)
        left = meter.final["activations"]
    hidden, rows = 32, 32
    block = 4 * rows * hidden * ((1 + 3) + (1 + 1) + (1 + 4) + (4 + 1))  # input and output gradient of four layers
    shared = 4 * rows * hidden  # the residual sum after an MLP passes one gradient to two layers
    assert held >= 2 * (block - shared)
    assert left == 0


def test_what_waits_for_w_holds_no_graph() -> None:
    """The loss returns the logits tensor itself as its gradient; if its graph were kept, a stage's input would stay
    alive.
    """
    spec = RunSpec.model_validate(
        {
            "model": {"layers": 2, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64},
            "train": {"global_batch": 2},
        }
    )
    scope = Scope(SpanRecorder())
    last = {0: spec.model.units()[1:]}
    chunks = Chunks(spec, last, TensorGroup(0, 1, None, scope), None, CpuDevice(), scope)
    sample = Sample(torch.empty(0), torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(1)))
    chunks.begin_step([Batch(0, {0: sample}, 1.0)])
    x = torch.ones(2, 16, 32)
    entered = StorageWeakRef(x.untyped_storage())
    chunks.stages[0].forward(0, x)
    del x
    assert not entered.expired()
    chunks.stages[0].backward_input(0, None)
    assert entered.expired()
    chunks.stages[0].backward_weights(0)
