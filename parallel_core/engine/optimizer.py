"""AdamW (Loshchilov and Hutter 2019) as one fused kernel over one flat buffer.

In 16-bit runs it moves an fp32 master copy of the weights, and the parameters are rounded from that (Micikevicius et
al. 2018, section 3.1): small updates would otherwise be lost in the rounding.
"""

from __future__ import annotations

import torch

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
