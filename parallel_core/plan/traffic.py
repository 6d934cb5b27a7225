"""Bytes that each rank of a run exchanges in one step, and with whom, before it runs: the sizes that measured spans
record.

A collective counts the bytes of the whole tensor that is reduced, gathered or scattered; on a ring each rank sends and
receives (n - 1)/n of it for a gather or scatter and twice that for an all-reduce (Patarasuk and Yuan 2009). Not
counted: the few bytes of norm and loss, statistics of batch normalisation, and the loss over a split vocabulary. Sums
of a tied matrix's gradient, and of those of vectors under sequence parallelism, are within the norm's span, which
records none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Literal, NamedTuple

from parallel_core.layout import Layout
from parallel_core.outline import outline_of
from parallel_core.outline.recompute import rebuilt
from parallel_core.outline.splits import ROW, summed_by_rows
from parallel_core.outline.unit_cost import ALIGN
from parallel_core.plan.fully_sharded import by_torch, chunk
from parallel_core.plan.grad_buckets import shards_of
from parallel_core.plan.peak import flat_bytes, places_of, standing, unsharded
from parallel_core.plan.units import boundary_elements, unit_costs
from parallel_core.spec import MAIN_BYTES, RunSpec

MARK_BYTES = 4
"""Bytes of the loss scale sent after a gradient between stages that each have their own (`engine.scaled_gradients`)."""
GroupKind = Literal["tensor", "data", "ends", "next", "before"]


@dataclass(frozen=True, slots=True)
class CommVolume:
    """A rank's traffic with one group in a step: `what` in words, with `ranks`, `calls` calls, `bytes` in total."""

    kind: GroupKind
    ranks: tuple[int, ...]
    what: str
    calls: int
    bytes: int
    passes: int = 1
    """Passes around a ring: an all-reduce is a scatter and a gather."""
    receives: bool = False
    """Whether the rank only receives these bytes. Of a collective, it receives as many as it sends."""

    @property
    def wire(self) -> int:
        """Bytes that the rank itself sends, or receives: for a collective on a ring (n - 1)/n of the tensor a pass."""
        if self.kind in ("next", "before"):
            return self.bytes
        return self.passes * self.bytes * (len(self.ranks) - 1) // max(len(self.ranks), 1)


def sent_bytes(volumes: Iterable[CommVolume]) -> int:
    """Bytes that leave a rank in a step: of messages, only those that it sends."""
    return sum(talk.wire for talk in volumes if not talk.receives)


def most_sent(spec: RunSpec) -> int:
    """Bytes that leave the busiest rank in a step."""
    return max(sent_bytes(comm_volumes(spec, rank)) for rank in range(spec.parallel.world))


def comm_volumes(spec: RunSpec, rank: int) -> list[CommVolume]:
    """Communication of `rank` in the order tensor group, replicas, pipeline neighbours, other end of the pipeline;
    absent kinds are omitted.

    Raises ValueError if the run has no such rank.
    """
    layout = Layout.of(spec)
    place, replica, _ = layout.coords(rank)
    found: list[CommVolume] = []
    if layout.widths[place] > 1:
        ranks = next(group for group in layout.tensor_groups() if rank in group)
        found.extend(_tensor(spec, layout, (place, replica), ranks))
    if layout.replicas[place] > 1:
        replicas = next(group for group in layout.data_groups() if rank in group)
        found.extend(_data(spec, place, replicas))
    return found + _pipeline(spec, layout, rank) + _ends(spec, layout, rank)


def _tensor(spec: RunSpec, layout: Layout, position: tuple[int, int], ranks: tuple[int, ...]) -> list[CommVolume]:
    """Collectives of the tensor group `ranks` at `position`, its place and replica."""
    split, units = spec.parallel, spec.model.units()
    each, twice = unit_volumes(spec), rebuilt(split, units)
    sums, moved = _Counted(), _Counted()
    for i in (i for stage in layout.stages_of(position[0]) for i in layout.stage_units[stage]):
        sums.add(*each[i].sums.of_step(twice[i]))
        moved.add(*each[i].moved.of_step(twice[i]))
    named = (
        (sums, "all-reduces of activations", 2),
        (moved, "gathers and scatters of activations by " + ("rows" if split.sequence else "columns"), 1),
    )
    m, size = len(layout.micro_batches_of(*position)), spec.micro_batch_size * spec.model.seq * spec.element_bytes
    talks = [
        CommVolume("tensor", ranks, what, m * found.calls, m * size * found.width, passes)
        for found, what, passes in named
        if found.calls
    ]
    return talks + _vectors(spec, layout, position, ranks)


