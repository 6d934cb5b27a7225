"""A slow link between two neighbours of a pipeline: each message occupies it `ms` milliseconds longer, one after the
other.

The sender does not wait, only the receiver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from parallel_core.faults.base import Fault, Milliseconds, Rank
from parallel_core.rules import Proposal

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec


class SlowLink(Fault):
    kind: Literal["slow_link"] = "slow_link"
    rank: Rank = 0
    peer: Rank = 1
    ms: Milliseconds = 20.0
    title: ClassVar[str] = "Slow link"
    blurb: ClassVar[str] = "messages between two neighbours of a pipeline arrive late"
    hints: ClassVar[dict[str, str]] = {"rank": "one end", "peer": "the other end", "ms": "added to each message"}

    @property
    def sentence(self) -> str:
        return f"each message between ranks {self.rank} and {self.peer} takes {self.ms:g} ms longer"

    def check(self, spec: RunSpec) -> None:
        if spec.parallel.pp == 1:
            problem = f"peer={self.peer} is no neighbour of a rank in a pipeline, and pp=1 has none; use"
            longer = Proposal("pp={} or more", "parallel.pp", [2, 3, 4])
            raise self.wrong("peer", problem, longer, others=("parallel.pp",))
        self.need_rank(spec, self.rank)
        self.need_rank(spec, self.peer, "peer")
        self.need_cpu(spec, "messages")
        if self.peer not in (near := neighbours(spec, self.rank)):
            problem = f"rank={self.rank} sends nothing to peer={self.peer}, which is no neighbour of it; use"
            raise self.wrong("peer", problem, self.proposal("peer", near, self.peer), others=(self.at("rank"),))

    def link_delay(self, rank: int, peer: int) -> float:
        return self.ms / 1e3 if {rank, peer} == {self.rank, self.peer} else 0.0


def neighbours(spec: RunSpec, rank: int) -> list[int]:
    """Returns the ranks that `rank` exchanges activations and gradients with, ascending."""
    from itertools import pairwise

    from parallel_core.layout import Layout  # `layout` imports `spec`, which imports this module

    layout = Layout.of(spec)
    here = layout.coords(rank).place
    pairs = {pair for a, b in pairwise(layout.places) if a != b for pair in ((a, b), (b, a))}
    return sorted({other for at, to in pairs if at == here for ranks in layout.neighbours(rank, to) for other in ranks})
