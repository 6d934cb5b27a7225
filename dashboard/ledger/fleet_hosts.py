"""The fleet as plans see it: the hosts that runs of each width would be placed on, the memory of their devices, and
what is known of their links."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from dashboard.control.hosts import Request
from dashboard.fleet.selectors import FleetSnapshot
from dashboard.ledger import host_links
from dashboard.ledger.models import LinksBetween
from dashboard.runs.run_files import Files
from dashboard.runs.spreading import asked, expected, most_memory
from parallel_core.plan.room import Room
from parallel_core.rules import divisors
from parallel_core.searches.splits import Placement
from parallel_core.spec import RunSpec


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
        """Where runs would be placed, for each number of devices and width of tensor groups."""
        out = []
        for (world, tp), request in self._requests.items():
            hosts, room = expected(request, self.fleet), self.rooms.get((world, tp))
            out.append(Placement(world=world, tp=tp, hosts=tuple(hosts), memory=room.usable if room else None))
        return out

    @cached_property
    def _requests(self) -> dict[tuple[int, int], Request]:
        _, request = asked(self.spec, Files.of(self.fleet))
        sizes = ((world, tp) for world in range(1, self.devices + 1) for tp in divisors(world))
        return {(world, tp): replace(request, devices=world, unit=tp) for world, tp in sizes}

    @cached_property
    def rooms(self) -> dict[tuple[int, int], Room]:
        """The room on each device of such a run, as in the check of a new run; without those of which it is not
        known."""
        kind = self.spec.train.device
        found = {key: Room.on(self.memory or most_memory(one, self.fleet), kind) for key, one in self._requests.items()}
        return {key: room for key, room in found.items() if room is not None}

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
