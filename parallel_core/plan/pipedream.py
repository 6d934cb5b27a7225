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
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.plan.layer_graph import GraphError, LayerGraph
from parallel_core.searches import ProgressCallback, silent

Form = Literal["paper", "released"]
Floats = NDArray[np.float64]

MAX_WORKERS = 4096
MAX_WORK = 1.5e8
"""Most candidates, about 1 s of a core: ResNet-50 in hosts of 8, whose graph has 241 states, takes 1.2e8."""

_BLOCK = 1 << 16
"""Candidates compared in one array operation, if the graph is small."""
_CALL = 3000
"""Candidates that take as long as the calls for one number of workers."""


class Level(NamedTuple):
    """`workers` (or groups of the level below) connected at `bandwidth` bytes/s; the innermost level comes first."""

    workers: int
    bandwidth: float


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


def candidates(states: int, levels: Sequence[Level]) -> float:
    """Approximate number of candidates that take as long as `partition` for a graph with this many states, the empty
    one included."""
    cut = states * (states / 4 + 3) if states > 2 else 0.0  # 3: each state's row of candidates is a loop of its own
    firsts = zip(_firsts(states, levels), levels, strict=True)
    return sum(f * level.workers * (level.workers / 2 * cut + _CALL) for f, level in firsts)


def _firsts(states: int, levels: Sequence[Level]) -> list[int]:
    """Number of first states of each level: a higher level may begin where any state of the level below ends."""
    return [states] * (len(levels) - 1) + [1]


def partition(
    graph: LayerGraph,
    levels: Sequence[Level],
    form: Form = "released",
    memory: float | None = None,
    told: ProgressCallback = silent,
) -> Partition:
    """The fastest partition over all workers of the network. `memory`: bytes of a worker for weights and activations.

    Raises GraphError where nothing fits, a value is not physical, or the graph is too large for an exact answer.
    """
    check(levels)
    solver = _Solver(graph, levels, form, memory, told)
    return solver.solve()


def check(levels: Sequence[Level]) -> None:
    """Raises GraphError if a network is not physical or has too many workers."""
    if not levels:
        raise GraphError("levels: the network needs one level at least.")
    for i, level in enumerate(levels):
        if level.workers < 1:
            raise GraphError(f"levels.{i}.workers must be at least 1, got {level.workers}.")
        if not (level.bandwidth > 0 and math.isfinite(level.bandwidth)):
            raise GraphError(f"levels.{i}.bandwidth must be more than 0 bytes/s, got {level.bandwidth}.")
    if (total := math.prod(level.workers for level in levels)) > MAX_WORKERS:
        raise GraphError(f"levels: {total} workers; at most {MAX_WORKERS}.")


class _Table(NamedTuple):
    """Result of one level, indexed [first, last, workers - 1]: least time, the state before the last stage (-1: a
    single stage), and the workers of the last stage."""

    seconds: Floats
    split: NDArray[np.int32]
    last: NDArray[np.int32]


