"""What each layer takes under each way to split it over a mesh of dp x tp devices, for one micro-batch.

The ways are those that the engine knows. `data`: the samples over all devices. `column-row`: the samples over dp, each
pair of matrices by columns and rows over tp (Shoeybi et al. 2019), and `vocab` the same of embedding and head.
`replicated`: the samples over dp, and every device of tp computes the same. Between a layer whose samples lie over all
devices and one whose samples lie over dp alone stands a gather over tp, forward or backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

from pydantic import ValidationError

from parallel_core.outline import UnitCost, outline_of
from parallel_core.plan.units import boundary_elements, unit_costs
from parallel_core.profile.table import CostTable
from parallel_core.simulate.predict import CannotPredict
from parallel_core.simulate.stage_costs import unit_times
from parallel_core.spec import BYTES_PER_ELEMENT, MAIN_BYTES, RunSpec

Strategy = Literal["data", "column-row", "vocab", "replicated"]
_MOMENTS = 2


@dataclass(frozen=True, slots=True)
class Way:
    """A layer split one way: seconds of a micro-batch forward and backward, seconds a step to sum its gradients, bytes
    a device of parameters with all that belongs to them and of one micro-batch's activations."""

    strategy: Strategy
    seconds: float
    sync: float
    state: float
    activations: float
    weights: float = 0.0
    """Bytes of its parameters alone."""

    @property
    def spread(self) -> bool:
        """Its samples lie over all devices of the mesh."""
        return self.strategy == "data"


class Machine(Protocol):
    """Seconds of what a mesh does. Widths that cannot be raise CannotPredict."""

    def layers(self, spec: RunSpec) -> Sequence[float]:
        """Of each layer, forward and backward of a micro-batch of `spec`, its tensor collectives included."""

    def all_reduce(self, ranks: int, size: float) -> float:
        """Of a tensor of `size` bytes."""

    def gather(self, ranks: int, size: float) -> float:
        """The same, of a tensor that is whole afterwards."""

    def send(self, size: float) -> float:
        """To another mesh."""


@dataclass(frozen=True)
class Measured:
    """What a CostTable says."""

    table: CostTable

    def layers(self, spec: RunSpec) -> Sequence[float]:
        return unit_times(spec, self.table)

    def all_reduce(self, ranks: int, size: float) -> float:
        link = self.table.link("all_reduce", ranks)
        return link.time.at(size) if link and ranks > 1 else 0.0

    def gather(self, ranks: int, size: float) -> float:
        link = self.table.link("all_gather", ranks)
        return link.time.at(size) if link and ranks > 1 else 0.0

    def send(self, size: float) -> float:
        link = self.table.link("send", 2)
        return link.time.at(size) if link else 0.0


@dataclass(frozen=True)
class Analytic:
    """A device by its rate: `flops` it really reaches a second, links of `alpha` seconds and `bandwidth` bytes/s inside
    a host of `per_host` devices, `network` between hosts. Collectives on a ring (Patarasuk and Yuan 2009)."""

    flops: float
    bandwidth: float
    network: float
    per_host: int
    alpha: float = 1e-5

    def layers(self, spec: RunSpec) -> Sequence[float]:
        samples, tp = spec.micro_batch_size, spec.parallel.tp
        edges = [*boundary_elements(spec)[1:], 0]
        each = [3 * flops * samples / tp / self.flops for flops in outline_of(spec.model).flops()]
        sums = [2 * self.all_reduce(tp, size * spec.element_bytes) for size in edges]
        return [compute + talk for compute, talk in zip(each, sums, strict=True)]

    def all_reduce(self, ranks: int, size: float) -> float:
        return 2 * self.gather(ranks, size)

    def gather(self, ranks: int, size: float) -> float:
        rate = self.bandwidth if ranks <= self.per_host else self.network
        return (ranks - 1) * (self.alpha + size / ranks / rate) if ranks > 1 else 0.0

    def send(self, size: float) -> float:
        return self.alpha + size / self.network


class LayerCosts:
    """All layers of `spec`'s model for micro-batches of `samples` on a `machine`."""

    def __init__(self, spec: RunSpec, machine: Machine, samples: int) -> None:
        self.spec, self.machine, self.samples = spec, machine, samples
        self.units = spec.model.units()
        self._size, self._main = BYTES_PER_ELEMENT[spec.train.precision], MAIN_BYTES[spec.train.precision]
        self._edges = boundary_elements(self._alone(1, 1))
        self.ways = lru_cache(maxsize=None)(self._ways)

    def _alone(self, samples: int, tp: int) -> RunSpec:
        """One mesh's part of a micro-batch as a run of its own. Raises ValidationError."""
        train = self.spec.train.model_dump() | {"global_batch": samples}
        parallel = {"tp": tp, "recompute": self.spec.parallel.recompute}
        return RunSpec.model_validate({"model": self.spec.model.model_dump(), "parallel": parallel, "train": train})

    def _ways(self, dp: int, tp: int) -> list[list[Way]] | None:
        """The ways of each layer on a mesh of dp x tp; None where it cannot share out the samples at all."""
        samples, over = divmod(self.samples, dp)
        if over or not samples:
            return None
        found: list[list[Way]] = [[] for _ in self.units]
        if tp == 1:
            self._add(found, "data", samples, 1, dp)
            return found
        with suppress(ValidationError, CannotPredict):  # the width does not divide the model, or was not profiled
            self._add(found, "column-row", samples, tp, dp)
        if samples % tp == 0:
            self._add(found, "data", samples // tp, 1, dp * tp)
        self._add(found, "replicated", samples, 1, dp)
        return found

    def _add(self, found: list[list[Way]], strategy: Strategy, samples: int, tp: int, replicas: int) -> None:
        spec = self._alone(samples, tp)
        last = len(self.units) - 1
        costs = zip(self.machine.layers(spec), unit_costs(spec), strict=True)
        for unit, (seconds, cost) in enumerate(costs):
            named: Strategy = "vocab" if strategy == "column-row" and unit in (0, last) else strategy
            found[unit].append(self._way(named, seconds, cost, replicas))

    def _way(self, strategy: Strategy, seconds: float, cost: UnitCost, replicas: int) -> Way:
        states = _MOMENTS + (self._size != self._main)
        return Way(
            strategy,
            seconds,
            self.machine.all_reduce(replicas, self._main * cost.flat),
            cost.flat * (self._size + self._main * (1 + states)),
            self._size * (cost.boundary + cost.inner),
            self._size * cost.flat,
        )

    def boundary(self, unit: int) -> float:
        """Bytes of a micro-batch's input of layer `unit`, whole; 0 before the first and behind the last."""
        return float(self._edges[unit] * self.samples * self._size) if unit < len(self._edges) else 0.0

    def reshard(self, unit: int, dp: int, tp: int) -> float:
        """Seconds of the gather between layers `unit` - 1 and `unit` where one is spread and the other is not."""
        return self.machine.gather(tp, self.boundary(unit) / dp)

    def message(self, unit: int, dp: int) -> float:
        """Seconds of a micro-batch's input of layer `unit` from another mesh, and its gradient back."""
        return 2 * self.machine.send(self.boundary(unit) / dp) if unit else 0.0
