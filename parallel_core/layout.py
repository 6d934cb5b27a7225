"""The layout of a run: stages, data-parallel replicas and tensor ranks <-> global ranks and process groups.

A run of dp x tp x pp fills a box of ranks. Tensor ranks are adjacent (they communicate most), then replicas, then the
*places* of the pipeline: `rank = (place * dp + replica) * tp + tensor`. A place has one stage or, with model chunks,
several (as the schedule determines). Schedules only know *pipeline ranks*, `replica * pp + place`; all ranks of a
tensor-parallel group execute the program of one pipeline rank. (A place is what Megatron-LM calls a pipeline rank; here
pipeline ranks count over replicas, too.)

Where places have different numbers of replicas, ranks are in the same order; pipeline ranks are then numbered place
by place, and every pipeline rank may communicate with all replicas of the neighbouring places. Where places have
different numbers of tensor ranks, each tensor rank of a place receives what it needs, which is the whole boundary
tensor, from one of those of the other place: no more bytes are moved than needed, and the senders share the work.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

from parallel_core.plan.partition import flop_weights, min_max_cut, min_max_cut_over
from parallel_core.schedule import places
from parallel_core.schedule.ways import Ways, ways
from parallel_core.spec import RunSpec


class Coords(NamedTuple):
    """Coordinates of a global rank; `place` is its place in the pipeline, 0 .. pp - 1."""

    place: int
    replica: int
    tensor: int


@dataclass(frozen=True)
class Layout:
    """The box of ranks of one run. `stage_units[s]`: indices into `ModelSpec.units()` of the layers of stage s."""

    replicas: tuple[int, ...]
    """Number of replicas of each place of the pipeline."""
    widths: tuple[int, ...]
    """Number of tensor ranks of a replica of each place."""
    micro_batches: int
    """Number over all replicas: global ids are 0 .. micro_batches - 1."""
    stage_units: tuple[tuple[int, ...], ...]
    places: tuple[int, ...]
    """The place of every stage."""
    flushes: bool = True
    """Whether the pipeline is flushed in every step."""
    in_turn: bool = False
    """Whether micro-batches go to the replicas of each place round-robin (`schedule.round_robin`)."""

    @classmethod
    def of(cls, spec: RunSpec) -> Layout:
        """Returns the layout of a run."""
        split = spec.parallel
        units = len(spec.model.units())
        edges = (0, *(_balanced(spec) if split.cuts is None else split.cuts), units)
        stages = tuple(tuple(range(a, b)) for a, b in pairwise(edges))
        turns = split.replicas is not None
        return cls(split.copies, split.tensor_ranks, split.per_step, stages, places(split), split.flushes, turns)

    @classmethod
    def unknown(cls, world: int) -> Layout:
        """Returns the layout of ranks about which nothing is known: each is on its own, as a replica."""
        return cls((world,), (1,), world, ((0,),), (0,))

    @property
    def pp(self) -> int:
        """Number of places of the pipeline."""
        return len(self.replicas)

    @property
    def dp(self) -> int:
        """Largest number of replicas of any place."""
        return max(self.replicas)

    @property
    def tp(self) -> int:
        """Largest number of tensor ranks of any place."""
        return max(self.widths)

    @cached_property
    def _edges(self) -> tuple[int, ...]:
        """Number of ranks of all places before each place, and of all places."""
        return tuple(accumulate((n * width for n, width in zip(self.replicas, self.widths, strict=True)), initial=0))

    @property
    def world(self) -> int:
        return self._edges[-1]

    @cached_property
    def _positions(self) -> tuple[tuple[int, int], ...]:
        """(place, replica) of every pipeline rank."""
        positions = [(place, replica) for place, count in enumerate(self.replicas) for replica in range(count)]
        return tuple(positions if self.in_turn else sorted(positions, key=lambda position: position[::-1]))

    @cached_property
    def _pipeline_ranks(self) -> dict[tuple[int, int], int]:
        """(place, replica) -> pipeline rank."""
        return {position: q for q, position in enumerate(self._positions)}

    @property
    def stages(self) -> int:
        return len(self.stage_units)

    def place(self, stage: int) -> int:
        """Returns the place of stage `stage`."""
        return self.places[stage]

    def stages_of(self, place: int) -> tuple[int, ...]:
        """Returns the stages of `place`, ascending."""
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
        """Returns the number of tensor ranks of every unit of the model, in order."""
        return tuple(self.widths[self.place(stage)] for stage, units in enumerate(self.stage_units) for _ in units)

    def coords(self, rank: int) -> Coords:
        """Returns the coordinates of global rank `rank`. Raises ValueError outside 0 .. world - 1."""
        if not 0 <= rank < self.world:
            raise ValueError(f"rank {rank} is outside 0 .. {self.world - 1}.")
        place = bisect_right(self._edges, rank) - 1
        return Coords(place, *divmod(rank - self._edges[place], self.widths[place]))

    def rank(self, place: int, replica: int = 0, tensor: int = 0) -> int:
        """Returns the global rank at these coordinates; `rank(place(stage))` is one that holds a stage."""
        return self._edges[place] + replica * self.widths[place] + tensor

    def pipeline_rank(self, rank: int) -> int:
        """Returns the pipeline rank whose program global rank `rank` executes."""
        place, replica, _ = self.coords(rank)
        return self._pipeline_ranks[place, replica]

    def position(self, pipeline_rank: int) -> tuple[int, int]:
        """Returns (place, replica) of a pipeline rank."""
        return self._positions[pipeline_rank]

    def linked(self, replica: int) -> tuple[int, ...]:
        """Returns the pipeline ranks of `replica` and those that they exchange messages with, ordered by place: those
        of the replica or, with round-robin micro-batches, all."""
        positions = sorted(position for position in self._positions if self.in_turn or position[1] == replica)
        return tuple(self._pipeline_ranks[position] for position in positions)

    def tensor_group(self, pipeline_rank: int) -> tuple[int, ...]:
        """Returns the global ranks that execute `pipeline_rank`'s program: a tensor-parallel group."""
        first = self.rank(*self._positions[pipeline_rank])
        return tuple(range(first, first + self.widths[self._positions[pipeline_rank][0]]))

    def sender(self, rank: int, pipeline_rank: int) -> int:
        """Returns the rank in the tensor-parallel group of `pipeline_rank` that sends to global rank `rank`."""
        group = self.tensor_group(pipeline_rank)
        return group[self.coords(rank).tensor % len(group)]

    def receivers(self, rank: int, pipeline_rank: int) -> tuple[int, ...]:
        """The ranks in the tensor-parallel group of `pipeline_rank` that global rank `rank` sends to; possibly none."""
        place, _, tensor = self.coords(rank)
        return self.tensor_group(pipeline_rank)[tensor :: self.widths[place]]

    @cached_property
    def ways(self) -> Ways:
        """The places between which messages go, by kind."""
        return ways(self.places)

    def unfed_stages(self, rank: int) -> frozenset[int]:
        """Returns the stages that receive nothing from global rank `rank`: those with fewer tensor ranks, which receive
        from others."""
        tensor = self.coords(rank).tensor
        if tensor < self._narrowest:
            return frozenset()
        return frozenset(stage for stage, place in enumerate(self.places) if tensor >= self.widths[place])

    def neighbours(self, rank: int, place: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the global ranks of a neighbouring `place` that `rank` receives from, and those that it sends to, for
        the micro-batches that it works on."""
        own = self.coords(rank)
        copies = sorted({i % self.replicas[place] for i in self.micro_batches_of(own.place, own.replica)})
        others = [self._pipeline_ranks[place, copy] for copy in copies]
        return tuple(self.sender(rank, q) for q in others), tuple(r for q in others for r in self.receivers(rank, q))

    def pipeline_of(self, rank: int) -> tuple[int, ...]:
        """Returns the global ranks that exchange messages in `rank`'s pipeline, itself included, ordered by place; the
        same for each of them.

        They have the same tensor coordinate or, where widths differ, any.
        """
        _, replica, tensor = self.coords(rank)
        groups = [self.tensor_group(q) for q in self.linked(replica)]
        even = len(set(self.widths)) == 1
        return tuple(member for group in groups for member in (group[tensor : tensor + 1] if even else group))

    def tensor_groups(self) -> tuple[tuple[int, ...], ...]:
        """The global ranks that share a place and a replica, group by group; together they cover every rank once."""
        return tuple(
            tuple(range(first, first + width))
            for (start, stop), width in zip(pairwise(self._edges), self.widths, strict=True)
            for first in range(start, stop, width)
        )

    def data_groups(self) -> tuple[tuple[int, ...], ...]:
        """Returns the global ranks that hold the same parameters (same place and tensor rank), in replica order."""
        return tuple(
            tuple(self.rank(place, replica, tensor) for replica in range(count))
            for place, count in enumerate(self.replicas)
            for tensor in range(self.widths[place])
        )

    def end_groups(self) -> tuple[tuple[int, ...], ...]:
        """Returns the global ranks of the first and the last stage of each pipeline, by replica and tensor rank; a
        group of one where both are on the same rank. Both must have as many replicas and tensor ranks."""
        ends = sorted({self.places[0], self.places[-1]})
        return tuple(
            tuple(self.rank(end, replica, tensor) for end in ends)
            for replica in range(self.replicas[ends[0]])
            for tensor in range(self.widths[ends[0]])
        )

    def micro_batches_of(self, place: int, replica: int) -> tuple[int, ...]:
        """Returns the global micro-batch ids of a step that replica `replica` of `place` works on, ascending."""
        return tuple(range(replica, self.micro_batches, self.replicas[place]))


def _balanced(spec: RunSpec) -> tuple[int, ...]:
    """Returns cuts that balance the devices' FLOPs as well as possible."""
    split, weights = spec.parallel, flop_weights(spec.model)
    devices = [copies * width for copies, width in zip(split.copies, split.tensor_ranks, strict=True)]
    if len(set(devices)) == 1:
        return min_max_cut(weights, split.stages)
    return min_max_cut_over(tuple(weights), tuple(devices[place] for place in places(split)))