def vectors_by_rows(spec: RunSpec, layout: Layout, place: int) -> dict[str, tuple[int, ...]]:
    """Shape of each gradient of which, under sequence parallelism, a tensor rank has only its rows' part
    (`engine.shared_gradients`), by the parameter's name in `places_of`."""
    matrices = outline_of(spec.model).matrices()
    return {
        f"{unit}.{number}": shape
        for stage in layout.stages_of(place)
        for unit in layout.stage_units[stage]
        for number, (name, shape) in enumerate(matrices[unit].items())
        if summed_by_rows(name)
    }


def _owned(spec: RunSpec, layout: Layout, place: int, replica: int) -> int:
    """Elements of these gradients that a replica owns."""
    shapes, shards = vectors_by_rows(spec, layout, place), shards_of(spec)
    if by_torch(spec):
        return sum(chunk(shape[0], replica, shards) * prod(shape[1:]) for shape in shapes.values())
    if shards == 1:
        return sum(map(prod, shapes.values()))
    at = places_of(spec, unit_costs(spec), [layout.stage_units[stage] for stage in layout.stages_of(place)])
    parts = {name: bucket.part(replica, shards) for bucket in at.buckets for name in bucket.names}
    edges = [(parts[name], at.starts[name], at.starts[name] + prod(shape)) for name, shape in shapes.items()]
    return sum(max(0, min(stop, part.stop) - max(start, part.start)) for part, start, stop in edges)


def sums_in_order(spec: RunSpec, layout: Layout, place: int) -> bool:
    """Whether a tensor group gathers these gradients and adds them in rank order, so that all replicas get the same
    bits."""
    return layout.replicas[place] > 1 and not spec.parallel.zero and layout.widths[place] > 2


def _vectors(spec: RunSpec, layout: Layout, position: tuple[int, int], ranks: tuple[int, ...]) -> list[CommVolume]:
    """Sums of vectors' gradients over a tensor group under sequence parallelism: of what the replica owns of them."""
    if not spec.parallel.sequence:
        return []
    place, updates = position[0], spec.parallel.updates(position[0])
    size = _owned(spec, layout, *position) * MAIN_BYTES[spec.train.precision]
    if not size:
        return []
    if sums_in_order(spec, layout, place):
        return [CommVolume("tensor", ranks, "gathers of vectors' gradients", updates, updates * size * len(ranks))]
    return [CommVolume("tensor", ranks, "all-reduces of vectors' gradients", updates, updates * size, 2)]


class Ways(NamedTuple):
    """A layer's collectives of a kind in its forward, its backward and its recomputation: elements per position of
    each. A recomputation that leaves out a last product needs no collective for it."""

    forward: Sequence[int]
    backward: Sequence[int]
    again: Sequence[int]

    def of_step(self, recomputed: bool) -> tuple[int, ...]:
        """Returns all of a micro-batch."""
        return (*self.forward, *self.backward, *(self.again if recomputed else ()))


@dataclass(frozen=True, slots=True)
class UnitVolume:
    """A layer's tensor-parallel collectives. `sums` are all-reduced, `moved` are gathered or scattered."""

    sums: Ways
    moved: Ways


def unit_volumes(spec: RunSpec) -> list[UnitVolume]:
    """Collectives of each layer. Column-row pairs: one all-reduce in the forward and one in the backward; sequence
    parallelism: gathers and scatters instead (Korthikanti et al. 2022, figure 5) and one more gather for the weight
    gradients; `columns`: three gathers or scatters in addition to each all-reduce of an input gradient
    (`tensor.columns`)."""
    split, units, hidden = spec.parallel, spec.model.units(), [spec.model.hidden]
    found: list[UnitVolume] = []
    outline = outline_of(spec.model)
    matrices, none = outline.matrices(), Ways((), (), ())
    for i, unit in enumerate(units):
        kept = slice(-1) if outline.unread(unit) else slice(None)
        if split.tensor_split == "columns":
            wide = gathered_widths(matrices[i])
            sums = Ways(hidden, (), hidden) if i == 0 else Ways((), hidden, ())
            found.append(UnitVolume(sums, Ways(wide, wide[:1], wide[kept])))
            continue
        forward, backward = _calls(unit, units, split.sequence)
        ways = Ways(hidden * forward, hidden * backward, (hidden * forward)[kept])
        found.append(UnitVolume(none, ways) if split.sequence else UnitVolume(ways, none))
    return found


