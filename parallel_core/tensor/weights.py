"""Gradients of weights, at once or later: what splits a backward into B (input) and W (weights).

Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 2: the gradient of a linear layer's input is what the stage
before waits for; that of its weight waits for nobody. Layers hand in the pair (input, output gradient). Whether it is
multiplied at once or in W, it is the same product added to the same sum: a schedule that keeps the order of the
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
    """One layer's share of W: `x` (..., in) and `grad` (..., out) are kept until it is added."""

    x: Tensor
    grad: Tensor
    weight: nn.Parameter
    bias: nn.Parameter | None


class WeightGradients:
    """Takes what the linear layers of a rank hand in. `listener` is told of each parameter whose sum has grown."""

    def __init__(self, scope: Scope) -> None:
        self.anchor = torch.zeros((), requires_grad=True)
        """A layer's input beside its data: its backward runs even where the data needs no gradient."""
        self.listener: Callable[[nn.Parameter], None] | None = None
        self.sums: Callable[[nn.Parameter], Tensor] = attrgetter("grad")
        """Where the gradient of a parameter is added: a view of the flat buffer, for the life of the run."""
        self._scope = scope
        self._put_off: list[WeightGradient] | None = None

    @property
    def putting_off(self) -> bool:
        return self._put_off is not None

    def hand_in(self, given: WeightGradient) -> None:
        """Adds it to the sums of weight and bias; inside `put_off`, keeps it instead."""
        if self._put_off is None:
            self.add(given)
            return
        # With their graphs they would hold the segment's input, too: the loss hands back the logits as their gradient.
        given = given._replace(x=given.x.detach(), grad=given.grad.detach())
        self._put_off.append(given)
        for kept in (given.x, given.grad):
            self._scope.kept(kept)

    def add(self, given: WeightGradient) -> None:
        """Weight sum += grad^T x, in one kernel where they have one number type; bias sum += the sum of grad.

        Called where no graph is recorded: inside of a backward, or under `torch.no_grad`.
        """
        x, grad, weight, bias = given
        rows, total, tell = grad.flatten(0, -2), self.sums(weight), self.listener
        alike = total.dtype is rows.dtype
        if alike:
            total.addmm_(rows.t(), x.flatten(0, -2))
        elif rows.is_cuda:  # 16-bit factors, their products and sums in fp32: what no other device has
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
        """What is handed in inside is kept in the list that is given out, for `add`."""
        kept: list[WeightGradient] = []
        self._put_off = kept
        try:
            yield kept
        finally:
            self._put_off = None
