"""Cost of each layer for one micro-batch, for every way to split it over a mesh of dp x tp devices.

The shardings are those that the engine can run:
- `data`: the samples are divided over all devices.
- `column-row`: the samples are divided over dp, each pair of matrices by columns and rows over tp (Shoeybi et al.
  2019); `vocab` is the same for embedding and head.
- `columns`: all matrices by columns, outputs are gathered (`tensor.columns`).
- `sequence`: column-row, and the activations that it leaves whole are divided by rows over tp (Korthikanti et al.
  2022).
- `replicated`: the samples are divided over dp, and all tp devices compute the same.

Between a layer whose samples or rows are divided over all devices and one whose samples are divided over dp only there
is an all-gather over tp, in the forward or in the backward. Where tp divides the samples, the rows of a rank are its
samples, so nothing moves between `data` and `sequence`.

Bytes are those of the spec's optimizer. The time of its update is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol

from pydantic import ValidationError

from parallel_core.outline import UnitCost, block_of, outline_of
from parallel_core.outline.recompute import rebuilt, recompute_fields
from parallel_core.outline.splits import Cut, cut_fields
from parallel_core.plan.strategy import step_flops
from parallel_core.plan.traffic import unit_volumes
from parallel_core.plan.units import boundary_elements, unit_costs
from parallel_core.profile.curves import What
from parallel_core.profile.table import CostTable
from parallel_core.simulate.cost_requirements import CannotPredict
from parallel_core.simulate.stage_costs import unit_times
from parallel_core.spec import BYTES_PER_ELEMENT, MAIN_BYTES, RunSpec

Strategy = Literal["data", "column-row", "vocab", "columns", "sequence", "replicated"]
CUTS: dict[Cut, tuple[Strategy, ...]] = {
    "pairs": ("column-row", "vocab"),
    "columns": ("columns",),
    "sequence": ("sequence",),
}
"""Strategies that the layers of a run can have, by how the run cuts its layers over a tensor group."""


@dataclass(frozen=True, slots=True)
class LayerSharding:
    """One layer split in one way: seconds of one micro-batch (forward and backward), seconds a step to all-reduce its
    gradients (`sync`), bytes a device of parameters, gradients and optimizer state (`state`) and of one micro-batch's
    activations."""

    strategy: Strategy
    seconds: float
    sync: float
    state: float
    activations: float
    weights: float = 0.0
    """Bytes a device of the parameters alone."""
    entering: float = 0.0
    """Bytes a device of its input in one micro-batch."""
    rebuilt: float = 0.0
    """Bytes a device that it does not keep of a micro-batch and that its block's backward computes again."""
    working: float = 0.0
    """Bytes a device of temporaries while its backward runs: gradients of activations, a weight gradient before it is
    added, the loss, a recomputed attention core."""

    @property
    def spread(self) -> bool:
        """Whether its samples, or rows, are divided over all devices of the mesh."""
        return self.strategy in ("data", "sequence")

    def first(self) -> LayerSharding:
        """The same sharding in the first layer of a stage, which keeps its input even where it is recomputed."""
        more = self.entering - self.activations
        return self if more <= 0 else replace(self, activations=self.entering, rebuilt=self.rebuilt - more)


class Machine(Protocol):
    """Seconds of a mesh's operations. Methods raise CannotPredict for widths that the machine cannot price."""

    def layers(self, spec: RunSpec) -> Sequence[float]:
        """Seconds of each layer: forward and backward of a micro-batch of `spec`, with tensor collectives."""

    def all_reduce(self, ranks: int, size: float, stride: int = 1) -> float:
        """Seconds to all-reduce a tensor of `size` bytes over ranks that are `stride` devices apart."""

    def gather(self, ranks: int, size: float) -> float:
        """Seconds to all-gather a tensor; `size` = bytes of the gathered tensor."""

    def send(self, size: float, inside: bool) -> float:
        """Seconds to send `size` bytes to another mesh; `inside`: all meshes are on one host."""


