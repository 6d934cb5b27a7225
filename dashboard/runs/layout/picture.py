"""The layout of a run as data for a picture: the mesh of ranks, and what the chosen rank holds and sends. No markup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from dashboard.numbers import number
from dashboard.runs.layout.boxes import Box, box_of
from dashboard.runs.layout.hosts import Hosts
from dashboard.runs.layout.splits import Splits, resplit, splits_of
from parallel_core.analysis.quantities import bytes_text, count_text, large_text, percent_text
from parallel_core.layout import Layout
from parallel_core.outline.splits import TensorSplit
from parallel_core.plan.grad_buckets import shards_of
from parallel_core.plan.rank_shards import Held, held, held_parameters
from parallel_core.plan.traffic import CommVolume, comm_volumes, sent_bytes
from parallel_core.plan.units import parameter_count
from parallel_core.spec import RunSpec

DRAWN_PLACES, DRAWN_REPLICAS, DRAWN_TENSOR = 16, 8, 8

ALONE = Hosts()
NO_RANK = -1
GROUPS = {
    "tensor": "tensor group",
    "data": "replicas",
    "next": "next stage",
    "before": "stage before",
    "ends": "other end of the pipeline",
}


@dataclass(frozen=True)
class Cell:
    """A rank in the mesh. `role` = 'chosen', or its relation to the chosen rank (a key of GROUPS), or ''.

    `mark` and `stripe` are those of its host, if there are several.
    """

    rank: int
    role: str
    title: str
    mark: str = ""
    stripe: int | None = None


@dataclass(frozen=True)
class Layers:
    """Equal layers of one stage: their `names`, and their matrices."""

    stage: int
    names: str
    boxes: list[Box]


@dataclass(frozen=True)
class Said:
    """One kind of communication of the chosen rank: with whom, how often, and how many bytes."""

    group: str
    ranks: str
    what: str
    calls: int
    size: str
    wire: str
    share: float
    """Length of its bar, in percent of the largest."""
    between: bool = False
    """Whether it goes between hosts."""


@dataclass(frozen=True)
class Picture:
    """`rows[i][k]` = the cells of a tensor group: of the replica `replicas[i]`, on the place that `heads[k]` names.
    `drawn` says how many ranks are drawn; '' if all are."""

    sentence: str
    rank: int
    instead: str
    """Why the rank is not the requested one; '' if it is."""
    place: str
    heads: list[str]
    replicas: list[int]
    rows: list[list[list[Cell]]]
    drawn: str
    layers: list[Layers]
    said: list[Said]
    world: int
    how: TensorSplit = "pairs"
    splits: Splits | None = None
    hosts: Hosts = ALONE
    shards: int = 1
    """Replicas over which ZeRO-3 divides what is drawn."""

    @property
    def query(self) -> str:
        """The part of the query, apart from the rank, that draws the same split."""
        return f"&split={self.how}" if self.splits and self.splits.other else ""

    @property
    def by_replica(self) -> list[tuple[int, list[list[Cell]]]]:
        """(replica, its row) of the mesh."""
        return list(zip(self.replicas, self.rows, strict=True))

    @property
    def groups(self) -> dict[str, str]:
        """The entries of GROUPS that occur in the mesh, for its key."""
        there = {cell.role for row in self.rows for cells in row for cell in cells}
        return {key: name for key, name in GROUPS.items() if key in there}


def asked_rank(given: str | None) -> int:
    """The rank in a query: 0 if absent, NO_RANK if it is not a number."""
    found = number(given)
    return found if found is not None else NO_RANK if given else 0


def picture(own: RunSpec, rank: int, how: str = "", hosts: Hosts = ALONE) -> Picture:
    """The picture for `rank`; for a rank that does not exist, that of rank 0, with a message.

    `how` = the tensor split to show, if the run could have it; else its own. `hosts` = where its ranks are.
    """
    layout = Layout.of(own)
    rank, instead = (rank, "") if 0 <= rank < layout.world else (0, _no_rank(rank, layout.world))
    spec = resplit(own, how)
    layers, spoken = held(spec, rank), comm_volumes(spec, rank)
    place, replica, tensor = layout.coords(rank)
    drawn = _Drawn.of(layout, rank)
    return Picture(
        sentence=_sentence(spec, rank, len(layers), spoken, hosts),
        rank=rank,
        instead=instead,
        place=f"Place {place} of the pipeline, replica {replica}, tensor rank {tensor}",
        heads=[_head(layout, p) for p in drawn.places],
        replicas=drawn.replicas,
        rows=_mesh(layout, rank, spoken, hosts),
        drawn=drawn.text(layout),
        layers=_layers(layers),
        said=_said(rank, spoken, hosts),
        world=layout.world,
        how=spec.parallel.tensor_split,
        splits=splits_of(own, rank, spec.parallel.tensor_split),
        hosts=hosts,
        shards=shards_of(spec) if spec.parallel.zero > 2 else 1,
    )


def _no_rank(asked: int, world: int) -> str:
    there = f"ranks are 0 to {count_text(world - 1)}" if world > 1 else "the only one is rank 0"
    which = f"There is no rank {count_text(asked)}" if asked >= 0 else "The address names no rank"
    return f"{which}: {there}. Rank 0 is shown."


def _sentence(spec: RunSpec, rank: int, layers: int, spoken: list[CommVolume], hosts: Hosts) -> str:
    mine, whole = held_parameters(spec, rank), parameter_count(spec.model)
    text = f"Rank {rank} holds {layers} of the {len(spec.model.units())} parts of the model and "
    text += f"{percent_text(mine / whole)} of {large_text(whole)} parameters"
    if not spoken:
        return f"{text}; it sends nothing."
    most = max(spoken, key=lambda talk: (not talk.receives, talk.wire))
    apart = sent_bytes(talk for talk in spoken if hosts.between(rank, talk))
    sent = f"{bytes_text(sent_bytes(spoken))} a step" + (f", {bytes_text(apart)} of it between hosts" if apart else "")
    what = most.what.removeprefix("sends ")
    if most.wire == sent_bytes(spoken):
        return f"{text}; it sends {sent}: {what}."
    return f"{text}; it sends {sent}. Largest part, {bytes_text(most.wire)}: {what}."


def _head(layout: Layout, place: int) -> str:
    stages = layout.stages_of(place)
    return f"stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}"


class _Drawn(NamedTuple):
    """The coordinates that the mesh draws: of each the first ones, of which the last gives way to the chosen rank's."""

    places: list[int]
    replicas: list[int]
    tensors: list[int]

    @classmethod
    def of(cls, layout: Layout, chosen: int) -> _Drawn:
        own, sizes = layout.coords(chosen), (layout.pp, layout.dp, max(layout.widths))
        found = []
        for at, size, most in zip(own, sizes, (DRAWN_PLACES, DRAWN_REPLICAS, DRAWN_TENSOR), strict=True):
            first = list(range(min(size, most)))
            found.append(first if at in first else [*first[:-1], at])
        return cls(*found)

    def tensors_at(self, layout: Layout, place: int, replica: int) -> list[int]:
        """The drawn tensor ranks of a replica of a place; [] where the place has no such replica."""
        return [t for t in self.tensors if t < layout.widths[place]] if replica < layout.replicas[place] else []

    def text(self, layout: Layout) -> str:
        """How many ranks are drawn; '' for all."""
        n = sum(len(self.tensors_at(layout, place, replica)) for place in self.places for replica in self.replicas)
        return "" if n == layout.world else f"{count_text(n)} of {count_text(layout.world)} ranks drawn"


