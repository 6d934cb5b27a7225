"""The hosts of a layout picture: which rank is on which, how each is marked, and what goes between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from parallel_core.plan.traffic import CommVolume

NAMED = 8
"""Hosts that the key names; of more it says how many there are."""
STRIPES = 4
"""Colours; hosts that have the same are told apart by their mark."""


@dataclass(frozen=True)
class Host:
    """`mark` stands beside its ranks, `stripe` is its colour (0 .. STRIPES - 1)."""

    name: str
    mark: str
    stripe: int
    ranks: str


@dataclass(frozen=True)
class Hosts:
    """`names` by rank; none where all ranks are on one host, or nobody knows."""

    names: Sequence[str] = ()
    _order: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_order", {name: i for i, name in enumerate(dict.fromkeys(self.names))})

    @property
    def several(self) -> bool:
        return len(self._order) > 1

    def mark(self, rank: int) -> str:
        """'A', 'B' … of the host; '' where there is one."""
        return _mark(self._order[self.names[rank]]) if self.several else ""

    def stripe(self, rank: int) -> int | None:
        return self._order[self.names[rank]] % STRIPES if self.several else None

    def on(self, rank: int) -> str:
        """', on vm' behind a rank."""
        return f", on {self.names[rank]}" if self.several else ""

    def between(self, rank: int, talk: CommVolume) -> bool:
        """Whether what `rank` has to do with that group goes over the network."""
        return self.several and any(self.names[other] != self.names[rank] for other in talk.ranks)

    def key(self) -> list[Host]:
        if not self.several:
            return []
        ranks: dict[str, list[int]] = {}
        for rank, name in enumerate(self.names):
            ranks.setdefault(name, []).append(rank)
        return [Host(name, _mark(i), i % STRIPES, _ranks(ranks[name])) for name, i in list(self._order.items())[:NAMED]]

    @property
    def more(self) -> int:
        """Hosts that the key does not name."""
        return max(0, len(self._order) - NAMED)


def even(world: int, each: int) -> Hosts:
    """Hosts of `each` ranks, numbered from 1, as a plan fills them."""
    return Hosts([f"host {rank // each + 1}" for rank in range(world)]) if 0 < each < world else Hosts()


def _mark(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else f"{chr(ord('A') + index // 26 - 1)}{chr(ord('A') + index % 26)}"


def _ranks(ranks: Sequence[int]) -> str:
    """`ranks 0 to 3`; of those that stand together."""
    together = list(ranks) == list(range(ranks[0], ranks[0] + len(ranks)))
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) == 2:
        return f"ranks {ranks[0]} and {ranks[1]}"
    return f"ranks {ranks[0]} to {ranks[-1]}" if together else f"{len(ranks)} ranks"
