"""Inside a stage: the way to split each layer so that the stage is fastest and fits (Zheng et al. 2022, section 4).

Equation 1 for a chain of layers: each layer takes one sharding at its own cost, and each pair of neighbours adds the
cost of resharding the tensor between them. Without a memory limit, dynamic programming along the chain is exact; with
one it is the paper's integer linear programme, solved by HiGHS (Huangfu and Hall 2018).

The limit is equation 5: mem_stage + s mem_act <= mem_device, with s micro-batches in flight. mem_stage is the state and
what a backward needs beside the activations: its temporaries, and the block that it computes again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from parallel_core.plan.alpa.costs import LayerSharding


@dataclass(frozen=True)
class Chain:
    """The layers of a stage: `shardings` of each; `reshard[i]` = seconds between layers i and i + 1 if exactly one of
    them is spread. Gradients are all-reduced once every `per_step` micro-batches."""

    shardings: Sequence[Sequence[LayerSharding]]
    reshard: Sequence[float]
    per_step: int
    entry: tuple[float, float] = (0.0, 0.0)
    """Seconds until the first layer has its input: (unsharded, spread over all devices)."""
    blocks: Sequence[str] = ()
    """The block of each layer: what is recomputed of consecutive layers of one block exists together. () = each layer
    is one."""

    def cost(self, sharding: LayerSharding) -> float:
        """Seconds of one micro-batch, with its share of the gradient all-reduce."""
        return sharding.seconds + sharding.sync / self.per_step

    def before(self, sharding: LayerSharding) -> float:
        """Seconds to bring in the input of the first layer if it takes this sharding."""
        return self.entry[sharding.spread]

    def between(self, i: int, a: LayerSharding, b: LayerSharding) -> float:
        """Seconds to reshard between layers `i` and `i` + 1 with shardings a and b."""
        return self.reshard[i] if a.spread != b.spread else 0.0

    def seconds(self, chosen: Sequence[LayerSharding]) -> float:
        """Seconds of one micro-batch with these shardings, one for each layer."""
        turns = sum(self.between(i, a, b) for i, (a, b) in enumerate(pairwise(chosen)))
        return self.before(chosen[0]) + sum(map(self.cost, chosen)) + turns

    def continues(self, i: int) -> bool:
        """Whether layer `i` is in the block of the layer before it."""
        return bool(i and self.blocks) and self.blocks[i] == self.blocks[i - 1]

    def memory(self, chosen: Sequence[LayerSharding], in_flight: int) -> float:
        """Bytes a device at the peak of a backward while the activations of `in_flight` micro-batches are kept
        (equation 5), without messages to other stages. While a layer runs backward, the layers behind it have freed
        what they kept of this micro-batch."""
        worst = kept = again = 0.0
        for i, sharding in enumerate(chosen):
            kept += sharding.activations
            again = sharding.rebuilt + (again if self.continues(i) else 0.0)
            worst = max(worst, kept + again + sharding.working)
        return sum(sharding.state + (in_flight - 1) * sharding.activations for sharding in chosen) + worst


Solver = Callable[[Chain, float, int], list[LayerSharding] | None]
"""A function like `solve`."""


def fastest(chain: Chain) -> list[LayerSharding]:
    """The shardings with the least time, without a memory limit: dynamic programming along the chain."""
    best: list[tuple[float, list[LayerSharding]]] = [
        (chain.before(sharding) + chain.cost(sharding), [sharding]) for sharding in chain.shardings[0]
    ]
    for i, shardings in enumerate(chain.shardings[1:]):
        best = [
            min(
                (
                    (t + chain.between(i, kept[-1], sharding) + chain.cost(sharding), [*kept, sharding])
                    for t, kept in best
                ),
                key=lambda found: found[0],
            )
            for sharding in shardings
        ]
    return min(best, key=lambda found: found[0])[1]


def solve(chain: Chain, limit: float, in_flight: int) -> list[LayerSharding] | None:
    """The fastest shardings that need at most `limit` bytes a device, None where there are none, by the integer linear
    programme: a 0/1 vector for each layer and a matrix for each pair of neighbours, whose rows and columns sum to the
    vectors (equation 1, linearised as in section 4.2)."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # slow to import, and only needed where memory is short

    programme = _Programme(chain)
    rows, low, high = programme.rows()
    needs, scale = programme.needs(in_flight), max(limit, 1.0)
    found = milp(
        programme.costs(),
        constraints=[LinearConstraint(rows, low, high), LinearConstraint(needs / scale, -np.inf, limit / scale)],
        integrality=[1] * programme.singles + [0] * programme.pairs,
        bounds=Bounds(0, 1),
    )
    if found.x is None:
        return None
    return [
        shardings[int(np.argmax(found.x[a:b]))]
        for shardings, (a, b) in zip(chain.shardings, programme.spans, strict=True)
    ]


