"""The fleet as plans see it: the hosts that runs of each width would be placed on, the memory of their devices, and
what is known of their links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from dashboard.fleet.selectors import FleetSnapshot
from dashboard.ledger import host_links
from dashboard.ledger.models import LinksBetween
from dashboard.placement.hosts import Request
from dashboard.runs.run_files import Files
from dashboard.runs.waiting.spreading import asked, chosen, expected, most_memory, several
from parallel_core.plan.room import Room
from parallel_core.rules import divisors
from parallel_core.searches.splits import Placement
from parallel_core.spec import RunSpec

Placed = tuple[tuple[str, ...], Room | None]
"""The host of each rank of a run, () on one host, and the room on each of its devices, None if it is not known."""


@dataclass(frozen=True)
class FleetHosts:
    """The hosts for runs of the model of `spec`, trained as it says, on at most `devices` devices. `memory`: bytes of
    each device, in place of what it has; 0 = what it has."""

    spec: RunSpec
    devices: int
    fleet: FleetSnapshot
    memory: int = 0

    @classmethod
    def most(cls, kind: str, fleet: FleetSnapshot) -> int:
        """The most devices of that kind that one run can have, of the hosts that take runs."""
        hosts = [host for host in fleet.idle() if host.open]
        across = sum(host.count(kind) for host in hosts if host.across)
        return max([across, *(host.count(kind) for host in hosts)])

    @cached_property
    def placements(self) -> list[Placement]:
        """Where runs would be placed, for each number of devices and width of tensor groups: those that need more
        memory can be on other hosts."""
        return [
            Placement(world=world, tp=tp, hosts=hosts, memory=room.usable if room else None)
            for (world, tp), found in self._placed.items()
            for hosts, room in found
        ]

    @cached_property
    def _requests(self) -> dict[tuple[int, int], Request]:
        _, request = asked(self.spec, Files.of(self.fleet))
        sizes = ((world, tp) for world in range(1, self.devices + 1) for tp in divisors(world))
        return {(world, tp): replace(request, devices=world, unit=tp) for world, tp in sizes}

    @cached_property
    def rooms(self) -> list[Room]:
        """The most room on each device of such runs, without those of which it is not known."""
        return [room for found in self._placed.values() if (room := found[-1][1])]

    @cached_property
    def _placed(self) -> dict[tuple[int, int], list[Placed]]:
        return {key: [*self._by_need(request)] or [self._anyhow(request)] for key, request in self._requests.items()}

    def _by_need(self, request: Request) -> Iterator[Placed]:
        """Where such a run would be placed if it needed what the smallest of the fleet's devices have, then more."""
        found: Placed | None = None
        for size in self._sizes:
            names = chosen(replace(request, memory=size), self.fleet)
            if not names:
                break
            hosts = tuple(several(names))
            if found and found[0] != hosts:
                yield found
            found = hosts, Room.on(size, request.kind)
        if found:
            yield found

    def _anyhow(self, request: Request) -> Placed:
        """Where such a run would be placed, on devices of the memory that was asked for, or if too few that are known
        take runs."""
        room = Room.on(self.memory or most_memory(request, self.fleet), request.kind)
        return tuple(expected(request, self.fleet)), room

    @cached_property
    def _sizes(self) -> list[int]:
        """Bytes of the devices that take runs, each size once, the smallest first; none if a memory was asked for."""
        open_ones = [] if self.memory else [host for host in self.fleet.idle() if host.open]
        return sorted({size for host in open_ones for size in host.memory.get(self.spec.train.device, {}).values()})

    @cached_property
    def _pairs(self) -> list[host_links.Pair]:
        return sorted({pair for each in self.placements for pair in host_links.pairs_of(each.hosts)})

    @cached_property
    def links(self) -> list[LinksBetween]:
        """The newest measurement of the links between each pair of these hosts."""
        wanted = set(self._pairs)
        return [row for row in host_links.newest(self.spec.train.device) if (row.first, row.second) in wanted]

    @property
    def untimed(self) -> host_links.Pair | None:
        """The first pair of these hosts whose links were never measured; None if there is none."""
        known = {(row.first, row.second) for row in self.links}
        return next((pair for pair in self._pairs if pair not in known), None)
