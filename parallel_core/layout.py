"""Who stands where: stages, data-parallel replicas and tensor ranks <-> global ranks and process groups.

A run of dp x tp x pp fills a box of ranks. Tensor ranks are neighbours (they talk most), then replicas, then the
*places* of the pipeline: `rank = (place * dp + replica) * tp + tensor`. A place holds one stage or, with model chunks,
several (the schedule says which). Schedules know only *pipeline ranks*, `replica * pp + place`; a tensor-parallel
group walks the program of one pipeline rank together.

Where places have different numbers of replicas, ranks go in the same order; pipeline ranks then go place by place, and
every pipeline rank may talk to all replicas of the places beside it. Where they have different numbers of tensor ranks,
each tensor rank of a place takes what it needs, which is all of a boundary tensor, from one of those of the other: the
bytes that move are those that are needed, and the giving ones share them out.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

from parallel_core.plan.partition import flop_weights, min_max_cut, min_max_cut_over
from parallel_core.schedule import places
from parallel_core.spec import RunSpec


class Coords(NamedTuple):
    """Coordinates of a global rank; `place` is its place in the pipeline, 0 .. pp - 1."""

    place: int
    replica: int
    tensor: int


@dataclass(frozen=True)
class Layout:
    """The box of ranks of one run. `stage_units[s]` are the indices into `ModelSpec.units()` that stage s holds."""

    replicas: tuple[int, ...]
    """Of each place of the pipeline."""
    widths: tuple[int, ...]
    """Tensor ranks of a replica of each place."""
    micro_batches: int
    """Over all replicas: global ids are 0 .. micro_batches - 1."""
    stage_units: tuple[tuple[int, ...], ...]
    places: tuple[int, ...]
    """The place of every stage."""
    flushes: bool = True
    """Whether the pipeline runs empty in every step."""
    in_turn: bool = False
    """Micro-batches go to the replicas of each place in turn (`schedule.round_robin`)."""

    @classmethod
    def of(cls, spec: RunSpec) -> Layout:
        split = spec.parallel
        units = len(spec.model.units())
        edges = (0, *(_balanced(spec) if split.cuts is None else split.cuts), units)
        stages = tuple(tuple(range(a, b)) for a, b in pairwise(edges))
        turns = split.replicas is not None
        return cls(split.copies, split.tensor_ranks, split.per_step, stages, places(split), split.flushes, turns)

    @classmethod
    def unknown(cls, world: int) -> Layout:
        """Of ranks of which nothing tells what they share: each stands for itself, as replicas do."""
        return cls((world,), (1,), world, ((0,),), (0,))

    @property
    def pp(self) -> int:
        return len(self.replicas)

    @property
    def dp(self) -> int:
        """Most replicas of any place."""
        return max(self.replicas)

    @property
    def tp(self) -> int:
        """Most tensor ranks of any place."""
        return max(self.widths)

    @cached_property
    def _edges(self) -> tuple[int, ...]:
        """Ranks of all places before each place, and of all."""
        return tuple(accumulate((n * width for n, width in zip(self.replicas, self.widths, strict=True)), initial=0))

    @property
    def world(self) -> int:
        return self._edges[-1]

    @cached_property
    def _seats(self) -> tuple[tuple[int, int], ...]:
        """(place, replica) of every pipeline rank."""
        seats = [(place, replica) for place, count in enumerate(self.replicas) for replica in range(count)]
        return tuple(seats if self.in_turn else sorted(seats, key=lambda seat: seat[::-1]))

    @cached_property
    def _walks(self) -> dict[tuple[int, int], int]:
        """(place, replica) -> pipeline rank."""
        return {seat: q for q, seat in enumerate(self._seats)}

    @property
    def stages(self) -> int:
        return len(self.stage_units)

    def place(self, stage: int) -> int:
        """Place that holds stage `stage`."""
        return self.places[stage]

    def stages_of(self, place: int) -> tuple[int, ...]:
        """Stages that stand on `place`, ascending."""
        return self._stages_at.get(place, ())

    @cached_property
    def _narrowest(self) -> int:
        return min(self.widths)

    @cached_property
    def _stages_at(self) -> dict[int, tuple[int, ...]]:
        at: dict[int, list[int]] = {}
        for stage, home in enumerate(self.places):
            at.setdefault(home, []).append(stage)
        return {place: tuple(stages) for place, stages in at.items()}

    def unit_widths(self) -> tuple[int, ...]:
        """Tensor ranks of every unit of the model, in order."""
        return tuple(self.widths[self.place(stage)] for stage, units in enumerate(self.stage_units) for _ in units)

    def coords(self, rank: int) -> Coords:
        """Coordinates of global rank `rank`; raises ValueError outside 0 .. world - 1."""
        if not 0 <= rank < self.world:
            raise ValueError(f"rank {rank} is outside 0 .. {self.world - 1}.")
        place = bisect_right(self._edges, rank) - 1
        return Coords(place, *divmod(rank - self._edges[place], self.widths[place]))

    def rank(self, place: int, replica: int = 0, tensor: int = 0) -> int:
        """Global rank at these coordinates; `rank(place(stage))` is one that holds a stage."""
        return self._edges[place] + replica * self.widths[place] + tensor

    def pipeline_rank(self, rank: int) -> int:
        """Pipeline rank whose program global rank `rank` walks."""
        place, replica, _ = self.coords(rank)
        return self._walks[place, replica]

    def seat(self, pipeline_rank: int) -> tuple[int, int]:
        """(place, replica) of a pipeline rank."""
        return self._seats[pipeline_rank]

    def linked(self, replica: int) -> tuple[int, ...]:
        """Pipeline ranks that exchange messages with those of `replica`, and themselves, place by place: those of the
        replica or, where micro-batches go round, all."""
        seats = sorted(seat for seat in self._seats if self.in_turn or seat[1] == replica)
        return tuple(self._walks[seat] for seat in seats)

    def walkers(self, pipeline_rank: int) -> tuple[int, ...]:
        """Global ranks that walk `pipeline_rank`'s program, a tensor group."""
        first = self.rank(*self._seats[pipeline_rank])
        return tuple(range(first, first + self.widths[self._seats[pipeline_rank][0]]))

    def giver(self, rank: int, pipeline_rank: int) -> int:
        """Of the tensor group of `pipeline_rank`, the one that sends to global rank `rank`."""
        group = self.walkers(pipeline_rank)
        return group[self.coords(rank).tensor % len(group)]

    def takers(self, rank: int, pipeline_rank: int) -> tuple[int, ...]:
        """Of the tensor group of `pipeline_rank`, those that global rank `rank` sends to; maybe none."""
        place, _, tensor = self.coords(rank)
        return self.walkers(pipeline_rank)[tensor :: self.widths[place]]

    def deaf(self, rank: int) -> frozenset[int]:
        """Stages that take nothing from global rank `rank`: they have fewer tensor ranks, which take it from others."""
        tensor = self.coords(rank).tensor
        if tensor < self._narrowest:
            return frozenset()
        return frozenset(stage for stage, place in enumerate(self.places) if tensor >= self.widths[place])

    def neighbours(self, rank: int, place: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Global ranks of another `place`, whose stages are next to those of `rank`'s, that it receives from and that
        it sends to, for the micro-batches that it works on."""
        own = self.coords(rank)
        copies = sorted({i % self.replicas[place] for i in self.micro_batches_of(own.place, own.replica)})
        others = [self._walks[place, copy] for copy in copies]
        return tuple(self.giver(rank, q) for q in others), tuple(r for q in others for r in self.takers(rank, q))

    def pipeline_of(self, rank: int) -> tuple[int, ...]:
        """Global ranks that messages of `rank`'s pipeline go between, itself included: with its tensor coordinate or,
        where widths differ, with any; place by place, and the same for each of them."""
        _, replica, tensor = self.coords(rank)
        groups = [self.walkers(q) for q in self.linked(replica)]
        even = len(set(self.widths)) == 1
        return tuple(member for group in groups for member in (group[tensor : tensor + 1] if even else group))

    def tensor_groups(self) -> tuple[tuple[int, ...], ...]:
        """Global ranks that share a place and a replica, group by group; together they cover every rank once."""
        return tuple(
            tuple(range(first, first + width))
            for (start, stop), width in zip(pairwise(self._edges), self.widths, strict=True)
            for first in range(start, stop, width)
        )

    def data_groups(self) -> tuple[tuple[int, ...], ...]:
        """Global ranks that hold the same parameters (same place and tensor rank), in replica order."""
        return tuple(
            tuple(self.rank(place, replica, tensor) for replica in range(count))
            for place, count in enumerate(self.replicas)
            for tensor in range(self.widths[place])
        )

    def micro_batches_of(self, place: int, replica: int) -> tuple[int, ...]:
        """Global micro-batch ids of a step that replica `replica` of `place` works on, ascending."""
        return tuple(range(replica, self.micro_batches, self.replicas[place]))


def _balanced(spec: RunSpec) -> tuple[int, ...]:
    """Cuts that give every device as many FLOPs as may be."""
    split, weights = spec.parallel, flop_weights(spec.model)
    devices = [copies * width for copies, width in zip(split.copies, split.tensor_ranks, strict=True)]
    if len(set(devices)) == 1:
        return min_max_cut(weights, split.stages)
    return min_max_cut_over(tuple(weights), tuple(devices[place] for place in places(split)))
