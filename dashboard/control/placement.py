"""Which queued runs get which devices: a pure function from the queue and the hosts to assignments.

Rules: oldest first; all devices of a run at once or none; on one host; never on one that is draining or silent. An
`exclusive` run needs a whole idle host and blocks it. A run that has to wait reserves the host it waits for, so that
later, smaller runs cannot starve it. Exclusive runs of one study go one after another, on the same host while it is
there: they are meant to be compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum


class Wait(Enum):
    """Why a run was not placed."""

    NO_HOST = "no host"  # none is connected and open
    TOO_LARGE = "too large"  # no open host has that many devices of the kind at all
    BUSY = "busy"  # its host has too few free devices
    WHOLE_HOST = "whole host"  # exclusive: something is still running there, or something exclusive is
    RESERVED = "reserved"  # an older run waits for the host
    CHECKPOINT = "checkpoint"  # the host with the checkpoint it begins from, or its token file, is away or draining
    SIBLING = "sibling"  # a run of the same study is active or ahead


@dataclass(frozen=True)
class Request:
    """A queued run. `study` is set for exclusive runs of a study alone.

    `prefer` names the host that its siblings ran on, or that has its own checkpoints; `needs` the one it must run on.
    """

    run: int
    devices: int
    kind: str
    exclusive: bool = False
    study: int | None = None
    prefer: str = ""
    needs: str = ""


@dataclass(frozen=True)
class Host:
    """A worker: all and free device indices by kind. `open`: neither draining nor silent."""

    name: str
    devices: dict[str, tuple[int, ...]]
    free: dict[str, tuple[int, ...]]
    exclusive: bool = False
    open: bool = True

    def count(self, kind: str) -> int:
        return len(self.devices.get(kind, ()))

    def left(self, kind: str) -> int:
        return len(self.free.get(kind, ()))

    @property
    def idle(self) -> bool:
        return self.free == self.devices

    def without(self, kind: str, taken: tuple[int, ...], exclusive: bool) -> Host:
        """The host with these devices given away."""
        free = {**self.free, kind: tuple(i for i in self.free[kind] if i not in taken)}
        return replace(self, free=free, exclusive=self.exclusive or exclusive)


@dataclass(frozen=True)
class Share:
    """Devices of one host, one rank each from `first_rank` on."""

    host: str
    devices: tuple[int, ...]
    first_rank: int


@dataclass(frozen=True)
class Plan:
    """`placed` in queue order; `waits`: run -> (why, name of the host it waits for or '')."""

    placed: list[tuple[Request, list[Share]]] = field(default_factory=list)
    waits: dict[int, tuple[Wait, str]] = field(default_factory=dict)


def plan(queue: Iterable[Request], hosts: Iterable[Host], studies_active: Iterable[int] = ()) -> Plan:
    """Places what can be placed now. `queue` is oldest first; `studies_active` have an exclusive run under way."""
    by_name = {host.name: host for host in hosts}
    reserved: set[str] = set()
    busy_studies = set(studies_active)
    result = Plan()
    for request in queue:
        if request.study is not None and request.study in busy_studies:
            result.waits[request.run] = (Wait.SIBLING, "")
            continue
        why, name = _find(request, by_name, reserved)
        if why is None:
            shares = _give(request, by_name, name)
            result.placed.append((request, shares))
        else:
            result.waits[request.run] = (why, name)
            if name and why is not Wait.RESERVED:
                reserved.add(name)
        if request.study is not None:
            busy_studies.add(request.study)  # also when it waits: its younger siblings keep their order
    return result


def _find(request: Request, hosts: dict[str, Host], reserved: set[str]) -> tuple[Wait | None, str]:
    """(None, host that takes it) or (why not, the host to wait for)."""
    usable = [host for host in hosts.values() if host.open]
    if not usable:
        return Wait.NO_HOST, ""
    if request.needs:
        usable = [host for host in usable if host.name == request.needs]
        if not usable:
            return Wait.CHECKPOINT, request.needs
    capable = [host for host in usable if host.count(request.kind) >= request.devices]
    if not capable:
        return Wait.TOO_LARGE, ""
    preferred = [host for host in capable if host.name == request.prefer]
    capable = preferred or sorted(capable, key=lambda host: (-host.left(request.kind), host.name))
    unreserved = [host for host in capable if host.name not in reserved]
    for host in unreserved:
        if _fits(request, host):
            return None, host.name
    if not unreserved:
        return Wait.RESERVED, capable[0].name
    host = unreserved[0]
    return (Wait.WHOLE_HOST if request.exclusive or host.exclusive else Wait.BUSY), host.name


def _fits(request: Request, host: Host) -> bool:
    if host.exclusive or host.left(request.kind) < request.devices:
        return False
    return host.idle or not request.exclusive


def _give(request: Request, hosts: dict[str, Host], name: str) -> list[Share]:
    """Takes the devices. A run over several hosts would return a share for each; one host holds it all so far."""
    taken = hosts[name].free[request.kind][: request.devices]
    hosts[name] = hosts[name].without(request.kind, taken, request.exclusive)
    return [Share(name, taken, 0)]
