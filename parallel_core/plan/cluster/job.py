"""What to train and with which software: everything that a plan does not choose."""

from __future__ import annotations

from dataclasses import dataclass, field

from parallel_core.plan.cluster.model import Transformer
from parallel_core.plan.cluster.problems import Problems

MOST_BATCH = 1 << 20


@dataclass(frozen=True, slots=True)
class Software:
    """Optimizations of an implementation besides the layout; the defaults are those of Megatron-LM since 2023.

    - `flash`: attention without its s x s matrices (Dao et al. 2022)
    - `fused_gradients`: weight gradients are accumulated inside the matrix product
    - `overlap_tp`: tensor-parallel collectives of the backward overlap with weight gradients
    - `overlap_pp`: messages between stages overlap with compute where the schedule leaves time (`messages`)
    - `overlap_dp`: the gradient reduction overlaps with the last backward
    """

    flash: bool = True
    fused_gradients: bool = True
    overlap_tp: bool = True
    overlap_pp: bool = True
    overlap_dp: bool = True


MEGATRON_2021 = Software(False, False, False, False, False)
"""Narayanan et al. 2021b: nothing is overlapped, gradients are accumulated by a kernel of their own."""
MEGATRON_2022 = Software(False, True, True, False, False)
"""Korthikanti et al. 2022: collectives overlap weight gradients (section 6.2), gradients are accumulated in place."""


@dataclass(frozen=True, slots=True)
class Job:
    """`batch`: sequences of a step over all replicas. `adapters`: rank of low-rank adapters, the only trained
    parameters of an otherwise frozen model (Hu et al. 2021); 0: the whole model is trained."""

    model: Transformer
    batch: int
    software: Software = field(default_factory=Software)
    adapters: int = 0

    @property
    def trained(self) -> float:
        """Trained elements as a share of a layer's own elements."""
        own = self.model.layer_matrices + self.model.layer_vectors
        return self.model.adapter(self.adapters) / own if self.adapters else 1.0

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch * self.model.seq

    def problems(self) -> dict[str, str]:
        """`{field: message}` for impossible values."""
        found = Problems()
        found.whole("batch", self.batch, 1, MOST_BATCH)
        model = self.model.problems()
        if "hidden" not in model:
            found.whole("adapters", self.adapters, 0, self.model.hidden)
        return {**model, **found.messages}
