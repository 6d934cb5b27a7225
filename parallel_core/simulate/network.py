"""Cost of a run's messages given the placement of its ranks: inside a host from the profile, between hosts as timed
there.

Two levels, as in a fleet: a group that spans hosts runs at the pace of its slowest pair of hosts. Replicas and tensor
ranks that do the same at the same time wait for each other afterwards, so the slowest of them stands for all; they
share the link (`crossing`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import combinations
from typing import Literal, NamedTuple

from parallel_core.layout import Layout
from parallel_core.profile.curves import Link, LinksBetween, What
from parallel_core.profile.table import CostTable
from parallel_core.simulate.cost_requirements import NeverTimed
from parallel_core.simulate.link_contention import Flow, Line

Pattern = tuple[tuple[str, int], ...]
"""Number of a group's ranks on each of its hosts."""
Among = Literal["tensor", "data", "ends"]
"""Ranks of a collective: a tensor group, the replicas of a place, or pipeline ends that share parameters."""


class Where(NamedTuple):
    """`hosts[rank]` of a run, and the links timed between each pair of hosts; empty: all ranks on one host."""

    hosts: Sequence[str] = ()
    between: Sequence[LinksBetween] = ()


ALONE = Where()


class Exchange(NamedTuple):
    """Seconds of a collective, and whether they pass without work: ranks that share a device wait, as do ranks whose
    messages are between hosts. `moving`: seconds of these with bytes on an inter-host link."""

    seconds: float
    waited: bool
    moving: float = 0.0

    def work(self) -> float:
        """Seconds that are work."""
        return 0.0 if self.waited else self.seconds

    def waiting(self) -> float:
        """Seconds that are not work."""
        return self.seconds if self.waited else 0.0

    def on_a_line(self) -> float:
        """`moving`, as a method like the other two."""
        return self.moving