@dataclass(frozen=True)
class Measured:
    """Prices from a measured CostTable."""

    table: CostTable

    def layers(self, spec: RunSpec) -> Sequence[float]:
        return unit_times(spec, self.table)

    def all_reduce(self, ranks: int, size: float, stride: int = 1) -> float:
        return self._collective("all_reduce", ranks, size)

    def gather(self, ranks: int, size: float) -> float:
        return self._collective("all_gather", ranks, size)

    def _collective(self, what: What, ranks: int, size: float) -> float:
        link = self.table.link(what, ranks)
        return link.collective(ranks, size)[0] if link else 0.0

    def send(self, size: float, inside: bool) -> float:
        link = self.table.link("send", 2)
        return link.time.at(size) if link else 0.0


@dataclass(frozen=True)
class Analytic:
    """Prices from rates: `flops` a device reaches per second, links with `alpha` seconds of latency and `bandwidth`
    bytes/s inside a host of `per_host` devices, `network` bytes/s of each device's share of the network between hosts.
    Ring collectives (Patarasuk and Yuan 2009): a ring that leaves its host uses the shares of all its ranks in there,
    as in `cluster.efficiency`."""

    flops: float
    bandwidth: float
    network: float
    per_host: int
    alpha: float = 1e-5

    def layers(self, spec: RunSpec) -> Sequence[float]:
        samples, tp = spec.micro_batch_size, spec.parallel.tp
        each = [flops * samples / tp / self.flops for flops in step_flops(spec)]
        if tp == 1:
            return each
        position = samples * spec.model.seq * spec.element_bytes
        talks = [
            sum(self.all_reduce(tp, position * width) for width in talk.sums.of_step(again))
            + sum(self.gather(tp, position * width) for width in talk.moved.of_step(again))
            for talk, again in zip(unit_volumes(spec), rebuilt(spec.parallel, spec.model.units()), strict=True)
        ]
        return [compute + talk for compute, talk in zip(each, talks, strict=True)]

    def all_reduce(self, ranks: int, size: float, stride: int = 1) -> float:
        return 2 * self.gather(ranks, size, stride)

    def gather(self, ranks: int, size: float, stride: int = 1) -> float:
        local = max(1, min(ranks, self.per_host // stride))
        rate = self.bandwidth if local == ranks else min(self.bandwidth, self.network * local)
        return (ranks - 1) * (self.alpha + size / ranks / rate) if ranks > 1 else 0.0

    def send(self, size: float, inside: bool) -> float:
        return self.alpha + size / (self.bandwidth if inside else self.network)


class Replicas(NamedTuple):
    """`ranks` with the same parameters, `stride` devices apart: ranks of a tensor group are neighbours."""

    ranks: int
    stride: int = 1


class LayerCosts:
    """Costs of all layers of `spec`'s model on a `machine`, for micro-batches of `samples` samples."""

    def __init__(self, spec: RunSpec, machine: Machine, samples: int) -> None:
        self.spec, self.machine, self.samples = spec, machine, samples
        self.units = spec.model.units()
        self._size, self._main = BYTES_PER_ELEMENT[spec.train.precision], MAIN_BYTES[spec.train.precision]
        self._edges = [math.prod(shape) if shape else 0 for shape in outline_of(spec.model).boundaries()]
        self.shardings = lru_cache(maxsize=None)(self._shardings)

    def _alone(self, samples: int, tp: int, cut: Cut = "pairs") -> RunSpec:
        """One mesh's share of a micro-batch as a run of its own. Raises ValidationError."""
        train = self.spec.train.model_dump() | {"global_batch": samples}
        parallel = {"tp": tp, **recompute_fields(self.spec.parallel), **cut_fields(cut)}
        return RunSpec.model_validate({"model": self.spec.model.model_dump(), "parallel": parallel, "train": train})

    def _shardings(self, dp: int, tp: int) -> list[list[LayerSharding]] | None:
        """Ways of each layer on a mesh of dp x tp; None if dp does not divide the samples, or no run has such a share,
        as with a single sample for a batch norm."""
        samples, over = divmod(self.samples, dp)
        if over or not samples:
            return None
        found: list[list[LayerSharding]] = [[] for _ in self.units]
        if tp == 1:
            self._add(found, "data", samples, 1, Replicas(dp))
            return found if all(found) else None
        for cut in CUTS:
            with suppress(CannotPredict):  # the width was not profiled
                self._add(found, CUTS[cut][0], samples, tp, Replicas(dp, tp), cut)
        if samples % tp == 0:
            self._add(found, "data", samples // tp, 1, Replicas(dp * tp))
        self._add(found, "replicated", samples, 1, Replicas(dp, tp))
        return found if all(found) else None

    def _add(
        self,
        found: list[list[LayerSharding]],
        strategy: Strategy,
        samples: int,
        tp: int,
        replicas: Replicas,
        cut: Cut = "pairs",
    ) -> None:
        """Adds a way of each layer; none if no run has such a share."""
        try:
            spec = self._alone(samples, tp, cut)
        except ValidationError:
            return
        last = len(self.units) - 1
        costs, outputs = unit_costs(spec), [*boundary_elements(spec)[1:], 0]
        for unit, (seconds, cost, kept, output) in enumerate(
            zip(self.machine.layers(spec), costs, self._kept(costs), outputs, strict=True)
        ):
            named: Strategy = "vocab" if strategy == "column-row" and unit in (0, last) else strategy
            made = self._sharding(named, seconds, cost, kept, replicas)
            found[unit].append(replace(made, working=self._size * _working(cost, output)))

    def _kept(self, costs: Sequence[UnitCost]) -> list[int]:
        """Elements that each layer keeps of a micro-batch: of a rebuilt block only the input of its first layer."""
        owners = [block_of(unit) for unit in self.units]
        firsts = [owner != before for before, owner in pairwise([None, *owners])]
        again = rebuilt(self.spec.parallel, self.units)
        return [
            cost.boundary * first if twice else cost.boundary + cost.inner
            for cost, first, twice in zip(costs, firsts, again, strict=True)
        ]

    def _sharding(
        self, strategy: Strategy, seconds: float, cost: UnitCost, kept: int, replicas: Replicas
    ) -> LayerSharding:
        states = self.spec.train.optimizer_states + (self._size != self._main)
        return LayerSharding(
            strategy,
            seconds,
            self.machine.all_reduce(replicas.ranks, self._main * cost.flat, replicas.stride),
            cost.flat * (self._size + self._main * (1 + states)),
            self._size * kept,
            self._size * cost.flat,
            self._size * cost.boundary,
            self._size * (cost.boundary + cost.inner - kept),
        )

    def boundary(self, unit: int) -> float:
        """Bytes of one micro-batch's unsharded input of layer `unit`; 0 for the first layer and the end of the
        model."""
        return float(self._edges[unit] * self.samples * self._size) if unit < len(self._edges) else 0.0

    def reshard(self, unit: int, dp: int, tp: int) -> float:
        """Seconds of the all-gather between layers `unit` - 1 and `unit` if exactly one of them is `spread`."""
        return self.machine.gather(tp, self.boundary(unit) / dp)

    def message(self, unit: int, shares: int, inside: bool) -> float:
        """Seconds to receive one of `shares` equal parts of layer `unit`'s input from another mesh and to return its
        gradient; 0 for the first layer. `inside`: all meshes are on one host."""
        return 2 * self.machine.send(self.boundary(unit) / shares, inside) if unit else 0.0


def _working(cost: UnitCost, output: int) -> int:
    """Elements of temporaries in the backward of a layer with `output` elements of output, the gradient of which exists
    until its end."""
    gradient = max(0, output - cost.outgoing) + cost.leaving
    return cost.core + max(cost.passing, cost.loss, cost.drawn) + gradient


def uniform(sharding: LayerSharding, tp: int, cut: Cut) -> bool:
    """Whether a run that cuts all its layers by `cut` splits a layer this way on a mesh of `tp` tensor ranks."""
    return sharding.strategy in (CUTS[cut] if tp > 1 else ("data",))