def _mesh(layout: Layout, chosen: int, spoken: list[CommVolume], hosts: Hosts) -> list[list[list[Cell]]]:
    roles = {rank: talk.kind for talk in reversed(spoken) for rank in talk.ranks} | {chosen: "chosen"}

    def cell(place: int, replica: int, tensor: int) -> Cell:
        rank = layout.rank(place, replica, tensor)
        role = roles.get(rank, "")
        what = {"": "", "chosen": ", chosen"}.get(role, f", {GROUPS.get(role, '')}")
        where = f"{_head(layout, place)}, replica {replica}, tensor {tensor}{hosts.on(rank)}"
        return Cell(rank, role, f"Rank {rank}: {where}{what}", hosts.mark(rank), hosts.stripe(rank))

    drawn = _Drawn.of(layout, chosen)
    return [[[cell(p, r, t) for t in drawn.tensors_at(layout, p, r)] for p in drawn.places] for r in drawn.replicas]


def _layers(layers: list[Held]) -> list[Layers]:
    """Equal layers of a stage as one entry, in the order of their first."""
    alike: dict[tuple[Any, ...], list[str]] = {}
    for layer in layers:
        key = (layer.stage, layer.unit.rsplit(".", 1)[-1] if layer.matrices else layer.unit, layer.matrices)
        alike.setdefault(key, []).append(layer.unit)
    longest = max((max(matrix.shape) for layer in layers for matrix in layer.matrices), default=1)
    return [
        Layers(stage, _names(names), [box_of(matrix, longest) for matrix in matrices])
        for (stage, _, matrices), names in alike.items()
    ]


def _names(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)})"


def _said(rank: int, spoken: list[CommVolume], hosts: Hosts) -> list[Said]:
    most = max((talk.wire for talk in spoken), default=1)
    return [
        Said(
            GROUPS[talk.kind],
            _ranks(talk.ranks),
            talk.what,
            talk.calls,
            bytes_text(talk.bytes),
            bytes_text(talk.wire),
            round(100 * talk.wire / most, 1),
            hosts.between(rank, talk),
        )
        for talk in spoken
    ]


def _ranks(ranks: tuple[int, ...]) -> str:
    if len(ranks) > 6:
        return f"{ranks[0]}, {ranks[1]} … {ranks[-1]} ({len(ranks)})"
    return ", ".join(map(str, ranks))
