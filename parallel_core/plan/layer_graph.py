"""A model as a graph of layers with times and sizes, the input of a partition. Reads PipeDream's graph.txt.

A *state* is a set of layers closed under predecessors, identified by an antichain of the graph (Harlap et al. 2018;
Narayanan et al. 2019, PipeDream, section 3.1 for chains). A stage is the difference of two nested states.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from parallel_core.untrusted import printable

MAX_LAYERS = 2_000
MAX_STATES = 2_000
MAX_TEXT = 16 * 2**20
"""Most bytes, and most characters, of a file."""
MAX_LINES = 1_000_000
_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
MAX_EDGES = 200_000
MOST = 1e18
"""Largest time (ms) or size (bytes): sums of MAX_LAYERS of them stay finite, also when multiplied."""


class GraphError(ValueError):
    """Invalid text or values of a layer graph; the message names line and field."""


@dataclass(frozen=True, slots=True)
class GraphLayer:
    """Seconds of one micro-batch forward and backward; bytes of its output and of its parameters."""

    name: str
    forward: float
    backward: float
    activation: float
    parameters: float

    @property
    def compute(self) -> float:
        """Seconds of both."""
        return self.forward + self.backward


@dataclass(frozen=True)
class LayerGraph:
    """Layers in topological order: i < j for every edge (i, j)."""

    layers: tuple[GraphLayer, ...]
    edges: tuple[tuple[int, int], ...]

    @classmethod
    def chain(cls, layers: Sequence[GraphLayer]) -> LayerGraph:
        """The graph of layers in sequence."""
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

        Raises GraphError if there are more than MAX_STATES: the graph is too wide for an exact partition.
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
                if len(found) + len(wider) > MAX_STATES:  # checked while they grow: a level may hold exponentially many
                    raise GraphError(
                        f"more than {MAX_STATES} ways to cut it once: the graph has too many parallel branches."
                    )
            found += sorted(wider)
            level = wider
        return found

    def members(self, states: Sequence[int]) -> NDArray[np.bool_]:
        """[state, layer]: which layers each state holds."""
        size = -(-len(self.layers) // 8)
        packed = np.frombuffer(b"".join(state.to_bytes(size, "little") for state in states), np.uint8)
        bits = np.unpackbits(packed.reshape(len(states), size), axis=1, bitorder="little")
        return bits[:, : len(self.layers)].astype(bool)

    def leaving(self, states: Sequence[int]) -> NDArray[np.float64]:
        """Bytes of the outputs in each state that a layer outside of it needs."""
        held, out = self.members(states), np.zeros(len(states))
        for i, layer in enumerate(self.layers):
            if self.after[i]:
                out += np.where(held[:, i] & ~held[:, list(self.after[i])].all(axis=1), layer.activation, 0.0)
        return out


def decoded(data: bytes) -> str:
    """Text of a file's first MAX_TEXT + 1 bytes; the rest is never read. Raises GraphError where they are not UTF-8."""
    try:
        return data[: MAX_TEXT + 1].decode()
    except UnicodeDecodeError as error:
        if error.start + 4 > MAX_TEXT:  # a character that the limit cuts in two
            return data[: error.start].decode() + "\ufffd" * 4
        line = data.count(b"\n", 0, error.start) + 1
        raise GraphError(f"line {line}: no text: byte 0x{data[error.start]:02x} is no UTF-8.") from error


def read_graph(text: str) -> LayerGraph:
    """Parses PipeDream's profile: `nodeN -- description -- forward_compute_time=ms, ...` lines, then `nodeA -- nodeB`
    edges.

    The node 'Input' is dropped: its time is that of loading data. So is a `__getitem__` without successors.
    `activation_size=[a; b]` is summed. Raises GraphError.
    """
    layers: dict[str, GraphLayer] = {}
    edges: list[tuple[str, str, int]] = []
    read, number = 0, 0
    for number, line in enumerate(text[: MAX_TEXT + 1].removeprefix("\ufeff").splitlines(keepends=True), 1):
        read += len(line)
        if number > MAX_LINES:
            raise GraphError(f"line {number}: more than {MAX_LINES} lines.")
        if read > MAX_TEXT:
            raise GraphError(f"line {number}: more than {MAX_TEXT} characters in the file.")
        if line.strip():
            _take(line, number, layers, edges)
        if len(layers) > MAX_LAYERS:
            raise GraphError(f"line {number}: more than {MAX_LAYERS} layers.")
        if len(edges) > MAX_EDGES:
            raise GraphError(f"line {number}: more than {MAX_EDGES} edges.")
    return _assemble(layers, edges)


