"""PipeDream's partition of a model over a network of one or more levels: stages, and replicas of each.

Narayanan et al. 2019 (SOSP), section 3.1: the dynamic programme over the slowest stage, A^k(i, j, m) = min over s, m'
of max(A^k(i, s, m - m'), 2 a_s / B, T^k(s + 1, j, m')). The released optimizer runs it over the states of a graph, and
has another cost of a replicated stage. Both forms are here:

- `paper`: T = max(compute, 2 (m - 1) P / B) / m: gradient reduction overlaps with compute
- `released`: T = (compute + 4 (m - 1) P / (B m)) / m, and messages take 2 a / (B m')
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.plan.layer_graph import GraphError, LayerGraph
from parallel_core.plan.network_levels import (
    MAX_LIMITED,
    MAX_WORK,
    Level,
    candidates,
    check,
    first_states,
    places,
    work,
)
from parallel_core.plan.room_of_stages import NONE, Kinds, versions
from parallel_core.searches import ProgressCallback, silent

Form = Literal["paper", "released"]
Floats = NDArray[np.float64]

_BLOCK = 1 << 16
"""Candidates compared in one array operation, if the graph is small."""


class Stage(NamedTuple):
    """Layers (indices into the graph) and workers with a replica of them; `seconds` of the slowest stage up to here."""

    layers: tuple[int, ...]
    replicas: int
    seconds: float


@dataclass(frozen=True)
class Partition:
    """`seconds` of a micro-batch on the slowest stage or message, in steady state."""

    seconds: float
    stages: tuple[Stage, ...]

    @property
    def workers(self) -> int:
        return sum(stage.replicas for stage in self.stages)

    @property
    def text(self) -> str:
        """Replicas of each stage: `15-1`."""
        return "-".join(str(stage.replicas) for stage in self.stages)

    @property
    def noam(self) -> int:
        """NOAM: micro-batches each input worker admits to keep the pipeline full, ceil(workers / input replicas)."""
        return -(-self.workers // self.stages[0].replicas)


def partition(
    graph: LayerGraph,
    levels: Sequence[Level],
    form: Form = "released",
    memory: float | None = None,
    on_progress: ProgressCallback = silent,
) -> Partition:
    """The fastest partition over all workers of the network. `memory`: bytes of a worker for weights and activations.

    Raises GraphError where nothing fits, a value is not physical, or the graph is too large for an exact answer.
    """
    check(levels)
    solver = _Solver(graph, levels, form, memory, on_progress)
    return solver.solve()


class _Table(NamedTuple):
    """Result of one level, indexed [first, last, workers - 1]: least time, the state before the last stage (-1: a
    single stage), and the workers of the last stage."""

    seconds: Floats
    split: NDArray[np.int32]
    last: NDArray[np.int32]


class _Place(NamedTuple):
    """The first `workers` of a level, whose groups stand for `times` replicas each; `later`: as in `_Solver._level`."""

    depth: int
    later: Fraction
    workers: int
    times: int


class _Solver:
    """State 0 is the empty set; stage (i, j) holds the layers of state j that are not in state i."""

    def __init__(
        self,
        graph: LayerGraph,
        levels: Sequence[Level],
        form: Form,
        memory: float | None,
        on_progress: ProgressCallback,
    ) -> None:
        self._graph, self._levels, self._form = graph, levels, form
        self._memory, self._on_progress = memory, on_progress
        self._states = [0, *graph.states()]
        self._refuse(candidates(len(self._states), levels, len(graph.layers)) > MAX_WORK)
        self._leaving = graph.leaving(self._states)
        self._held = graph.members(self._states)
        sizes = np.sort(self._bytes[self._inside]) if memory is not None else np.zeros(0)
        self._kinds = Kinds([level.workers for level in levels], sizes, memory)
        self._tables: list[list[_Table]] = []
        self._done, self._of = 0, 0

    def _refuse(self, too_long: bool) -> None:
        if too_long:
            raise GraphError(
                f"{len(self._states)} states and {max(level.workers for level in self._levels)} workers a level are "
                "too many for an exact partition; merge layers, or use fewer workers."
            )

    @cached_property
    def _inside(self) -> NDArray[np.bool_]:
        """[i, j]: whether state i is a proper subset of state j."""
        held = self._held.astype(np.float32)
        return np.asarray((held @ (1 - held).T == 0) & ~np.eye(len(held), dtype=bool))

    def _between(self, values: Sequence[float]) -> Floats:
        """[i, j]: the sum of `values` over the layers of stage (i, j)."""
        sums = np.zeros(len(self._states))
        for n, value in enumerate(values):  # always in the layers' order, so that equal sums are bitwise equal
            sums += np.where(self._held[:, n], value, 0.0)
        return np.asarray(sums[None, :] - sums[:, None])

    @cached_property
    def _parameters(self) -> Floats:
        """[i, j]: bytes of a stage's parameters."""
        return self._between([layer.parameters for layer in self._graph.layers])

    @cached_property
    def _compute(self) -> Floats:
        """[i, j]: seconds of a stage on one worker; inf where state i is no proper subset of state j."""
        return np.where(self._inside, self._between([layer.compute for layer in self._graph.layers]), np.inf)

    @cached_property
    def _bytes(self) -> Floats:
        """[i, j]: bytes of one version of a stage: its parameters, and activations of a micro-batch."""
        return self._parameters + self._between([layer.activation for layer in self._graph.layers])

    def solve(self) -> Partition:
        top = len(self._levels) - 1
        self._plan_tables()
        for depth in range(top + 1):
            self._tables.append([])
            for later in self._kinds.later[depth]:
                self._tables[depth].append(self._level(depth, later))
        best = float(self._tables[top][0].seconds[0, -1, -1])
        if not math.isfinite(best):
            raise GraphError("memory: no partition fits; give workers more, or use more of them.")
        place = _Place(top, NONE, self._levels[top].workers, 1)
        return Partition(best, tuple(self._stages(place, 0, len(self._states) - 1)))

    def _plan_tables(self) -> None:
        """Finds out which tables are needed. Raises GraphError if they take too long."""
        n, levels = len(self._states), self._levels
        if self._memory is not None:
            self._refuse(places(levels) > MAX_LIMITED)
        self._kinds.find(len(levels) - 1, NONE)
        tables = [len(later) for later in self._kinds.later]
        self._refuse(sum(map(math.prod, zip(tables, work(n, levels), strict=True))) > MAX_LIMITED)
        pairs = [level.workers * (level.workers - 1) // 2 for level in levels]
        self._of = sum(map(math.prod, zip(first_states(n, levels), tables, pairs, strict=True)))

    def _replicated(self, compute: Floats, parameters: Floats, level: Level, m: int) -> Floats:
        """Seconds a micro-batch of a stage with m replicas; arrays of any shape."""
        if self._form == "paper":
            return np.maximum(compute, 2 * (m - 1) * parameters / level.bandwidth) / m
        return (compute + 4 * (m - 1) * parameters / (level.bandwidth * m)) / m

    def _sent(self, size: Floats, level: Level, m: int) -> Floats:
        """Seconds to send a stage's input (or output) activations and their gradients."""
        return 2 * size / (level.bandwidth * (m if self._form == "released" else 1))

    def _level(self, depth: int, later: Fraction) -> _Table:
        """The dynamic programme of one level, with `later` workers (or groups) in later stages of higher levels for
        each of its replicas; only a higher level needs rows with other first states."""
        level, final = self._levels[depth], depth == len(self._levels) - 1
        n, firsts = len(self._states), 1 if final else len(self._states)
        seconds = np.full((firsts, n, level.workers), np.inf)
        split = np.full(seconds.shape, -1, np.int32)
        last = np.zeros(seconds.shape, np.int32)
        # A stage alone on its level: the workers of each group divide its gradients.
        parameters = self._parameters[:firsts] / (self._levels[depth - 1].workers if depth else 1)
        for m in range(1, level.workers + 1):
            alone = self._fitting(depth, level.workers - m + later, m)[:firsts]
            seconds[:, :, m - 1] = self._replicated(alone, parameters, level, m)
            last[:, :, m - 1] = m
        table = _Table(seconds, split, last)
        if n > 2:  # a single layer cannot be cut
            self._cut(table, depth, later)
        return table

    def _cut(self, table: _Table, depth: int, later: Fraction) -> None:
        """Fills in the times of two stages or more."""
        firsts, n, workers = table.seconds.shape
        block, roomy = max(1, _BLOCK // n**2), self._roomy(depth)
        for m in range(2, workers + 1):
            for own in range(1, m, block):
                owns = np.arange(own, min(own + block, m))
                ends = self._ends(depth, roomy, owns, workers - m + later)
                for first in range(firsts):
                    _extend(_Table(*(values[first] for values in table)), ends, m, owns)
                self._done += firsts * len(owns)
                self._on_progress(self._done, self._of)

    def _roomy(self, depth: int) -> Floats | None:
        """[m - 1, k, j]: time of the last stage (k, j) on m workers, whatever it needs. None at a higher level with
        limited memory: inside a group there may be several stages, and which ones depends on the workers after it."""
        if depth and self._memory is not None:
            return None
        n, workers = len(self._states), self._levels[depth].workers
        compute = self._fitting(depth, NONE, 1) if depth else self._compute
        found = np.empty((workers - 1, n, n))
        for m in range(1, workers):
            found[m - 1] = self._last_stage(depth, compute, m)
        return found

    def _ends(self, depth: int, roomy: Floats | None, owns: NDArray[np.int64], later: Fraction) -> Floats:
        """[i, k, j]: time of the last stage (k, j) on owns[i] workers, with `later` ones in later stages; inf where it
        does not fit."""
        if roomy is None:
            made = (self._last_stage(depth, self._fitting(depth, later, own), own) for own in owns.tolist())
            return np.stack(list(made))
        known = roomy[owns[0] - 1 : owns[-1]]
        if self._memory is None:
            return known
        many = versions(later, owns[:, None, None])
        return np.where(self._bytes * many <= self._memory, known, np.inf)

    def _fitting(self, depth: int, later: Fraction, m: int) -> Floats:
        """[i, j]: seconds of a stage on each of m workers (or groups) of a level, with `later` ones in later stages;
        inf where it does not fit."""
        if depth:
            return self._tables[depth - 1][self._kinds.below(depth, later, m)].seconds[:, :, -1]
        if self._memory is None:
            return self._compute
        return np.where(self._bytes * versions(later, m) <= self._memory, self._compute, np.inf)

    def _last_stage(self, depth: int, compute: Floats, m: int) -> Floats:
        """[k, j]: time of the last stage (k, j) on m workers, its messages included."""
        level = self._levels[depth]
        own = self._replicated(compute, self._parameters, level, m)
        sent = self._sent(self._leaving, level, m)
        own = np.maximum(own, sent[:, None])
        if self._form == "released":
            sent[-1] = 0.0
            own = np.maximum(own, sent[None, :])
        return own

    def _stages(self, place: _Place, first: int, end: int) -> list[Stage]:
        """The stages of [first, end] on the workers of a place."""
        depth, later, workers, times = place
        table = self._tables[depth][self._kinds.find(depth, later)]
        at = (first if len(table.seconds) > 1 else 0, end, workers - 1)
        split, own = int(table.split[at]), int(table.last[at])
        start = first if split < 0 else split
        found = [] if split < 0 else self._stages(place._replace(workers=workers - own), first, split)
        if depth == 0:
            layers = self._states[end] & ~self._states[start]
            held = tuple(n for n in range(len(self._graph.layers)) if layers >> n & 1)
            return [*found, Stage(held, own * times, float(table.seconds[at]))]
        inside = self._kinds.later_below(depth, self._levels[depth].workers - workers + later, own)
        below = _Place(depth - 1, inside, self._levels[depth - 1].workers, own * times)
        return [*found, *self._stages(below, start, end)]


def _extend(rows: _Table, ends: Floats, m: int, owns: NDArray[np.int64]) -> None:
    """Gives one of the numbers `owns` of m workers to the last stage where that is faster than the best known. `rows`:
    of one first state; `ends[i]`: time of the last stage on `owns[i]` workers."""
    before = rows.seconds[:, m - owns - 1].T
    known = np.flatnonzero(np.isfinite(before).any(axis=0))
    if not len(known):
        return
    found = np.maximum(before[:, known, None], ends.take(known, axis=1)).reshape(len(owns) * len(known), -1)
    at = found.argmin(axis=0)
    value = found[at, np.arange(found.shape[1])]
    better = value < rows.seconds[:, m - 1]
    rows.seconds[better, m - 1] = value[better]
    rows.split[better, m - 1] = known[at[better] % len(known)]
    rows.last[better, m - 1] = owns[at[better] // len(known)]
