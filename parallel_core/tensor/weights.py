"""Weight gradients of linear layers, computed at once or later: splits a backward into B (input) and W (weights).

Qi et al. 2024a, "Zero Bubble Pipeline Parallelism", section 2: the previous stage waits for the gradient of a linear
layer's input; nothing waits for that of its weight. Layers hand in the pair (input, output gradient). Whether it is
multiplied at once or in W, the same product is added to the same sum, so a schedule that keeps the order of
micro-batches gets the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor, nn

from parallel_core.observe.scope import Scope


class WeightGradient(NamedTuple):
    """The factors of one layer's weight gradient: `x` [..., in] and `grad` [..., out]."""

    x: Tensor
    grad: Tensor
    weight: nn.Parameter
    bias: nn.Parameter | None


class WeightGradients:
    """Collects the weight gradients of a rank's linear layers. `listener` is called with each parameter whose sum was
    added to."""

    def __init__(self, scope: Scope) -> None:
        self.anchor = torch.zeros((), requires_grad=True)
        """A second input of each layer, so that its backward runs even where its data needs no gradient."""
        self.listener: Callable[[nn.Parameter], None] | None = None
        self.sums: Callable[[nn.Parameter], Tensor] = attrgetter("grad")
        """Returns the tensor that a parameter's gradient is added to; by default `.grad`, a view of the flat buffer."""
        self._scope = scope
        self._put_off: list[WeightGradient] | None = None

    @property
    def putting_off(self) -> bool:
        """Whether `put_off` is active."""
        return self._put_off is not None

    def hand_in(self, given: WeightGradient) -> None:
        """Adds the gradients to the sums of weight and bias; inside `put_off`, keeps the factors instead."""
        if self._put_off is None:
            self.add(given)
            return
        # Detached, since their graphs would keep the segment's input alive: the loss reuses the logits as gradient.
        given = given._replace(x=given.x.detach(), grad=given.grad.detach())
        self._put_off.append(given)
        for kept in (given.x, given.grad):
            self._scope.kept(kept)

    def add(self, given: WeightGradient) -> None:
        """Adds grad^T x to the weight's sum, in one kernel where dtypes agree, and the sum of grad to the bias's.

        Called where no graph is recorded: inside of a backward, or under `torch.no_grad`.
        """
        self._scope.moved()
        x, grad, weight, bias = given
        rows, total, tell = grad.flatten(0, -2), self.sums(weight), self.listener
        alike = total.dtype is rows.dtype
        if alike:
            total.addmm_(rows.t(), x.flatten(0, -2))
        elif rows.is_cuda:  # 16-bit factors accumulated in fp32 by one kernel, which only CUDA has
            torch.addmm(total, rows.t(), x.flatten(0, -2), out_dtype=total.dtype, out=total)
        else:
            total.add_(rows.t() @ x.flatten(0, -2))
        if tell is not None:
            tell(weight)
        if bias is not None:
            self.sums(bias).add_(rows.sum(0) if alike else rows.sum(0, dtype=total.dtype))
            if tell is not None:
                tell(bias)

    @contextmanager
    def put_off(self) -> Iterator[list[WeightGradient]]:
        """Keeps the factors handed in inside the context in the yielded list, for a later `add`."""
        kept: list[WeightGradient] = []
        self._put_off = kept
        try:
            yield kept
        finally:
            self._put_off = None
