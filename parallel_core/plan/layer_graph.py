"""A model as a graph of layers with times and sizes: what a partition is made of. Reads PipeDream's graph.txt.

A *state* is a set of layers that is closed under predecessors, named by an antichain of the graph (Harlap et al. 2018;
Narayanan et al. 2019, PipeDream, section 3.1 for chains). Between two states, one inside the other, lies a stage.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

MAX_LAYERS = 2_000
MAX_STATES = 2_000
MAX_TEXT = 32 * 2**20
_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_FIELD = re.compile(r"(\w+)=(\[[^\]]*\]|[^,\s]+)")


class GraphError(ValueError):
    """The text or the values are no graph of layers; the message names line and field."""


@dataclass(frozen=True, slots=True)
class GraphLayer:
    """Seconds of one micro-batch forward and backward; bytes of its output and its parameters."""

    name: str
    forward: float
    backward: float
    activation: float
    parameters: float

    @property
    def compute(self) -> float:
        return self.forward + self.backward


@dataclass(frozen=True)
class LayerGraph:
    """Layers in an order in which every edge (i, j) goes up: i < j."""

    layers: tuple[GraphLayer, ...]
    edges: tuple[tuple[int, int], ...]

    @classmethod
    def chain(cls, layers: Sequence[GraphLayer]) -> LayerGraph:
        """One layer after the other."""
        return cls(tuple(layers), tuple((i, i + 1) for i in range(len(layers) - 1)))

    @cached_property
    def before(self) -> tuple[tuple[int, ...], ...]:
        """Direct predecessors of each layer."""
        found: list[list[int]] = [[] for _ in self.layers]
        for a, b in self.edges:
            found[b].append(a)
        return tuple(map(tuple, found))

    @cached_property
    def after(self) -> tuple[tuple[int, ...], ...]:
        """Direct successors of each layer."""
        found: list[list[int]] = [[] for _ in self.layers]
        for a, b in self.edges:
            found[a].append(b)
        return tuple(map(tuple, found))

    def states(self) -> list[int]:
        """Every non-empty set of layers closed under predecessors, as bits, smaller ones first.

        Raises GraphError where there are more than MAX_STATES: the graph is too wide for an exact partition.
        """
        needs = [sum(1 << i for i in before) for before in self.before]
        level = {0: frozenset(n for n, need in enumerate(needs) if not need)}
        found: list[int] = []
        while level:
            wider: dict[int, frozenset[int]] = {}
            for state, ready in level.items():
                for n in ready:
                    new = state | 1 << n
                    if new not in wider:
                        freed = (m for m in self.after[n] if not needs[m] & ~new)
                        wider[new] = ready.difference((n,)).union(freed)
            found += sorted(wider)
            if len(found) > MAX_STATES:
                raise GraphError(
                    f"more than {MAX_STATES} ways to cut it once: the graph has too many parallel branches."
                )
            level = wider
        return found

    def leaving(self, state: int) -> float:
        """Bytes of the outputs in `state` that a layer outside of it needs."""
        return sum(
            layer.activation
            for i, layer in enumerate(self.layers)
            if state >> i & 1 and any(not state >> j & 1 for j in self.after[i])
        )


def read_graph(text: str) -> LayerGraph:
    """PipeDream's profile: `nodeN -- description -- forward_compute_time=ms, ...` lines, then `nodeA -- nodeB` edges.

    The node 'Input' is dropped: its time is that of loading data. A `__getitem__` that nothing follows goes, too.
    `activation_size=[a; b]` is the sum. Raises GraphError.
    """
    if len(text) > MAX_TEXT:
        raise GraphError(f"the file has {len(text)} characters; at most {MAX_TEXT} are read.")
    layers: dict[str, GraphLayer] = {}
    edges: list[tuple[str, str, int]] = []
    for number, line in enumerate(text.splitlines(), 1):
        parts = [part.strip() for part in line.split(" -- ")]
        if not line.strip():
            continue
        if len(parts) == 2:
            edges.append((parts[0], parts[1], number))
        elif len(parts) == 3:
            if parts[0] in layers:
                raise GraphError(f"line {number}: {parts[0]} is there twice.")
            layers[parts[0]] = _layer(parts[1], parts[2], number)
        else:
            raise GraphError(f"line {number}: neither a layer (name -- description -- fields) nor an edge (a -- b).")
        if len(layers) > MAX_LAYERS:
            raise GraphError(f"line {number}: more than {MAX_LAYERS} layers.")
    return _assemble(layers, edges)


def _layer(description: str, fields: str, line: int) -> GraphLayer:
    given = dict(_FIELD.findall(fields))
    values = {}
    for name in _FIELDS:
        if name not in given:
            raise GraphError(f"line {line}: {name} is missing.")
        try:
            value = sum(map(float, given[name].strip("[]").split(";")))
        except ValueError as error:
            raise GraphError(f"line {line}: {name} must be a number, got {given[name][:40]}.") from error
        if not math.isfinite(value) or value < 0:
            raise GraphError(f"line {line}: {name} must be at least 0, got {given[name][:40]}.")
        values[name] = value
    ms = 1e-3
    times = values["forward_compute_time"] * ms, values["backward_compute_time"] * ms
    return GraphLayer(description, *times, values["activation_size"], values["parameter_size"])


def _assemble(layers: Mapping[str, GraphLayer], edges: Sequence[tuple[str, str, int]]) -> LayerGraph:
    """Drops what is no layer of the model, and puts the rest in order."""
    for a, b, line in edges:
        for name in (a, b):
            if name not in layers:
                raise GraphError(f"line {line}: there is no layer {name}.")
    leaves = set(layers) - {a for a, _, _ in edges}
    dropped = {name for name, layer in layers.items() if layer.name.startswith("Input")}
    dropped |= {name for name in leaves if layers[name].name.startswith("__getitem__")}
    kept = [name for name in layers if name not in dropped]
    links = [(a, b, line) for a, b, line in edges if not {a, b} & dropped]
    if not kept:
        raise GraphError("the file has no layers.")
    order = _ordered(kept, links)
    number = {name: i for i, name in enumerate(order)}
    pairs = sorted({(number[a], number[b]) for a, b, _ in links})
    return LayerGraph(tuple(layers[name] for name in order), tuple(pairs))


def _ordered(names: Sequence[str], edges: Sequence[tuple[str, str, int]]) -> list[str]:
    """Kahn's topological order; raises GraphError with an edge of a cycle, where there is one."""
    after: dict[str, list[str]] = {name: [] for name in names}
    missing = dict.fromkeys(names, 0)
    for a, b, _ in edges:
        after[a].append(b)
        missing[b] += 1
    ready, order = deque(name for name in names if not missing[name]), []
    while ready:
        name = ready.popleft()
        order.append(name)
        for follower in after[name]:
            missing[follower] -= 1
            if not missing[follower]:
                ready.append(follower)
    if len(order) < len(names):
        line = next(line for _, b, line in edges if missing[b])
        raise GraphError(f"line {line}: the layers go round in a circle.")
    return order
