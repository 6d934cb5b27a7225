"""The hosts of a layout picture: which rank is on which, their marks, and which communication crosses hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from parallel_core.plan.traffic import CommVolume

NAMED = 8
"""The most hosts that the key names; it says how many more there are."""
STRIPES = 4
"""Number of colours; hosts of the same colour differ in their mark."""


@dataclass(frozen=True)
class Host:
    """`mark` is shown at its ranks, `stripe` is its colour (0 .. STRIPES - 1)."""

    name: str
    mark: str
    stripe: int
    ranks: str


@dataclass(frozen=True)
class Hosts:
    """`names` = the host of each rank; () if all ranks are on one host, or that is not known."""

    names: Sequence[str] = ()
    _order: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_order", {name: i for i, name in enumerate(dict.fromkeys(self.names))})

    @property
    def several(self) -> bool:
        return len(self._order) > 1

    def mark(self, rank: int) -> str:
        """'A', 'B' … for the rank's host; '' if there is only one host."""
        return _mark(self._order[self.names[rank]]) if self.several else ""

    def stripe(self, rank: int) -> int | None:
        return self._order[self.names[rank]] % STRIPES if self.several else None

    def on(self, rank: int) -> str:
        """', on vm', to follow a rank."""
        return f", on {self.names[rank]}" if self.several else ""

    def between(self, rank: int, talk: CommVolume) -> bool:
        """Whether `rank` communicates with a group over the network."""
        return self.several and any(self.names[other] != self.names[rank] for other in talk.ranks)

    def key(self) -> list[Host]:
        """The hosts with their marks and ranks, for the picture's key; [] if there is only one."""
        if not self.several:
            return []
        ranks: dict[str, list[int]] = {}
        for rank, name in enumerate(self.names):
            ranks.setdefault(name, []).append(rank)
        return [Host(name, _mark(i), i % STRIPES, _ranks(ranks[name])) for name, i in list(self._order.items())[:NAMED]]

    @property
    def more(self) -> int:
        """Number of hosts that the key does not name."""
        return max(0, len(self._order) - NAMED)


def even(world: int, each: int) -> Hosts:
    """Hosts of `each` ranks, numbered from 1, as a plan fills them; no hosts if all ranks fit on one."""
    return Hosts([f"host {rank // each + 1}" for rank in range(world)]) if 0 < each < world else Hosts()


def _mark(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else f"{chr(ord('A') + index // 26 - 1)}{chr(ord('A') + index % 26)}"


def _ranks(ranks: Sequence[int]) -> str:
    """`ranks 0 to 3` if they are consecutive, else their number."""
    together = list(ranks) == list(range(ranks[0], ranks[0] + len(ranks)))
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) == 2:
        return f"ranks {ranks[0]} and {ranks[1]}"
    return f"ranks {ranks[0]} to {ranks[-1]}" if together else f"{len(ranks)} ranks"
