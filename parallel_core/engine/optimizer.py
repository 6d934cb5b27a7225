"""AdamW (Loshchilov and Hutter 2019) and SGD with momentum (Sutskever et al. 2013), each as one fused kernel over flat
buffers.

In 16-bit runs they update an fp32 master copy of the weights, from which the parameters are rounded (Micikevicius et
al. 2018, section 3.1): small updates would otherwise be lost in rounding. Under ZeRO (Rajbhandari et al. 2020,
section 5.1) states and master weights exist only for the part of each bucket that this replica owns, and only that
part is updated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from parallel_core.engine.flat import FlatParameters, Pieces
from parallel_core.spec import TrainSpec


class FlatOptimizer(ABC):
    """Updates `flat.values` from the gradients `flat.mine`; decays every parameter, as torch.optim does by default.

    It calls the kernels of torch.optim's `fused=True` directly: importing torch.optim takes two seconds the first time,
    and there are few tensors here.
    """

    kinds: ClassVar[tuple[str, ...]]
    """Names of the states, under which a checkpoint saves them."""

    def __init__(self, flat: FlatParameters, train: TrainSpec) -> None:
        self._train = train
        self.lr = train.lr
        """Learning rate of the next step."""
        self._firsts = [owned.start for owned in flat.owned]
        self._values = list(flat.held)
        self._grads = list(flat.mine)
        sizes = [len(grad) for grad in self._grads]
        like = flat.grads
        kept = self.kinds[: train.optimizer_states]
        self._states = {kind: torch.zeros(sum(sizes), dtype=like.dtype, device=like.device) for kind in kept}
        """The states of the owned elements, slice after slice of `flat.owned`; likewise `main`."""
        self._parts = {kind: list(state.split(sizes)) for kind, state in self._states.items()}
        self.main: Tensor | None = None
        """Master weights; None where the parameters themselves are updated."""
        if flat.values.dtype != flat.grads.dtype:
            self.main = torch.empty(sum(sizes), dtype=like.dtype, device=like.device)
        self._targets = self._values if self.main is None else list(self.main.split(sizes))
        if self.main is not None:  # slice by slice: a copy of all values would be a peak that no step has
            torch._foreach_copy_(self._targets, self._values)
        self._steps = torch.zeros((), dtype=torch.float32, device=flat.values.device)

    def state(self) -> list[Tensor]:
        """Returns the flat buffers that it keeps in addition to parameters and gradients."""
        return [*([] if self.main is None else [self.main]), *self._states.values()]

    def buffers(self) -> dict[str, Pieces]:
        """Returns the buffers that a checkpoint saves, by kind."""
        kinds = {"main": self._targets if self.main is not None else [], **self._parts}
        return {kind: tuple(zip(self._firsts, parts, strict=True)) for kind, parts in kinds.items() if parts}

    def scalars(self) -> dict[str, float]:
        """Returns the scalars that a checkpoint saves; the same on every rank that makes the same updates."""
        return {"steps": float(self._steps)}

    def load_scalars(self, saved: Mapping[str, float]) -> None:
        """Restores the scalars. Raises KeyError where one is missing."""
        self._steps.fill_(saved["steps"])

    @torch.no_grad()
    def step(self, factor: float | Tensor = 1.0, skip: bool | Tensor = False) -> None:
        """Makes one update with the gradients multiplied by `factor` (in place), unless `skip`.

        Either may be a tensor without dimensions on the device, for which the host does not wait.
        """
        if skip is True:
            return
        divisor = self._divisor(factor)
        skipped = skip.float() if isinstance(skip, Tensor) else None
        self._steps += 1 if skipped is None else 1 - skipped
        self._update(divisor, skipped)
        if self.main is not None:
            torch._foreach_copy_(self._values, self._targets)

    @abstractmethod
    def _update(self, divisor: Tensor | None, skipped: Tensor | None) -> None:
        """Updates `_targets` from `_grads`, which it divides by `divisor`, unless `skipped` is 1."""

    def _divisor(self, factor: float | Tensor) -> Tensor | None:
        """Multiplies the gradients by `factor` and returns None, or returns the fp32 number by which the kernel of the
        update divides them on its way.

        The latter spares a pass over the gradients. It is not done on a CPU, where both need the same time, nor in
        fp64, for which 32 bits are too few.
        """
        if isinstance(factor, float):
            if factor == 1.0:
                return None
            if not self._steps.is_cpu:
                factor = self._steps.new_full((), factor, dtype=torch.float64)
        if isinstance(factor, float) or self._grads[0].dtype == torch.float64:
            torch._foreach_mul_(self._grads, factor)
            return None
        return factor.reciprocal().float()


class FlatAdamW(FlatOptimizer):
    """AdamW, as torch.optim.AdamW: weight decay shrinks the weights beside the update."""

    kinds = ("mean", "square")

    def _update(self, divisor: Tensor | None, skipped: Tensor | None) -> None:
        train = self._train
        torch._fused_adamw_(
            self._targets,
            self._grads,
            self._parts["mean"],
            self._parts["square"],
            [],
            [self._steps] * len(self._grads),
            lr=self.lr,
            beta1=train.beta1,
            beta2=train.beta2,
            weight_decay=train.weight_decay,
            eps=train.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=divisor,
            found_inf=skipped,
        )


class FlatSGD(FlatOptimizer):
    """SGD with momentum, as torch.optim.SGD without dampening: weight decay is added to the gradient, so the momentum
    contains it. A momentum that begins with zeros gives the same first update as torch's, which begins without one."""

    kinds = ("momentum",)

    def _update(self, divisor: Tensor | None, skipped: Tensor | None) -> None:
        torch._fused_sgd_(
            self._targets,
            self._grads,
            self._parts.get("momentum", []),
            weight_decay=self._train.weight_decay,
            momentum=self._train.momentum,
            lr=self.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
            grad_scale=divisor,
            found_inf=skipped,
        )


def flat_optimizer(flat: FlatParameters, train: TrainSpec) -> FlatOptimizer:
    """Returns the optimizer that `train` names."""
    return (FlatSGD if train.optimizer == "sgd" else FlatAdamW)(flat, train)
