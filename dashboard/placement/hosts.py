"""What the placement is told: queued runs, and hosts with their free devices."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from dashboard.fleet.run_on import ANYWHERE, RunOn

NOBODY = ("",)
"""As `needs`: no host has what the run reads."""


@dataclass(frozen=True)
class Request:
    """A queued run. `study` is set only for exclusive runs of a study.

    - `prefer`: the host that its siblings ran on, or that has its own checkpoints.
    - `widest`: devices of the largest run that its study has yet to place on one host, as its runs are to be compared.
    - `needs`: hosts that have what the run reads; () = any will do.
    - `among`: hosts that the run is about; it needs all of them.
    - `over`: hosts that share what it writes, the only ones over which it may be spread; () = any.
    - `hosts`: how many hosts to spread it over evenly; 0 = as few as it takes.
    - `alone`: never over several hosts.
    - `unit`: ranks that should stay on one host (a tensor group).
    - `task`: what it does instead of training (one of workers.contract.TASKS); '' = it trains.
    - `memory`: bytes that each of its devices must have, that of every rank as much as the fullest one's; 0 = any will
      do.
    - `fields`: fields of its spec that a host has to know (parallel_core.known_fields).
    - `on`: the devices that were chosen for it.
    """

    run: int
    devices: int
    kind: str
    exclusive: bool = False
    study: int | None = None
    prefer: str = ""
    widest: int = 0
    needs: tuple[str, ...] = ()
    hosts: int = 0
    alone: bool = False
    over: tuple[str, ...] = ()
    unit: int = 1
    among: tuple[str, ...] = ()
    task: str = ""
    memory: int = 0
    fields: tuple[str, ...] = ()
    on: RunOn = ANYWHERE


@dataclass(frozen=True)
class Host:
    """A worker: its device indices by kind, all and free. `open`: it takes new runs: it neither drains, leaves nor is
    silent, and no other worker has its name. `known`: it is open or may soon be again, as it was heard a short time
    ago. `profiles`: a profile was requested there, for whose end a run sent later waits. `across`: it may have a
    part of a run over several hosts. `tasks`: what it can do instead of training; `fields`: later fields of specs
    that it knows. `memory`: bytes of its devices by kind and index; one that does not report it is taken to have
    enough. `version`: of the program it runs; `types`: names of its devices by kind; `type_of`: the
    type of each by kind and index. `held`: a run holds devices there, also if it does not list them any more, as they
    cannot be used. `reserved`: (kind, type) of the devices that a run ahead waits for, of a host where other ones may
    be given. `idle_in`: seconds until all runs there are expected to have ended; inf if that is not known."""

    name: str
    devices: dict[str, tuple[int, ...]]
    free: dict[str, tuple[int, ...]]
    exclusive: bool = False
    open: bool = True
    profiles: bool = False
    across: bool = True
    tasks: tuple[str, ...] = ()
    known: bool = True
    fields: frozenset[str] = frozenset()
    memory: dict[str, dict[int, int]] = field(default_factory=dict)
    held: bool = False
    version: str = ""
    types: dict[str, str] = field(default_factory=dict)
    type_of: dict[str, dict[int, str]] = field(default_factory=dict)
    reserved: frozenset[tuple[str, str]] = frozenset()
    idle_in: float = 0.0

    def count(self, kind: str) -> int:
        return len(self.devices.get(kind, ()))

    def left(self, kind: str) -> int:
        return len(self.free.get(kind, ()))

    def having(self, request: Request) -> tuple[int, ...]:
        """Indices of the devices that the run could have if they were free."""
        return self._suitable(self.devices.get(request.kind, ()), request)

    def spare(self, request: Request) -> tuple[int, ...]:
        """Indices of the devices that the run could have now."""
        return self._suitable(self._unreserved(request.kind), request)

    def chosen(self, request: Request) -> bool:
        """Whether it has some of the devices that were chosen for the run, and what that reads."""
        known = request.on.takes(self.name, self.type_of.get(request.kind, {}).values())
        return known and (not request.needs or self.name in request.needs)

    def _suitable(self, indices: tuple[int, ...], request: Request) -> tuple[int, ...]:
        least = request.memory
        if request.on.device_type:
            types = self.type_of.get(request.kind, {})
            indices = tuple(i for i in indices if types.get(i) == request.on.device_type)
        if not least or not indices or request.kind not in self.memory:
            return indices
        sizes = self.memory[request.kind]
        return tuple(i for i in indices if sizes.get(i, least) >= least)

    def _unreserved(self, kind: str) -> tuple[int, ...]:
        """Indices of its free devices for which no run ahead waits."""
        free = self.free.get(kind, ())
        if not self.reserved:
            return free
        types = self.type_of.get(kind, {})
        return tuple(i for i in free if (kind, types.get(i, "")) not in self.reserved)

    def knows(self, request: Request) -> bool:
        return (not request.task or request.task in self.tasks) and self.fields.issuperset(request.fields)

    @property
    def idle(self) -> bool:
        return self.free == self.devices and not self.held and not self.reserved

    @property
    def gives(self) -> bool:
        """Whether at least one run could be placed there now."""
        return self.open and not self.exclusive and any(self._unreserved(kind) for kind in self.free)

    def ready(self) -> Host:
        """The host as if it were open and nothing ran there."""
        return replace(self, free=self.devices, exclusive=False, open=True, held=False, idle_in=0.0)

    def reserving(self, kind: str, device_type: str) -> Host:
        """The host when a run waits for its devices of that kind and type."""
        return replace(self, reserved=self.reserved | {(kind, device_type)})

    def unreserved(self) -> Host:
        """The host as if no run ahead waited for some of its devices."""
        return replace(self, reserved=frozenset())

    def without(self, kind: str, taken: tuple[int, ...], exclusive: bool) -> Host:
        """The host after these devices were given away."""
        free = {**self.free, kind: tuple(i for i in self.free[kind] if i not in taken)}
        return replace(self, free=free, exclusive=self.exclusive or exclusive, idle_in=inf)
