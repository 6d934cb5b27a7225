"""AdamW (Loshchilov and Hutter 2019) as one fused kernel over one flat buffer.

In 16-bit runs it moves an fp32 master copy of the weights, and the parameters are rounded from that (Micikevicius et
al. 2018, section 3.1): small updates would otherwise be lost in the rounding.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from parallel_core.engine.flat import FlatParameters
from parallel_core.spec import TrainSpec


class FlatAdamW:
    """Updates `flat.values` from `flat.grads`; decays every parameter, as torch.optim.AdamW does by default.

    It calls the kernel of `torch.optim.AdamW(fused=True)` itself: importing torch.optim costs two seconds the first
    time, and there is one tensor here.
    """

    def __init__(self, flat: FlatParameters, train: TrainSpec) -> None:
        self._flat, self._train = flat, train
        self.main = flat.values if flat.values.dtype == flat.grads.dtype else flat.values.to(flat.grads.dtype)
        """What is updated: the parameters themselves, or their master copy."""
        self.mean = torch.zeros_like(flat.grads)
        self.square = torch.zeros_like(flat.grads)
        self._steps = torch.zeros((), dtype=torch.float32, device=flat.values.device)

    def state(self) -> list[torch.Tensor]:
        """The flat buffers that it keeps beside parameters and gradients."""
        own = [] if self.main is self._flat.values else [self.main]
        return [*own, self.mean, self.square]

    def buffers(self) -> dict[str, tuple[int, Tensor]]:
        """What a checkpoint keeps, by kind: (first element, memory) of what is laid out like `flat.values`."""
        own = {} if self.main is self._flat.values else {"main": (0, self.main)}
        return {**own, "mean": (0, self.mean), "square": (0, self.square)}

    def scalars(self) -> dict[str, float]:
        """The numbers that a checkpoint keeps; the same on every rank."""
        return {"steps": float(self._steps)}

    def load_scalars(self, saved: Mapping[str, float]) -> None:
        """Raises KeyError where one is missing."""
        self._steps.fill_(saved["steps"])

    @torch.no_grad()
    def step(self, factor: float = 1.0) -> None:
        """One update by the gradients times `factor`, by which they are multiplied in place."""
        train = self._train
        if factor != 1.0:
            self._flat.grads.mul_(factor)
        self._steps += 1
        torch._fused_adamw_(
            [self.main],
            [self._flat.grads],
            [self.mean],
            [self.square],
            [],
            [self._steps],
            lr=train.lr,
            beta1=train.beta1,
            beta2=train.beta2,
            weight_decay=train.weight_decay,
            eps=train.eps,
            amsgrad=False,
            maximize=False,
        )
        if self.main is not self._flat.values:
            self._flat.values.copy_(self.main)
