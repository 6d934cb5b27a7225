"""Which queued runs get which devices: a pure function from the queue and the hosts to assignments.

Rules: in the order of the queue; all devices of a run at once or none; on one host where any has enough, else on as
few as it takes of those that other hosts reach; never on a host that drains, leaves or is silent, nor on devices with
less memory than the fullest rank is predicted to need, nor on others than those chosen for it (`on`), and on a host
with a requested profile only where no other is free. An `exclusive` run needs idle hosts as a whole and blocks them; it
waits for those that are expected to be idle soonest. A run that has to wait reserves the hosts it waits for, so that
later, smaller runs cannot starve it; of a type of device that was chosen for it, only those devices, unless it needs
the hosts as a whole. Exclusive runs of one study go one after another, on the same host while that is connected, first
on one where all of them have room, because they are meant to be compared; one that no known host can take waits alone.
A host that is absent for a short time still counts for that, or the study would be split over two hosts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from operator import attrgetter

from dashboard.placement.finding import UNTAKEN, Counts, Found, Wait, find
from dashboard.placement.hosts import Host, Request


@dataclass(frozen=True)
class Share:
    """The devices of one host, a rank each from `first_rank` on."""

    host: str
    devices: tuple[int, ...]
    first_rank: int


@dataclass(frozen=True)
class Plan:
    """`placed` in queue order; `waits`: run -> (why it waits, names of the hosts it waits for); `left`: the hosts by
    name without the devices that were given away."""

    placed: list[tuple[Request, list[Share]]] = field(default_factory=list)
    waits: dict[int, tuple[Wait, tuple[str, ...]]] = field(default_factory=dict)
    left: dict[str, Host] = field(default_factory=dict)


def plan(
    queue: Iterable[Request], hosts: Iterable[Host], studies_active: Iterable[int] = (), *, told: bool = True
) -> Plan:
    """Places what can be placed now, in the order of `queue`; `studies_active` are studies with an exclusive run under
    way. Unless why the others wait is to be `told`, no more of the queue is read than may be placed."""
    by_name = {host.name: host for host in hosts}
    untaken = Untaken(by_name.values())
    waiting: dict[object, Found] = {}
    """What was found for a shape that has to wait; valid until hosts are given away or reserved."""
    reserved: set[str] = set()
    busy_studies = set(studies_active)
    result = Plan()
    for request in queue:
        if not (told or waiting or any(host.gives for host in by_name.values() if host.name not in reserved)):
            break
        never = None if request.study is None else untaken.why(request)
        if request.study is not None and never is None:
            if request.study in busy_studies:
                result.waits[request.run] = (Wait.SIBLING, ())
                continue
            busy_studies.add(request.study)  # also when it waits: its younger siblings keep their order
        shape = _SHAPE(request)
        why, counts = found = never or waiting.get(shape) or find(request, by_name, reserved)
        if why is None:
            result.placed.append((request, _give(request, by_name, counts)))
            waiting.clear()
            continue
        if never is None:
            waiting[shape] = found
        result.waits[request.run] = (why, tuple(counts))
        if why not in UNTAKEN and reserved.isdisjoint(counts) and _reserve(request, by_name, counts, reserved):
            waiting.clear()
    result.left.update(by_name)
    return result


def _reserve(request: Request, hosts: dict[str, Host], counts: Counts, reserved: set[str]) -> bool:
    """Reserves for the run, in place, what it waits for; returns whether that was not reserved before."""
    chosen = request.on.device_type
    if request.exclusive or not chosen:
        reserved.update(counts)
        return bool(counts)
    more = {name: hosts[name].reserving(request.kind, chosen) for name in counts}
    new = any(hosts[name] != host for name, host in more.items())
    hosts.update(more)
    return new


_SHAPE = attrgetter(*(one.name for one in fields(Request) if one.name not in ("run", "study")))
"""All of a request that decides where it may run now."""


class Untaken:
    """Tells which requests no host can take, whatever runs there.

    That follows from a request's shape and the number of devices alone, so each shape is looked at once: a study may
    have thousands of queued runs.
    """

    def __init__(self, hosts: Iterable[Host]) -> None:
        every = list(hosts)
        self._open = {host.name: host.ready() for host in every if host.open}
        self._known = {host.name: host.ready() for host in every if host.open or host.known}
        self._found: dict[tuple[object, ...], Found | None] = {}
        self._when_idle: dict[tuple[object, ...], Found] = {}

    def why(self, request: Request) -> Found | None:
        """What `find` says of the open hosts, None if known hosts could take it when they are open and idle."""
        key = _whatever_runs(request)
        if key not in self._found:
            taken = find(request, self._known, set())[0] not in UNTAKEN
            self._found[key] = None if taken else self._of_open(request, key)
        return self._found[key]

    def now(self, request: Request) -> bool:
        """Whether none of the open hosts can take it."""
        return self._of_open(request, _whatever_runs(request))[0] in UNTAKEN

    def _of_open(self, request: Request, key: tuple[object, ...]) -> Found:
        """What `find` says of the open hosts if they are idle."""
        if key not in self._when_idle:
            self._when_idle[key] = find(request, self._open, set())
        return self._when_idle[key]


def _whatever_runs(request: Request) -> tuple[object, ...]:
    """All of a request that decides whether a host can ever take it."""
    shape = (request.devices, request.kind, request.needs, request.hosts, request.alone, request.over)
    return (*shape, request.unit, request.among, request.task, request.memory, request.fields, request.on)


def _give(request: Request, hosts: dict[str, Host], counts: Counts) -> list[Share]:
    """Takes the devices from `hosts`, in place, and returns them as shares."""
    shares, first = [], 0
    for name, count in counts.items():
        taken = hosts[name].spare(request)[:count]
        hosts[name] = hosts[name].without(request.kind, taken, request.exclusive)
        shares.append(Share(name, taken, first))
        first += count
    return shares