def within(chain: Chain, limit: float, in_flight: int, by: Solver = solve) -> list[LayerSharding] | None:
    """As `by`, which is not asked where the fastest shardings of all fit, or none can."""
    chosen = fastest(chain)
    if chain.memory(chosen, in_flight) <= limit:
        return chosen
    return by(chain, limit, in_flight) if _Programme(chain).least(in_flight) <= limit else None


class _Programme:
    """Variables of the integer linear programme: shardings of each layer in order, then of each pair of neighbours."""

    def __init__(self, chain: Chain) -> None:
        edges = np.cumsum([0, *map(len, chain.shardings)]).tolist()
        self._chain, self.spans = chain, list(pairwise(edges))
        self.singles = edges[-1]
        sizes = [len(a) * len(b) for a, b in pairwise(chain.shardings)]
        self._firsts = np.cumsum([self.singles, *sizes]).tolist()
        self.pairs = sum(sizes)

    def costs(self) -> list[float]:
        chain = self._chain
        out = [chain.cost(sharding) for shardings in chain.shardings for sharding in shardings]
        out[: len(chain.shardings[0])] = [
            chain.before(sharding) + chain.cost(sharding) for sharding in chain.shardings[0]
        ]
        for i, (here, there) in enumerate(pairwise(chain.shardings)):
            out += [chain.between(i, a, b) for a, b in product(here, there)]
        return out

    def rows(self) -> tuple[np.ndarray, list[float], list[float]]:
        """Constraints (matrix, lower and upper bounds): one sharding a layer; pairs agree with both sides."""
        out, right = [], []
        for a, b in self.spans:
            out.append(self._row(dict.fromkeys(range(a, b), 1.0)))
            right.append(1.0)
        for i, ((a, b), (c, d)) in enumerate(pairwise(self.spans)):
            first, wide = self._firsts[i], d - c
            for k in range(b - a):
                out.append(self._row({**{first + k * wide + n: 1.0 for n in range(wide)}, a + k: -1.0}))
            for n in range(wide):
                out.append(self._row({**{first + k * wide + n: 1.0 for k in range(b - a)}, c + n: -1.0}))
            right += [0.0] * (b - a + wide)
        return np.array(out), right, right

    def needs(self, in_flight: int) -> np.ndarray:
        """`Chain.memory` as one row for the backward of each layer: bytes a device of each variable."""
        chain, count = self._chain, len(self._chain.shardings)
        rows, first = np.zeros((count, self.singles + self.pairs)), 0
        for i in range(count):
            first = first if chain.continues(i) else i
            for j, (shardings, (a, b)) in enumerate(zip(chain.shardings, self.spans, strict=True)):
                rows[i, a:b] = [
                    one.state
                    + (in_flight - (j > i)) * one.activations
                    + (first <= j <= i) * one.rebuilt
                    + (i == j) * one.working
                    for one in shardings
                ]
        return rows

    def least(self, in_flight: int) -> float:
        """Bytes a device that any choice needs at least."""
        firsts = [a for a, _ in self.spans]
        return float(np.minimum.reduceat(self.needs(in_flight)[:, : self.singles], firsts, axis=1).sum(axis=1).max())

    def _row(self, entries: dict[int, float]) -> np.ndarray:
        row = np.zeros(self.singles + self.pairs)
        for i, value in entries.items():
            row[i] = value
        return row
