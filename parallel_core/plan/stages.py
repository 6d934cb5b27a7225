"""A chain of layers with given cuts: time of each stage, bytes over each cut, and the slowest stage.

For comparison there are other ways to cut the same chain: Megatron's even split of the blocks, the exact min-max split,
and PipeDream's optimum (`pipedream.partition`). Costs are those of `pipedream.partition`, in either form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from parallel_core.outline import block_of
from parallel_core.outline.recompute import blocks
from parallel_core.plan.layer_graph import GraphLayer
from parallel_core.plan.partition import min_max_cut
from parallel_core.plan.pipedream import Form
from parallel_core.profile.curves import Curve
from parallel_core.profile.table import CostTable, Part

_NS = 1e9


@dataclass(frozen=True)
class CutStage:
    """Layers first .. stop - 1 on `replicas` workers; seconds a micro-batch. `sent`, `parameters`: bytes."""

    first: int
    stop: int
    replicas: int
    compute: float
    seconds: float
    sent: float
    message: float
    parameters: float


@dataclass(frozen=True)
class CutChain:
    """All stages; the slowest stage or message determines the throughput."""

    stages: tuple[CutStage, ...]

    @property
    def cuts(self) -> tuple[int, ...]:
        """First layers of all stages but the first."""
        return tuple(stage.first for stage in self.stages[1:])

    @property
    def replicas(self) -> tuple[int, ...]:
        return tuple(stage.replicas for stage in self.stages)

    @property
    def devices(self) -> int:
        return sum(self.replicas)

    @property
    def seconds(self) -> float:
        """Seconds a micro-batch in steady state."""
        return max(max(stage.seconds, stage.message) for stage in self.stages)

    @property
    def slowest(self) -> int:
        """Index of the slowest stage, messages aside."""
        return max(range(len(self.stages)), key=lambda i: self.stages[i].seconds)

    @property
    def noam(self) -> int:
        """ceil(workers / replicas of the first stage)."""
        return -(-self.devices // self.replicas[0])


def layers_of(table: CostTable, samples: int) -> list[GraphLayer]:
    """The model's layers for micro-batches of so many samples, as measured on a busy host."""
    rows = table.of(1, "none", table.busy) or table.of(1, "none", 1)
    sizes = tuple(float(row.samples) for row in rows)

    def seconds(part: Part, unit: int) -> float:
        return Curve(sizes=sizes, seconds=tuple(row.seconds[part][unit] for row in rows)).at(samples)

    share = samples / table.samples
    return [
        GraphLayer(size.unit, seconds("forward", i), seconds("backward", i), size.boundary * share, size.parameters)
        for i, size in enumerate(table.sizes)
    ]


def cut_chain(
    layers: Sequence[GraphLayer], cuts: Sequence[int], replicas: Sequence[int], bandwidth: float, form: Form = "paper"
) -> CutChain:
    """The chain with these cuts and replicas. Raises ValueError where cuts do not rise within the layers, or stages and
    replicas differ in number."""
    edges = (0, *cuts, len(layers))
    if any(a >= b for a, b in pairwise(edges)):
        raise ValueError(f"cuts must rise strictly within 1 .. {len(layers) - 1}; got {', '.join(map(str, cuts))}.")
    if len(replicas) != len(edges) - 1 or min(replicas) < 1:
        raise ValueError(f"{len(edges) - 1} stages need as many numbers of replicas, each at least 1.")
    shares = _shares(replicas, form)
    stages = zip(pairwise(edges), replicas, shares, strict=True)
    return CutChain(tuple(_stage(layers, a, b, m, bandwidth, form, share) for (a, b), m, share in stages))


def _shares(replicas: Sequence[int], form: Form) -> list[int]:
    """Over how many links the message after each stage is divided. In the released tool over the workers of the next
    stage, or over those of its own if these are fewer; of the first stage these do not count."""
    if form == "paper":
        return [1] * len(replicas)
    following = [*replicas[1:], replicas[-1]]
    return [following[0], *map(min, replicas[1:], following[1:])]


def _stage(
    layers: Sequence[GraphLayer], first: int, stop: int, m: int, bandwidth: float, form: Form, share: int
) -> CutStage:
    own = layers[first:stop]
    compute, parameters = sum(layer.compute for layer in own), sum(layer.parameters for layer in own)
    if form == "paper":
        seconds = max(compute, 2 * (m - 1) * parameters / bandwidth) / m
    else:
        seconds = (compute + 4 * (m - 1) * parameters / (bandwidth * m)) / m
    sent = 0.0 if stop == len(layers) else own[-1].activation
    message = 2 * sent / (bandwidth * share)
    return CutStage(first, stop, m, compute, seconds, sent, message, parameters)


def even_cut(units: Sequence[str], stages: int) -> tuple[int, ...]:
    """Megatron's split: an equal number of blocks on each stage (one more on the first ones where they do not divide).

    Layers before the blocks go with the first stage, those after them with the last. Raises ValueError where there are
    fewer blocks than stages.
    """
    names = blocks(list(units))
    if len(names) < stages:
        raise ValueError(f"{len(names)} blocks cannot be shared out to {stages} stages.")
    whole, more = divmod(len(names), stages)
    counts = [whole + (i < more) for i in range(stages)]
    firsts = [names[sum(counts[:i])] for i in range(1, stages)]
    owners = [block_of(unit) for unit in units]
    return tuple(owners.index(name) for name in firsts)


def balanced_cut(layers: Sequence[GraphLayer], stages: int) -> tuple[int, ...]:
    """The exact min-max split of compute time."""
    return min_max_cut([round(layer.compute * _NS) for layer in layers], stages)
