"""AdamW (Loshchilov and Hutter 2019) as one fused kernel over flat buffers.

In 16-bit runs it updates an fp32 master copy of the weights, from which the parameters are rounded (Micikevicius et
al. 2018, section 3.1): small updates would otherwise be lost in rounding. Under ZeRO (Rajbhandari et al. 2020,
section 5.1) moments and master weights exist only for the part of each bucket that this replica owns, and only that
part is updated.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from parallel_core.engine.flat import FlatParameters, Pieces
from parallel_core.spec import TrainSpec


class FlatAdamW:
    """Updates `flat.values` from the gradients `flat.mine`; decays every parameter, as torch.optim.AdamW does by
    default.

    It calls the kernel of `torch.optim.AdamW(fused=True)` directly: importing torch.optim takes two seconds the first
    time, and there are few tensors here.
    """

    def __init__(self, flat: FlatParameters, train: TrainSpec) -> None:
        self._train = train
        self.lr = train.lr
        """Learning rate of the next step."""
        self._firsts = [owned.start for owned in flat.owned]
        self._values = list(flat.held)
        self._grads = list(flat.mine)
        sizes = [len(grad) for grad in self._grads]
        self.mean = torch.zeros(sum(sizes), dtype=flat.grads.dtype, device=flat.grads.device)
        """First moment of the owned elements, slice after slice of `flat.owned`; likewise `square` and `main`."""
        self.square = torch.zeros_like(self.mean)
        self._moments = self.mean.split(sizes), self.square.split(sizes)
        self.main: Tensor | None = None
        """Master weights; None where the parameters themselves are updated."""
        if flat.values.dtype != flat.grads.dtype:
            self.main = torch.empty_like(self.mean)
        self._targets = self._values if self.main is None else self.main.split(sizes)
        if self.main is not None:  # slice by slice: a copy of all values would be a peak that no step has
            torch._foreach_copy_(list(self._targets), self._values)
        self._steps = torch.zeros((), dtype=torch.float32, device=flat.values.device)

    def state(self) -> list[Tensor]:
        """Returns the flat buffers that it keeps in addition to parameters and gradients."""
        return [buffer for buffer in (self.main, self.mean, self.square) if buffer is not None]

    def buffers(self) -> dict[str, Pieces]:
        """Returns the buffers that a checkpoint saves, by kind."""
        kinds = {"main": self._targets if self.main is not None else (), "mean": self._moments[0]}
        kinds["square"] = self._moments[1]
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
        train, divisor = self._train, self._divisor(factor)
        skipped = skip.float() if isinstance(skip, Tensor) else None
        self._steps += 1 if skipped is None else 1 - skipped
        torch._fused_adamw_(
            list(self._targets),
            self._grads,
            list(self._moments[0]),
            list(self._moments[1]),
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
        if self.main is not None:
            torch._foreach_copy_(self._values, list(self._targets))

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
