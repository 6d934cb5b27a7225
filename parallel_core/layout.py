"""Who stands where: stages, data-parallel replicas and tensor ranks <-> global ranks and process groups.

A run of dp x tp x pp fills a box of ranks. Tensor ranks are neighbours (they talk most), then replicas, then the
*places* of the pipeline: `rank = (place * dp + replica) * tp + tensor`. A place holds one stage or, with model chunks,
several (the schedule says which). Schedules know only *pipeline ranks*, `replica * pp + place`; a tensor-parallel
group walks the program of one pipeline rank together.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from parallel_core.plan.partition import flop_weights, min_max_cut
from parallel_core.schedule import places
from parallel_core.spec import RunSpec


class Coords(NamedTuple):
    """Coordinates of a global rank; `place` is its place in the pipeline, 0 .. pp - 1."""

    place: int
    replica: int
    tensor: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The box of ranks of one run. `stage_units[s]` are the indices into `ModelSpec.units()` that stage s holds."""

    dp: int
    tp: int
    pp: int
    micro_batches: int
    """Over all replicas: global ids are 0 .. micro_batches - 1."""
    stage_units: tuple[tuple[int, ...], ...]
    places: tuple[int, ...]
    """The place of every stage."""
    flushes: bool = True
    """Whether the pipeline runs empty in every step."""

    @classmethod
    def of(cls, spec: RunSpec) -> Layout:
        split = spec.parallel
        units = len(spec.model.units())
        cuts = split.cuts if split.cuts is not None else min_max_cut(flop_weights(spec.model), split.stages)
        edges = (0, *cuts, units)
        stages = tuple(tuple(range(a, b)) for a, b in pairwise(edges))
        return cls(split.dp, split.tp, split.pp, split.dp * split.micro_batches, stages, places(split), split.flushes)

    @property
    def world(self) -> int:
        return self.dp * self.tp * self.pp

    @property
    def stages(self) -> int:
        return len(self.stage_units)

    def place(self, stage: int) -> int:
        """Place that holds stage `stage`."""
        return self.places[stage]

    def stages_of(self, place: int) -> tuple[int, ...]:
        """Stages that stand on `place`, ascending."""
        return tuple(stage for stage, home in enumerate(self.places) if home == place)

    def coords(self, rank: int) -> Coords:
        """Coordinates of global rank `rank`; raises ValueError outside 0 .. world - 1."""
        if not 0 <= rank < self.world:
            raise ValueError(f"rank {rank} is outside 0 .. {self.world - 1}.")
        pair, tensor = divmod(rank, self.tp)
        place, replica = divmod(pair, self.dp)
        return Coords(place, replica, tensor)

    def rank(self, place: int, replica: int = 0, tensor: int = 0) -> int:
        """Global rank at these coordinates; `rank(place(stage))` is one that holds a stage."""
        return (place * self.dp + replica) * self.tp + tensor

    def pipeline_rank(self, rank: int) -> int:
        """Pipeline rank whose program global rank `rank` walks."""
        place, replica, _ = self.coords(rank)
        return replica * self.pp + place

    def pipeline_ranks(self, replica: int) -> tuple[int, ...]:
        """Pipeline ranks of one replica, place by place."""
        return tuple(replica * self.pp + place for place in range(self.pp))

    def peer(self, pipeline_rank: int, tensor: int) -> int:
        """Global rank with tensor coordinate `tensor` among those that walk `pipeline_rank`'s program."""
        replica, place = divmod(pipeline_rank, self.pp)
        return self.rank(place, replica, tensor)

    def tensor_groups(self) -> tuple[tuple[int, ...], ...]:
        """Global ranks that share a place and a replica, group by group; together they cover every rank once."""
        return tuple(tuple(range(first, first + self.tp)) for first in range(0, self.world, self.tp))

    def data_groups(self) -> tuple[tuple[int, ...], ...]:
        """Global ranks that hold the same parameters (same place and tensor rank), in replica order."""
        return tuple(
            tuple(self.rank(place, replica, tensor) for replica in range(self.dp))
            for place in range(self.pp)
            for tensor in range(self.tp)
        )

    def micro_batches_of(self, replica: int) -> tuple[int, ...]:
        """Global micro-batch ids that replica `replica` works on, ascending."""
        return tuple(range(replica, self.micro_batches, self.dp))