class _Solver:
    """State 0 is the empty set; stage (i, j) holds the layers of state j that are not in state i."""

    def __init__(
        self, graph: LayerGraph, levels: Sequence[Level], form: Form, memory: float | None, told: ProgressCallback
    ) -> None:
        self._graph, self._levels, self._form, self._memory, self._told = graph, levels, form, memory, told
        self._states = [0, *graph.states()]
        self._leaving = graph.leaving(self._states)
        self._held = graph.members(self._states)
        self._tables: list[_Table] = []
        n, m = len(self._states), max(level.workers for level in levels)
        self._done, pairs = 0, [level.workers * (level.workers - 1) // 2 for level in levels]
        self._of = sum(f * count for f, count in zip(_firsts(n, levels), pairs, strict=True))
        if candidates(n, levels) > MAX_WORK:
            raise GraphError(
                f"{n} states and {m} workers a level are too many for an exact partition; "
                "merge layers, or use fewer workers."
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

    def solve(self) -> Partition:
        layers = self._graph.layers
        parameters = self._between([layer.parameters for layer in layers])
        activations = self._between([layer.activation for layer in layers])
        compute = np.where(self._inside, self._between([layer.compute for layer in layers]), np.inf)
        within = 1
        for i, level in enumerate(self._levels):
            final = i == len(self._levels) - 1
            table = self._level(level, compute, parameters, parameters + activations, within, final)
            self._tables.append(table)
            compute, within = table.seconds[:, :, -1], level.workers
        best = float(compute[0, -1])
        if not math.isfinite(best):
            raise GraphError("memory: no partition fits; give workers more, or use more of them.")
        last = len(self._levels) - 1
        return Partition(best, tuple(self._stages(last, 0, len(self._states) - 1, self._levels[last].workers, 1)))

    def _replicated(self, compute: Floats, parameters: Floats, level: Level, m: int) -> Floats:
        """Seconds a micro-batch of a stage with m replicas; arrays of any shape."""
        if self._form == "paper":
            return np.maximum(compute, 2 * (m - 1) * parameters / level.bandwidth) / m
        return (compute + 4 * (m - 1) * parameters / (level.bandwidth * m)) / m

    def _sent(self, size: Floats, level: Level, m: int) -> Floats:
        """Seconds to send a stage's input (or output) activations and their gradients."""
        return 2 * size / (level.bandwidth * (m if self._form == "released" else 1))

    def _level(
        self, level: Level, compute: Floats, parameters: Floats, held: Floats, within: int, final: bool
    ) -> _Table:
        """The dynamic programme of one level; only a higher level needs rows with other first states."""
        n, firsts = len(self._states), 1 if final else len(self._states)
        seconds = np.full((firsts, n, level.workers), np.inf)
        split = np.full(seconds.shape, -1, np.int32)
        last = np.zeros(seconds.shape, np.int32)
        for m in range(1, level.workers + 1):
            alone = self._single(level, compute[:firsts], parameters[:firsts], m, within)
            seconds[:, :, m - 1] = np.where(self._room(held[:firsts], level.workers - m, m), alone, np.inf)
            last[:, :, m - 1] = m
        table = _Table(seconds, split, last)
        if n > 2:  # a single layer cannot be cut
            stage = [self._stage(level, compute, parameters, held, m) for m in range(1, level.workers)]
            self._cut(table, np.stack([np.where(self._inside, own, np.inf) for own in stage] or [compute]), held)
        return table

    def _cut(self, table: _Table, stage: Floats, held: Floats) -> None:
        """Fills in the times of two stages or more. `stage[own - 1]`: time of a last stage on `own` workers."""
        firsts, n, workers = table.seconds.shape
        block = max(1, _BLOCK // n**2)
        for m in range(2, workers + 1):
            for own in range(1, m, block):
                owns = np.arange(own, min(own + block, m))
                ends = np.where(self._room(held, workers - m, owns[:, None, None]), stage[owns - 1], np.inf)
                for first in range(firsts):
                    _extend(_Table(*(values[first] for values in table)), ends, m, owns)
                self._done += firsts * len(owns)
                self._told(self._done, self._of)

    def _stage(self, level: Level, compute: Floats, parameters: Floats, held: Floats, m: int) -> Floats:
        """[k, j]: time of the last stage (k, j) on m workers, its messages included."""
        own = self._replicated(compute, parameters, level, m)
        own = np.maximum(own, self._sent(self._leaving, level, m)[:, None])
        out = self._sent(self._leaving, level, m)
        out[-1] = 0.0
        return np.maximum(own, out[None, :]) if self._form == "released" else own

    def _single(self, level: Level, compute: Floats, parameters: Floats, m: int, within: int) -> Floats:
        """All of (i, j) as one stage on m workers of this level; the `within` workers of each divide the gradients."""
        return self._replicated(compute, parameters / within, level, m)

    def _room(self, held: Floats, later: int, m: int | NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether a stage on m workers with `later` workers in following stages fits: one version a micro-batch in
        flight."""
        if self._memory is None:
            return np.ones(np.broadcast_shapes(held.shape, np.shape(m)), bool)
        return np.asarray(held * np.ceil((later + m) / m) <= self._memory)

    def _stages(self, depth: int, first: int, end: int, workers: int, times: int) -> list[Stage]:
        """The stages of [first, end] on `workers` of a level, each of whose groups stands for `times` replicas."""
        table, at = self._tables[depth], (first if len(self._tables[depth].seconds) > 1 else 0, end, workers - 1)
        split, own = int(table.split[at]), int(table.last[at])
        start = first if split < 0 else split
        found = [] if split < 0 else self._stages(depth, first, split, workers - own, times)
        if depth == 0:
            layers = self._states[end] & ~self._states[start]
            held = tuple(n for n in range(len(self._graph.layers)) if layers >> n & 1)
            return [*found, Stage(held, own * times, float(table.seconds[at]))]
        below = self._levels[depth - 1].workers
        return [*found, *self._stages(depth - 1, start, end, below, own * times)]


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