def _take(line: str, number: int, layers: dict[str, GraphLayer], edges: list[tuple[str, str, int]]) -> None:
    """Adds the layer or the edge of a line to `layers` or `edges`."""
    parts = [part.strip() for part in line.split(" -- ")]
    if len(parts) not in (2, 3):
        raise GraphError(f"line {number}: neither a layer (name -- description -- fields) nor an edge (a -- b).")
    if "\0" in line:
        raise GraphError(f"line {number}: a null character, which is no text.")
    if not parts[0]:
        raise GraphError(f"line {number}: the name of the layer is missing.")
    if len(parts) == 2:
        edges.append((parts[0], parts[1], number))
    elif parts[0] in layers:
        raise GraphError(f"line {number}: {parts[0]} is there twice.")
    else:
        layers[parts[0]] = _layer(parts[1], parts[2], number)


def _layer(description: str, fields: str, line: int) -> GraphLayer:
    given = _given(fields, line)
    values = {name: _value(name, given.get(name), line) for name in _FIELDS}
    ms = 1e-3
    times = values["forward_compute_time"] * ms, values["backward_compute_time"] * ms
    return GraphLayer(
        printable(" ".join(description.split())), *times, values["activation_size"], values["parameter_size"]
    )


def _given(fields: str, line: int) -> dict[str, str]:
    """Fields `name=value, …` as strings."""
    given: dict[str, str] = {}
    for part in fields.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise GraphError(f"line {line}: {part.strip()[:40]!r} is no field; write name=value, with commas between.")
        if name in given:
            raise GraphError(f"line {line}: {name[:40]} is there twice.")
        given[name] = value
    return given


def _value(name: str, text: str | None, line: int) -> float:
    """A number, or the sum of a list `[a; b]`, each within 0 .. MOST."""
    if text is None:
        raise GraphError(f"line {line}: {name} is missing.")
    inner = text[1:-1] if text[:1] == "[" and text[-1:] == "]" else text
    try:
        if "_" in inner:
            raise ValueError("Python's own way to write numbers")
        values = [float(part) for part in inner.split(";")]
    except ValueError as error:
        raise GraphError(f"line {line}: {name} must be a number, got {text[:40]}.") from error
    if not all(0 <= value <= MOST for value in (*values, sum(values))):  # NaN fails too
        raise GraphError(f"line {line}: {name} must be from 0 to {MOST:g}; got {text[:40]}.")
    return sum(values)


def _assemble(layers: Mapping[str, GraphLayer], edges: Sequence[tuple[str, str, int]]) -> LayerGraph:
    """The graph without nodes that are not layers of the model, in topological order."""
    for a, b, line in edges:
        for name in (a, b):
            if name not in layers:
                raise GraphError(f"line {line}: there is no layer {name[:40] or 'without a name'}.")
        if a == b:
            raise GraphError(f"line {line}: {a[:40]} cannot come before itself.")
    if len(layers) > 1 and not edges:
        raise GraphError(f"the file has {len(layers)} layers and no edge (a -- b): its end is missing.")
    leaves = set(layers) - {a for a, _, _ in edges}
    dropped = {name for name, layer in layers.items() if layer.name.startswith("Input")}
    dropped |= {name for name in leaves if layers[name].name.startswith("__getitem__")}
    kept = [name for name in layers if name not in dropped]
    links = [(a, b, line) for a, b, line in edges if not {a, b} & dropped]
    if not kept:
        raise GraphError("the file has no layers.")
    if not any(layers[name].compute for name in kept):
        raise GraphError(f"{_FIELDS[0]} and {_FIELDS[1]} are 0 in all {len(kept)} layers: no stage has any work.")
    order = _ordered(kept, links)
    number = {name: i for i, name in enumerate(order)}
    pairs = sorted({(number[a], number[b]) for a, b, _ in links})
    return LayerGraph(tuple(layers[name] for name in order), tuple(pairs))


def _ordered(names: Sequence[str], edges: Sequence[tuple[str, str, int]]) -> list[str]:
    """Kahn's topological order; raises GraphError with an edge of a cycle, if there is one."""
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
        raise _circle([name for name in names if missing[name]], edges)
    return order


def _circle(left: Sequence[str], edges: Sequence[tuple[str, str, int]]) -> GraphError:
    """The error for a cycle among the layers `left`, each of which has a predecessor among them."""
    waiting = set(left)
    before = {b: (a, line) for a, b, line in edges if a in waiting and b in waiting}
    seen: dict[str, None] = {}
    name = left[0]
    while name not in seen:
        seen[name] = None
        name = before[name][0]
    ring = list(seen)[list(seen).index(name) :]
    line, last = min((before[name][1], name) for name in ring)
    said = f"{before[last][0][:40]} -- {last[:40]} is one of its {len(ring)} edges"
    return GraphError(f"line {line}: the layers go round in a circle: {said}.")
