"""Between stages: which layers go to which submesh (Zheng et al. 2022, section 5).

T* = min over stages of (sum of t_i + (B - 1) max t_j) (equation 2). For every candidate t_max, F(s, k, d) is the least
sum of stage times of layers k and later in s stages over d devices, no stage above t_max (equation 3); the best F(s, 0,
all) + (B - 1) t_max is the plan (equation 4). Submeshes are (1, 2^i) inside a host and (n, all) over n hosts; these
tile the cluster (theorem 1 of the paper).
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import combinations, pairwise
from math import inf

import numpy as np

from parallel_core.outline import block_of
from parallel_core.outline.splits import Cut
from parallel_core.plan.alpa.costs import LayerCosts, LayerSharding, uniform
from parallel_core.plan.alpa.intra import Chain, fastest, solve, within
from parallel_core.plan.alpa.programme import Programme, Stage, Table
from parallel_core.searches import ProgressCallback, silent

MOST_GROUPS = 24
"""Most groups of layers between which a stage may begin; layers of deeper models are clustered first (section 5.2)."""
MOST_T_MAX = 128
"""Most values of t_max that are tried, evenly spread over all candidates."""
MOST_MESHES = 3
"""Most stages of a plan whose meshes differ; with more stages there are too many combinations."""
SEARCH_S = 300.0
"""Seconds for the integer linear programmes of a search: they may be thousands, of 30 ms and more. By the clock on the
wall, as the process may get a small part of a core, and whoever waits for it gives up by that clock."""
Shape = tuple[int, Sequence[tuple[int, int]]]
"""Devices of a submesh, and its logical views (dp, tp)."""


@dataclass(frozen=True)
class Plan:
    """Stages in pipeline order; `seconds` of a step with `micro_batches` micro-batches (equation 2)."""

    stages: tuple[Stage, ...]
    micro_batches: int

    @property
    def seconds(self) -> float:
        """The first micro-batch through all stages, then the others at the pace of the slowest one."""
        times = [stage.seconds for stage in self.stages]
        return sum(times) + (self.micro_batches - 1) * max(times)

    @property
    def memory(self) -> float:
        """Bytes a device of the fullest stage."""
        return max(stage.memory for stage in self.stages)

    @property
    def cuts(self) -> tuple[int, ...]:
        """First layers of all stages but the first."""
        return tuple(stage.first for stage in self.stages[1:])


@dataclass(frozen=True)
class Mesh:
    """A cluster of `hosts` hosts with `per_host` devices each; `memory` bytes a device."""

    hosts: int
    per_host: int
    memory: float = inf

    @property
    def devices(self) -> int:
        return self.hosts * self.per_host

    def sizes(self) -> list[int]:
        """Numbers of devices that a submesh may have."""
        inside = [1 << i for i in range(self.per_host.bit_length()) if self.per_host % (1 << i) == 0]
        return sorted({*inside, *(n * self.per_host for n in range(1, self.hosts + 1))})

    def views(self, size: int) -> list[tuple[int, int]]:
        """Logical shapes (dp, tp) of a submesh of `size` devices; tp stays inside a host."""
        return [(size // tp, tp) for tp in range(1, min(size, self.per_host) + 1) if size % tp == 0]


class Search:
    """The search for the fastest plan of one model on one cluster.

    After `limit_s` seconds stages that need an integer linear programme count as too large: then `finished` is False,
    and a faster plan may fit than those found. `on_progress` is told the parts of `best` that are done.
    """

    def __init__(
        self,
        costs: LayerCosts,
        mesh: Mesh,
        micro_batches: int,
        limit_s: float = inf,
        on_progress: ProgressCallback = silent,
    ) -> None:
        self.costs, self.mesh, self.micro_batches = costs, mesh, micro_batches
        self.finished, self._end, self._on_progress = True, time.monotonic() + limit_s, on_progress
        self.edges = _edges(len(costs.units))
        self.chain = lru_cache(maxsize=None)(self._chain)
        self.stage = lru_cache(maxsize=None)(self._stage)

    @cached_property
    def unlimited(self) -> Search:
        """The same search on devices with any memory."""
        return Search(self.costs, replace(self.mesh, memory=inf), self.micro_batches)

    def _chain(
        self, first: int, stop: int, dp: int, tp: int, cut: Cut | None
    ) -> tuple[Chain, list[LayerSharding]] | None:
        """The layers of a stage and the fastest sharding of each; None where samples or matrices do not divide."""
        shardings = self.costs.shardings(dp, tp)
        if shardings is None:
            return None
        able = [
            [sharding for sharding in row if cut is None or uniform(sharding, tp, cut)] for row in shardings[first:stop]
        ]
        if not all(able):
            return None
        able[0] = [sharding.first() for sharding in able[0]]
        turns = [self.costs.reshard(unit, dp, tp) for unit in range(first + 1, stop)]
        inside = self.mesh.hosts == 1
        entry = (self.costs.message(first, dp, inside), self.costs.message(first, dp * tp, inside))
        blocks = [block_of(unit) or unit for unit in self.costs.units[first:stop]]
        chain = Chain(able, turns, self.micro_batches, entry, blocks)
        return chain, fastest(chain)

    def _stage(self, first: int, stop: int, dp: int, tp: int, remaining: int, cut: Cut | None = None) -> Stage | None:
        """Layers first .. stop - 1 on dp x tp as a stage; None where they do not fit the memory or the samples do not
        divide.

        `remaining`: stages from this one to the last, itself included; under 1F1B as many micro-batches are in flight.
        `cut`: all layers are split this way, as in a run of the engine; None: any way.
        """
        made = self.chain(first, stop, dp, tp, cut)
        if made is None:
            return None
        chain, chosen = made
        in_flight = min(remaining, self.micro_batches)
        if chain.memory(chosen, in_flight) > self.mesh.memory:
            shorter = within(chain, self.mesh.memory, in_flight, self._solve)
            if shorter is None:
                return None
            chosen = shorter
        return Stage(first, stop, dp, tp, tuple(chosen), chain.seconds(chosen), chain.memory(chosen, in_flight))

    def _solve(self, chain: Chain, limit: float, in_flight: int) -> list[LayerSharding] | None:
        if time.monotonic() < self._end:
            return solve(chain, limit, in_flight)
        self.finished = False
        return None

    def best(self) -> Plan | None:
        """The fastest plan, with any mesh shapes; None where nothing fits."""
        shapes = [(size, self.mesh.views(size)) for size in self.mesh.sizes()]
        return self._best(shapes, None)

    def even(self) -> Iterator[Plan]:
        """The fastest plan for each (dp, tp) shared by all stages, under each cut that a run may have."""
        total = self.mesh.devices
        for size in (size for size in range(1, total + 1) if total % size == 0):
            for view in self.mesh.views(size):
                for cut in _cuts([view]):
                    found = self._best([(size, [view])], cut)
                    if found is not None:
                        yield found

    def uneven(self) -> Iterator[Plan]:
        """The fastest plan for each sequence of at most MOST_MESHES meshes that are not all alike, under each cut."""
        edges = self.edges[1:-1]
        for shapes in self._rows_of_meshes(self.mesh.devices, MOST_MESHES):
            if len(set(shapes)) == 1 or len(shapes) > len(edges) + 1:
                continue
            before = inf
            for cut in _cuts(shapes):
                made = (self.given(cuts, shapes, cut) for cuts in combinations(edges, len(shapes) - 1))
                best = min((plan for plan in made if plan is not None), key=lambda plan: plan.seconds, default=None)
                if best is not None and best.seconds != before:  # equal: only an embedding is cut, the plan is the same
                    yield best
                before = best.seconds if best is not None else before

    def _rows_of_meshes(self, devices: int, most: int) -> Iterator[tuple[tuple[int, int], ...]]:
        """Every sequence of at most `most` meshes (dp, tp) with `devices` devices in total."""
        if not devices:
            yield ()
        for size in (size for size in self.mesh.sizes() if size <= devices and most):
            for rest in self._rows_of_meshes(devices - size, most - 1):
                for view in self.mesh.views(size):
                    yield (view, *rest)

    def given(self, cuts: Sequence[int], shapes: Sequence[tuple[int, int]], cut: Cut = "pairs") -> Plan | None:
        """The plan with these cuts and (dp, tp) of each stage, all layers split by `cut`; None if impossible."""
        edges, found = (0, *cuts, len(self.costs.units)), []
        for i, ((first, stop), (dp, tp)) in enumerate(zip(pairwise(edges), shapes, strict=True)):
            stage = self.stage(first, stop, dp, tp, len(shapes) - i, cut)
            if stage is None:
                return None
            found.append(stage)
        return Plan(tuple(found), self.micro_batches)

    def _best(self, shapes: Sequence[Shape], cut: Cut | None) -> Plan | None:
        if self.mesh.memory < inf:  # a search that minds memory takes many times as long: only where it has to
            free = self.unlimited._best(shapes, cut)
            if free is None or free.memory <= self.mesh.memory:
                return free
        tables, sizes = self._tables(shapes, cut), [size for size, _ in shapes]
        candidates = np.unique(np.concatenate([table.seconds[np.isfinite(table.seconds)] for table in tables])).tolist()
        programme = Programme(tables, sizes, self.mesh.devices)
        start = bisect_left(candidates, True, key=lambda t_max: programme.solve(t_max) is not None)
        best: Plan | None = None
        for t_max in candidates[start :: max(1, (len(candidates) - start) // MOST_T_MAX)]:
            if best is not None and self.micro_batches * t_max >= best.seconds:
                break
            if (found := programme.solve(t_max)) is not None:
                made = Plan(tuple(self._with_memory(found, cut)), self.micro_batches)
                best = made if best is None or made.seconds < best.seconds else best
        return best

    def _with_memory(self, stages: Sequence[Stage], cut: Cut | None) -> Iterator[Stage]:
        """The stages with the memory of their place in the pipeline; the tables do not know the number of stages."""
        for i, found in enumerate(stages):
            stage = self.stage(found.first, found.stop, found.dp, found.tp, len(stages) - i, cut)
            yield stage or found

    def _tables(self, shapes: Sequence[Shape], cut: Cut | None) -> list[Table]:
        """[s] -> the possible stages where s + 1 stages are left, itself included; entries are shared where as many
        micro-batches are in flight."""
        most = min(len(self.edges) - 1, self.mesh.devices // min(size for size, _ in shapes))
        kinds = min(most if self.mesh.memory < inf else 1, self.micro_batches)
        made = [self._table(shapes, remaining, cut, kinds) for remaining in range(1, kinds + 1)]
        return [made[min(i, len(made) - 1)] for i in range(most)]

    def _table(self, shapes: Sequence[Shape], remaining: int, cut: Cut | None, kinds: int) -> Table:
        """One of `kinds` tables."""
        groups = len(self.edges) - 1
        table = Table(np.full((len(shapes), groups, groups + 1), inf), {})
        for k, (_, views) in enumerate(shapes):
            for i, j in combinations(range(groups + 1), 2):
                known = self._known(i, j, views, remaining, cut)
                if known:
                    best = min(known, key=lambda stage: stage.seconds)
                    table.stages[k, i, j], table.seconds[k, i, j] = best, best.seconds
            if cut is None:
                self._on_progress((remaining - 1) * len(shapes) + k + 1, kinds * len(shapes))
        return table

    def _known(self, i: int, j: int, views: Sequence[tuple[int, int]], remaining: int, cut: Cut | None) -> list[Stage]:
        first, stop = self.edges[i], self.edges[j]
        found = (self.stage(first, stop, dp, tp, remaining, cut) for dp, tp in views)
        return [stage for stage in found if stage is not None]


def _cuts(shapes: Sequence[tuple[int, int]]) -> tuple[Cut, ...]:
    """Cuts that a run over these (dp, tp) may have. `sequence` needs equal tp: stages exchange equal row parts."""
    widths = {tp for _, tp in shapes}
    if widths == {1}:
        return ("pairs",)
    return ("pairs", "columns", "sequence") if len(widths) == 1 else ("pairs", "columns")


def _edges(units: int) -> list[int]:
    """Layers at which stages may begin or end: all of them, or MOST_GROUPS evenly spread groups of a deeper model."""
    count = min(units, MOST_GROUPS)
    return sorted({round(i * units / count) for i in range(count + 1)})
