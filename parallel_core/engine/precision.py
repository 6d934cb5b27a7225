"""Number types of a run in mixed precision (Micikevicius et al. 2018), and dynamic loss scaling.

bf16 and fp16 run forward, backward and every activation message in 16 bits. Gradients are accumulated over
micro-batches, reduced over replicas, normed and clipped in fp32 (Megatron-LM's `accumulate_allreduce_grads_in_fp32`),
and the optimizer keeps fp32 states and an fp32 master copy of the weights that each step is rounded from. Norms and
softmax compute in fp32 inside their kernels, cross-entropy on fp32 logits; where torch's kernels would add up the rows
of a micro-batch in 16 bits (on a CPU in norms and embeddings, on a GPU in embeddings of few rows), `models.row_sums`
does so in fp32. bf16 has the range of fp32 and needs no scaling.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from parallel_core.limits import MAX_LOSS_SCALE
from parallel_core.spec import TrainSpec

DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Precision -> number type of parameters and activations."""

LEAST_SCALE = 1.0
"""The smallest loss scale: what overflows without scaling cannot be helped by it."""


def main_dtype(compute: torch.dtype) -> torch.dtype:
    """Number type of gradients, optimizer states and master weights."""
    return torch.float32 if compute.itemsize < 4 else compute


class LossScale:
    """The factor on the loss's gradient that keeps small fp16 gradients from becoming 0; fixed at 1 unless fp16.

    It falls by `loss_scale_backoff` when a step's gradients overflow (the step is skipped) and rises by
    `loss_scale_growth` after `loss_scale_window` good steps in a row (Micikevicius et al. 2018, section 3.2). All ranks
    judge by the same global norm, so they hold the same scale without a message.

    Whether gradients overflow depends on the size of the micro-batch, whose weight gradients have 16 bits before they
    are accumulated in 32: a run that resumes with larger micro-batches may skip steps that it would not have skipped
    with smaller ones, in any layout. With `fully_shard` it may skip more (`engine.fully_sharded`).
    """

    def __init__(self, train: TrainSpec) -> None:
        self._train = train
        self.dynamic = train.precision == "fp16"
        self.value = train.loss_scale if self.dynamic else 1.0
        self.good = 0
        """Good steps since the scale last changed."""
        self.skipped = 0
        """Steps skipped so far."""

    def seed(self, loss: Tensor) -> Tensor | None:
        """The gradient at `loss` that backward starts from; None stands for 1."""
        return None if self.value == 1.0 else torch.full_like(loss, self.value)

    def overflowed(self, norm: float | Tensor) -> bool | Tensor:
        """Whether a step with this scaled gradient norm must be skipped: decided where the norm is, on the host or the
        device."""
        if not self.dynamic:
            return False
        return torch.isfinite(norm).logical_not() if isinstance(norm, Tensor) else not math.isfinite(norm)

    def judge(self, norm: float) -> bool:
        """Whether a step with this scaled gradient norm is taken; adapts the scale.

        Raises FloatingPointError if gradients are not finite although the scale is at LEAST_SCALE.
        """
        if not self.dynamic:
            return True
        if math.isfinite(norm):
            self.good += 1
            if self.good >= self._train.loss_scale_window:  # > if the run resumed with a shorter window
                grown = self.value * self._train.loss_scale_growth
                self.value, self.good = min(grown, MAX_LOSS_SCALE), 0  # gradients that are all 0 never overflow
            return True
        if self.value <= LEAST_SCALE:
            raise FloatingPointError(
                f"fp16 gradients are not finite at the least loss scale, {LEAST_SCALE:g}, after {self.skipped} skipped "
                "steps: lower train.lr, or set train.precision to bf16."
            )
        self.value = max(self.value * self._train.loss_scale_backoff, LEAST_SCALE)
        self.good, self.skipped = 0, self.skipped + 1
        return False

    def state(self) -> dict[str, float]:
        """The numbers that a checkpoint needs to continue with the same scale."""
        return {"value": self.value, "good": self.good, "skipped": self.skipped}

    def restore(self, state: dict[str, float]) -> None:
        """Sets what `state` returned."""
        self.value, self.good, self.skipped = state["value"], int(state["good"]), int(state["skipped"])
