"""AdamW (Loshchilov and Hutter 2019) as one fused kernel over one flat buffer."""

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
        self.mean = torch.zeros_like(flat.values)
        self.square = torch.zeros_like(flat.values)
        self._steps = torch.zeros((), dtype=torch.float32, device=flat.values.device)

    @torch.no_grad()
    def step(self) -> None:
        train = self._train
        self._steps += 1
        torch._fused_adamw_(
            [self._flat.values],
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