@dataclass
class _Counted:
    """Number of collectives of a micro-batch, and their total elements per position."""

    calls: int = 0
    width: int = 0

    def add(self, *widths: int) -> None:
        self.calls += len(widths)
        self.width += sum(widths)


def gathered_widths(matrices: Mapping[str, tuple[int, ...]]) -> list[int]:
    """Widths that a layer gathers in a forward if all its linear layers are split by columns: inputs and outputs of
    each second linear layer. Its backward scatters the gradients of the inputs."""
    second = [shape for name, shape in matrices.items() if name in {f"{layer}.weight" for layer in ROW}]
    return [width for outputs, inputs in second for width in (inputs, outputs)]


def _calls(unit: str, units: Sequence[str], sequence: bool) -> tuple[int, int]:
    """Number of collectives (forward, backward) over a micro-batch's activations of a layer split in pairs."""
    if unit == units[0]:
        return 1, int(sequence)
    if unit == units[-1]:
        return int(sequence), 2 if sequence else 1
    return (2, 3) if sequence else (1, 1)


def _data(spec: RunSpec, place: int, replicas: tuple[int, ...]) -> list[CommVolume]:
    held = standing(spec, place)
    if not spec.parallel.zero:
        updates = spec.parallel.updates(place)
        return [CommVolume("data", replicas, "all-reduce of gradients", updates, updates * held.grads, 2)]
    times = spec.parallel.micro_batches if spec.parallel.zero > 1 else 1
    what = "reduce-scatter of gradients" + (", once a micro-batch" if times > 1 else "")
    sums = CommVolume("data", replicas, what, times, times * flat_bytes(spec, place))
    if spec.parallel.zero < 3:
        return [sums, CommVolume("data", replicas, "gather of the parameters that others updated", 1, held.params)]
    forward, backward = unsharded(spec)
    calls, gathered = times * len(forward + backward), times * sum(forward + backward)
    return [sums, CommVolume("data", replicas, "gathers of layers for forward and backward", calls, gathered)]


def _ends(spec: RunSpec, layout: Layout, rank: int) -> list[CommVolume]:
    """The sum of a tied matrix's gradient over the first and the last stage, where these are on two ranks: of what the
    rank owns of it."""
    if not spec.model.tied or layout.places[0] == layout.places[-1]:
        return []
    group = next((ends for ends in layout.end_groups() if rank in ends), None)
    if group is None:
        return []
    place, replica, _ = layout.coords(rank)
    matrix, shards = outline_of(spec.model).shared() // layout.widths[place], shards_of(spec)
    part = -(-matrix // (shards * ALIGN)) * ALIGN
    mine = min(matrix, (replica + 1) * part) - min(matrix, replica * part) if shards > 1 else matrix
    size = mine * MAIN_BYTES[spec.train.precision]
    return [CommVolume("ends", group, "all-reduce of the tied matrix's gradient", 1, size, 2)] if size else []


def mark_bytes(spec: RunSpec) -> int:
    """Bytes sent in addition to each gradient between stages."""
    return MARK_BYTES if spec.train.precision == "fp16" and not spec.parallel.flushes else 0


def _pipeline(spec: RunSpec, layout: Layout, rank: int) -> list[CommVolume]:
    """Activations to the next stage's place and gradients back, for all stages with a neighbour on another place."""
    place, replica, _ = layout.coords(rank)
    edges, mine, size = boundary_elements(spec), layout.micro_batches_of(place, replica), spec.element_bytes
    m = len(mine)
    found: list[CommVolume] = []
    for here, there in pairwise(range(layout.stages)):
        a, b = layout.place(here), layout.place(there)
        moved = m * edges[layout.stage_units[there][0]] * size
        if a == b or place not in (a, b):
            continue
        other, far = (b, there) if place == a else (a, here)
        senders, receivers = layout.neighbours(rank, other)
        times = len(receivers) // len(senders)
        out, back = ("gradients", "activations") if place == b else ("activations", "gradients")
        kind: GroupKind = "next" if place == a else "before"
        size_of = {"activations": moved, "gradients": moved + m * mark_bytes(spec)}
        there_and_back = [
            CommVolume(kind, receivers, f"sends {out} to stage {far}", times * m, times * size_of[out]),
            CommVolume(kind, senders, f"receives {back} from stage {far}", m, size_of[back], receives=True),
        ]
        found.extend(sorted((talk for talk in there_and_back if talk.calls), key=lambda talk: talk.what.split()[1]))
    return found