class Network:
    """`hosts[rank]`: host of each global rank (empty: all on the host of `table`); `between`: links timed between each
    pair of hosts. Raises NeverTimed for a pair without timing."""

    def __init__(
        self, layout: Layout, table: CostTable, hosts: Sequence[str] = (), between: Sequence[LinksBetween] = ()
    ) -> None:
        self._layout, self._table = layout, table
        self._hosts = list(hosts) or [""] * layout.world
        self._between = {frozenset(found.hosts): found for found in between if found.device == table.device}
        missing = [pair for pair in combinations(sorted(set(self._hosts)), 2) if frozenset(pair) not in self._between]
        if missing:
            raise NeverTimed(missing)

    # Devices

    def devices(self) -> list[int]:
        """Device number of each rank: the ranks of a host take its devices in turn."""
        seen: Counter[str] = Counter()
        order, out = list(dict.fromkeys(self._hosts)), []
        for host in self._hosts:
            out.append(order.index(host) * self._table.devices + seen[host] % self._table.devices)
            seen[host] += 1
        return out

    @cached_property
    def homes(self) -> dict[int, int]:
        """Device number -> host number; {} if there is only one host."""
        if len(set(self._hosts)) < 2:
            return {}
        return {device: device // self._table.devices for device in self.devices()}

    @property
    def busy(self) -> int:
        """Ranks on the fullest host."""
        return max(Counter(self._hosts).values())

    # Groups

    def patterns(self, groups: Iterable[Sequence[int]]) -> frozenset[Pattern]:
        """The different placements of these groups of global ranks on hosts."""
        return frozenset(tuple(sorted(Counter(self._hosts[rank] for rank in group).items())) for group in groups)

    def tensor(self, place: int) -> frozenset[Pattern]:
        """Placements of the tensor groups of a place."""
        first, last = self._layout.rank(place), self._layout.rank(place, self._layout.replicas[place])
        width = self._layout.widths[place]
        return self.patterns(range(rank, rank + width) for rank in range(first, last, width))

    def data(self, place: int) -> frozenset[Pattern]:
        """Placements of the data-parallel groups of a place."""
        return self.patterns(self._copies(place))

    def ends(self, first: int, last: int) -> frozenset[Pattern]:
        """Placements of the pairs of ranks on two places that share parameters."""
        both = range(min(self._layout.replicas[first], self._layout.replicas[last]))
        return self.patterns(pair for replica in both for pair in self._pairs_of(first, last, replica))

    def _copies(self, place: int) -> list[list[int]]:
        """Groups of global ranks with the same parameters, one for each tensor rank of a place."""
        layout = self._layout
        copies = range(layout.replicas[place])
        return [[layout.rank(place, r, t) for r in copies] for t in range(layout.widths[place])]

    def _pairs_of(self, first: int, last: int, replica: int) -> list[list[int]]:
        """Pairs of ranks of a replica, one at each end of the pipeline, that share parameters."""
        layout = self._layout
        width = min(layout.widths[first], layout.widths[last])
        return [[layout.rank(place, replica, t) for place in (first, last)] for t in range(width)]

    @property
    def world(self) -> frozenset[Pattern]:
        """Placement of the group of all ranks."""
        return self.patterns([range(self._layout.world)])

    def exchange(self, what: What, patterns: Iterable[Pattern], size: float) -> Exchange:
        """A collective of `size` bytes in total, in the slowest of these groups."""
        return max((self._exchange(what, pattern, size) for pattern in patterns), default=Exchange(0.0, False))

    def _exchange(self, what: What, pattern: Pattern, size: float) -> Exchange:
        ranks = sum(count for _, count in pattern)
        if len(pattern) > 1:
            links = (link for pair in self._pairs(pattern) if (link := pair.link(what, ranks)))
            seconds, moving = max((link.collective(ranks, size) for link in links), default=(0.0, 0.0))
            return Exchange(seconds, True, moving)
        link = self._table.link(what, ranks)
        if link is None:
            return Exchange(0.0, False)
        return Exchange(link.collective(ranks, size)[0], link.ranks > self._table.devices)

    def most_timed(self, pattern: Pattern) -> int:
        """The most ranks of a group placed like this whose collectives were timed; 0 if none were."""
        links = [link for pair in self._pairs(pattern) for link in pair.links if link.hosts > 1]
        known = links if len(pattern) > 1 else self._table.links
        return max((link.ranks for link in known if link.what != "send"), default=0)

    def _pairs(self, pattern: Pattern) -> list[LinksBetween]:
        return [self._between[frozenset(pair)] for pair in combinations((host for host, _ in pattern), 2)]

    def crossing(self, among: Among, pipeline_rank: int, seconds: float) -> Flow | None:
        """The inter-host flow of collectives whose bytes are on a link for `seconds` alone, for all groups of this
        kind that the pipeline rank takes part in at once; None if none of them spans hosts."""
        place, replica = self._layout.position(pipeline_rank)
        groups, name = self._groups(among, place, replica)
        lines: Counter[Line] = Counter()
        for group in groups:
            hosts = [self._hosts[rank] for rank in group]
            ring = zip(hosts, [*hosts[1:], hosts[0]], strict=True)
            lines.update({line for line in ring if line[0] != line[1]})
        if not lines or seconds <= 0:
            return None
        link = self._between[frozenset(lines.most_common(1)[0][0])]
        sizes = [one.time.sizes[-1] for one in link.links if _is_send(one)]
        return Flow(lines, 1e9 * seconds, 0.0, _slower(link, max(sizes, default=0.0)), (among, name))

    def _groups(self, among: Among, place: int, replica: int) -> tuple[Sequence[Sequence[int]], object]:
        """Groups of one place whose ranks communicate at the same time, and a key common to them."""
        if among == "data":
            return self._copies(place), place
        if among == "tensor":
            width = self._layout.widths[place]
            first = self._layout.rank(place, replica)
            return [range(first, first + width)], (place, replica)
        first, last = (self._layout.place(stage) for stage in (0, self._layout.stages - 1))
        shared = replica < min(self._layout.replicas[first], self._layout.replicas[last])
        return self._pairs_of(first, last, replica) if shared else [], replica

    # Messages

    def route(self, place: int, receiver: int, size: float) -> Link | None:
        """The link for a tensor of `size` bytes from one place of the pipeline to another, on the slowest route of any
        replica; None if it was never measured."""
        found = {self._way(rank, other) for rank in self._ranks(place) for other in self._receivers(rank, receiver)}
        links = [link for way in found if (link := self._link(*way)) is not None]
        return max(links, key=lambda link: link.time.at(size), default=None)

    def flow(self, sender: int, receiver: int, size: float) -> Flow | None:
        """Flow of a message between two pipeline ranks, a tensor of `size` bytes to each receiving rank; None if
        both are on one host. If tensor groups span hosts, the fullest link stands for all."""
        lines: Counter[Line] = Counter()
        for rank in self._layout.tensor_group(sender):
            lines.update({(self._hosts[rank], self._hosts[other]) for other in self._layout.receivers(rank, receiver)})
        lines = Counter({line: count for line, count in lines.items() if line[0] != line[1]})
        if not lines:
            return None
        (line, streams), *_ = lines.most_common(1)
        times = max(len(self._layout.receivers(rank, receiver)) for rank in self._layout.tensor_group(sender))
        return self._on(line, streams, times, size)

    def _on(self, line: Line, streams: int, times: int, size: float) -> Flow | None:
        """`streams` at once on a link, each of `times` tensors one after the other."""
        between = self._between[frozenset(line)]
        link = between.link("send", 2)
        if link is None:
            return None
        latency = min(link.time.seconds[0], link.time.at(size))
        alone = link.time.at(size) - latency
        return Flow({line: streams}, 1e9 * times * alone, 1e9 * times * latency, _slower(between, size))

    def _ranks(self, place: int) -> range:
        return range(self._layout.rank(place), self._layout.rank(place, self._layout.replicas[place]))

    def _receivers(self, rank: int, place: int) -> Sequence[int]:
        return self._layout.neighbours(rank, place)[1]

    def _way(self, rank: int, other: int) -> tuple[str, str, bool]:
        """(from host, to host, whether the whole pipeline is on one host): only then do CPU ranks use shared memory."""
        members = {self._hosts[member] for member in self._layout.pipeline_of(rank)}
        return self._hosts[rank], self._hosts[other], len(members) == 1

    def _link(self, host: str, other: str, together: bool) -> Link | None:
        if host != other:
            return self._between[frozenset((host, other))].link("send", 2)
        if not together and self._table.device == "cpu":
            known = (found.link("send", 2, hosts=1) for pair, found in self._between.items() if host in pair)
            if (link := next((link for link in known if link), None)) is not None:
                return link
        return self._table.link("send", 2)


def _is_send(link: Link) -> bool:
    return (link.what, link.hosts) == ("send", 2)


def _slower(between: LinksBetween, size: float) -> tuple[tuple[int, float], ...]:
    """(streams, slowdown of each against one alone, latency aside), as timed with so many bytes."""
    link = between.link("send", 2)
    if link is None:
        return ()
    latency = min(link.time.seconds[0], link.time.at(size))
    alone = link.time.at(size) - latency
    wider = sorted((one for one in between.links if _is_send(one) and one.ranks > 2), key=lambda one: one.ranks)
    return tuple((one.ranks // 2, max(1.0, (one.time.at(size) - latency) / alone)) for one in wider) if alone else ()
