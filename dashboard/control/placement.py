"""Which queued runs get which devices: a pure function from the queue and the hosts to assignments.

Rules: in the order of the queue; all devices of a run at once or none; on one host where any has enough, else on as
few as it takes of those that other hosts reach; never on a host that drains, leaves or is silent, nor on devices with
less memory than the fullest rank is predicted to need, nor on others than those chosen for it (`on`), and on a host
with a requested profile only where no other is free. An `exclusive` run needs idle hosts as a whole and blocks them. A
run that has to wait reserves the hosts it waits for, so that later, smaller runs cannot starve it. Exclusive runs of
one study go one after another, on the same host while that is connected, because they are meant to be compared; one
that no known host can take waits alone. A host that is absent for a short time still counts for that, or the study
would be split over two hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from operator import attrgetter

from dashboard.fleet.run_on import ANYWHERE, RunOn

Counts = dict[str, int]
"""Number of devices by name of the host that gives them, in rank order."""


class Wait(Enum):
    """Why a run was not placed."""

    NO_HOST = "no host"  # no host is connected and open
    TOO_LARGE = "too large"  # the open hosts, alone or together, do not have that many devices of the kind
    BUSY = "busy"  # its hosts have enough devices, but too few are free
    WHOLE_HOST = "whole host"  # it is exclusive and something runs there, or something exclusive runs there
    RESERVED = "reserved"  # a run ahead waits for the host
    CHECKPOINT = "checkpoint"  # the host that has the checkpoint it begins from, or its token file, is away or draining
    CHOICE = "choice"  # no open host has any of the devices that were chosen for it and what it reads
    AWAY = "away"  # one of the hosts that the run measures is away, draining or not for runs over several hosts
    MEMORY = "memory"  # its hosts have the devices, but too few with the memory that it is predicted to need
    UNABLE = "unable"  # its hosts have the devices, but too few of them know its task or its fields
    VERSIONS = "versions"  # hosts of different versions have the devices together, no hosts of one version do
    SIBLING = "sibling"  # a run of the same study is active or ahead


Found = tuple[Wait | None, Counts]
"""(None, devices by host in rank order) or (why not, devices by host for the hosts to wait for)."""
TOO_FEW = (Wait.TOO_LARGE, Wait.MEMORY)
"""Reasons to wait of a run that needs more such devices than its hosts have, busy ones included."""
UNTAKEN = (*TOO_FEW, Wait.CHOICE, Wait.CHECKPOINT, Wait.AWAY, Wait.UNABLE, Wait.VERSIONS)
"""Reasons to wait that no end of another run removes: only another host, or the change of one, does."""


@dataclass(frozen=True)
class Request:
    """A queued run. `study` is set only for exclusive runs of a study.

    - `prefer`: the host that its siblings ran on, or that has its own checkpoints.
    - `needs`: hosts that have what the run reads.
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
    cannot be used."""

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

    def count(self, kind: str) -> int:
        return len(self.devices.get(kind, ()))

    def left(self, kind: str) -> int:
        return len(self.free.get(kind, ()))

    def having(self, request: Request) -> tuple[int, ...]:
        """Indices of the devices that the run could have if they were free."""
        return self._suitable(self.devices.get(request.kind, ()), request)

    def spare(self, request: Request) -> tuple[int, ...]:
        """Indices of the devices that the run could have now."""
        return self._suitable(self.free.get(request.kind, ()), request)

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

    def knows(self, request: Request) -> bool:
        return (not request.task or request.task in self.tasks) and self.fields.issuperset(request.fields)

    @property
    def idle(self) -> bool:
        return self.free == self.devices and not self.held

    @property
    def gives(self) -> bool:
        """Whether at least one run could be placed there now."""
        return self.open and not self.exclusive and any(self.free.values())

    def ready(self) -> Host:
        """The host as if it were open and nothing ran there."""
        return replace(self, free=self.devices, exclusive=False, open=True, held=False)

    def without(self, kind: str, taken: tuple[int, ...], exclusive: bool) -> Host:
        """The host after these devices were given away."""
        free = {**self.free, kind: tuple(i for i in self.free[kind] if i not in taken)}
        return replace(self, free=free, exclusive=self.exclusive or exclusive)


@dataclass(frozen=True)
class Share:
    """The devices of one host, a rank each from `first_rank` on."""

    host: str
    devices: tuple[int, ...]
    first_rank: int


@dataclass(frozen=True)
class Plan:
    """`placed` in queue order; `waits`: run -> (why it waits, names of the hosts it waits for)."""

    placed: list[tuple[Request, list[Share]]] = field(default_factory=list)
    waits: dict[int, tuple[Wait, tuple[str, ...]]] = field(default_factory=dict)


def plan(
    queue: Iterable[Request], hosts: Iterable[Host], studies_active: Iterable[int] = (), *, told: bool = True
) -> Plan:
    """Places what can be placed now, in the order of `queue`; `studies_active` are studies with an exclusive run under
    way. Unless why the others wait is to be `told`, no more of the queue is read than may be placed."""
    by_name = {host.name: host for host in hosts}
    untaken = _Untaken(by_name.values())
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
        why, counts = found = never or waiting.get(shape) or _find(request, by_name, reserved)
        if why is None:
            result.placed.append((request, _give(request, by_name, counts)))
            waiting.clear()
            continue
        if never is None:
            waiting[shape] = found
        result.waits[request.run] = (why, tuple(counts))
        if why not in (*UNTAKEN, Wait.RESERVED) and not reserved.issuperset(counts):
            reserved.update(counts)
            waiting.clear()
    return result


_SHAPE = attrgetter(*(one.name for one in fields(Request) if one.name not in ("run", "study")))
"""All of a request that decides where it may run now."""


class _Untaken:
    """Tells which requests no known host can take, whatever runs there.

    That follows from a request's shape and the number of devices alone, so each shape is looked at once: a study may
    have thousands of queued runs.
    """

    def __init__(self, hosts: Iterable[Host]) -> None:
        every = list(hosts)
        self._open = {host.name: host.ready() for host in every if host.open}
        self._known = {host.name: host.ready() for host in every if host.open or host.known}
        self._found: dict[tuple[object, ...], Found | None] = {}

    def why(self, request: Request) -> Found | None:
        """What `_find` says of the open hosts, None if known hosts could take it when they are open and idle."""
        shape = (request.devices, request.kind, request.needs, request.hosts, request.alone, request.over)
        key = (*shape, request.unit, request.among, request.task, request.memory, request.fields, request.on)
        if key not in self._found:
            taken = _find(request, self._known, set())[0] not in UNTAKEN
            self._found[key] = None if taken else _find(request, self._open, set())
        return self._found[key]


def _find(request: Request, hosts: dict[str, Host], reserved: set[str]) -> Found:
    usable = [host for host in hosts.values() if host.open]
    if request.on:
        chosen = [host for host in hosts.values() if host.chosen(request)]
        usable = [host for host in chosen if host.open]
        if not usable:
            return Wait.CHOICE, {host.name: 1 for host in chosen}
    if not usable:
        return Wait.NO_HOST, {}
    if request.needs:
        usable = [host for host in usable if host.name in request.needs]
        if not usable:
            return Wait.CHECKPOINT, dict.fromkeys(request.needs, request.devices)
    if request.among:
        usable = [host for host in usable if host.name in request.among and host.across]
        if away := set(request.among) - {host.name for host in usable}:
            return Wait.AWAY, dict.fromkeys(sorted(away), 1)
    return _find_able(request, usable, reserved)


def _find_able(request: Request, usable: list[Host], reserved: set[str]) -> Found:
    """Looks among the hosts that know the run's task and fields; the others are named if they are what is missing."""
    able = [host for host in usable if host.knows(request)]
    unable = {host.name: 1 for host in usable if host not in able and host.count(request.kind)}
    why, counts = _find_large(request, able, reserved)
    if unable and why in TOO_FEW and _find_large(request, usable, reserved)[0] not in TOO_FEW:
        return Wait.UNABLE, unable
    return why, counts


def _find_large(request: Request, usable: list[Host], reserved: set[str]) -> Found:
    """Looks for devices with enough memory; hosts with smaller ones are named if that is what is missing."""
    why, counts = _find_devices(request, usable, reserved)
    if why is not Wait.TOO_LARGE or not request.memory:
        return why, counts
    of_any_size = replace(request, memory=0)
    if _find_devices(of_any_size, usable, reserved)[0] is Wait.TOO_LARGE:
        return why, counts
    return Wait.MEMORY, {h.name: 1 for h in usable if len(h.having(request)) < len(h.having(of_any_size))}


def _find_devices(request: Request, usable: list[Host], reserved: set[str]) -> Found:
    if request.hosts < 2:
        capable = [host for host in usable if len(host.having(request)) >= request.devices]
        if capable:
            return _find_one(request, capable, reserved)
    if request.alone:
        return Wait.TOO_LARGE, {}
    usable = [host for host in usable if host.across and (not request.over or host.name in request.over)]
    return _find_several(request, usable, reserved) if request.task else _find_alike(request, usable, reserved)


def _find_alike(request: Request, usable: list[Host], reserved: set[str]) -> Found:
    """Looks among the hosts of each version: the ranks of a training run follow rules that another version may have
    changed, such as which collective sums a gradient, or which step is metered.

    Of those among hosts with the same devices, as the slowest sets the pace of all ranks; different ones are mixed only
    where no type of them would ever be enough.
    """
    chosen = request.on.device_type
    alike = _best(request, usable, reserved, lambda host: (host.version, chosen or host.types.get(request.kind)))
    best = alike if alike[0] not in TOO_FEW else _best(request, usable, reserved, lambda host: host.version)
    if best[0] in TOO_FEW and _find_several(request, usable, reserved)[0] not in TOO_FEW:
        return Wait.VERSIONS, {host.name: 1 for host in usable if host.having(request)}
    return best


def _best(request: Request, usable: list[Host], reserved: set[str], group: Callable[[Host], object]) -> Found:
    """The best answer of `_find_several` among the groups of hosts."""
    groups: dict[object, list[Host]] = {}
    for host in usable:
        groups.setdefault(group(host), []).append(host)
    each = [_find_several(request, hosts, reserved) for hosts in groups.values()]
    return min(each, key=lambda found: (found[0] is not None, found[0] in TOO_FEW), default=(Wait.TOO_LARGE, {}))


def _find_one(request: Request, capable: list[Host], reserved: set[str]) -> Found:
    preferred = [host for host in capable if host.name == request.prefer]
    capable = preferred or sorted(capable, key=lambda host: (host.profiles, -len(host.spare(request)), host.name))
    unreserved = [host for host in capable if host.name not in reserved]
    for host in unreserved:
        if _fits(request, host, request.devices):
            return None, {host.name: request.devices}
    first = (unreserved or capable)[0]
    return _why(request, [first], not unreserved), {first.name: request.devices}


def _find_several(request: Request, usable: list[Host], reserved: set[str]) -> Found:
    """Looks for hosts that together have the devices: free ones now, else the hosts that could give them and are waited
    for."""
    ready = [host for host in usable if host.name not in reserved and _fits(request, host, 1)]
    if counts := spread(request, ready, lambda host: len(host.spare(request))):
        return None, counts
    unreserved = [host for host in usable if host.name not in reserved]
    for among in (unreserved, usable):
        if counts := spread(request, among, lambda host: len(host.having(request))):
            by_name = {host.name: host for host in among}
            return _why(request, [by_name[name] for name in counts], among is usable and bool(reserved)), counts
    return Wait.TOO_LARGE, {}


def spread(request: Request, hosts: Iterable[Host], have: Callable[[Host], int]) -> Counts:
    """Devices by host: the same number on each of `request.hosts` hosts if that is set, else on as few hosts as it
    takes.

    {} if the hosts have too few. Where possible, no tensor group is split over two hosts.
    """
    order = sorted(hosts, key=lambda host: (host.name != request.prefer, host.profiles, -have(host), host.name))
    for unit in dict.fromkeys((request.unit, 1)):
        if found := _spread(request, {host.name: have(host) // unit * unit for host in order}, unit):
            return found
    return {}


def _spread(request: Request, have: Counts, unit: int) -> Counts:
    if request.hosts:
        each, rest = divmod(request.devices, request.hosts)
        names = [name for name, count in have.items() if count >= each]
        if rest or each % unit or len(names) < request.hosts:
            return {}
        return dict.fromkeys(names[: request.hosts], each)
    counts: Counts = {}
    missing = request.devices
    for name, count in have.items():
        if missing and (given := min(count, missing)):
            counts[name] = given
            missing -= given
    return {} if missing else counts


def _why(request: Request, hosts: list[Host], reserved: bool) -> Wait:
    if reserved:
        return Wait.RESERVED
    return Wait.WHOLE_HOST if request.exclusive or any(host.exclusive for host in hosts) else Wait.BUSY


def _fits(request: Request, host: Host, devices: int) -> bool:
    if host.exclusive or len(host.spare(request)) < devices:
        return False
    return host.idle or not request.exclusive


def _give(request: Request, hosts: dict[str, Host], counts: Counts) -> list[Share]:
    """Takes the devices from `hosts`, in place, and returns them as shares."""
    shares, first = [], 0
    for name, count in counts.items():
        taken = hosts[name].spare(request)[:count]
        hosts[name] = hosts[name].without(request.kind, taken, request.exclusive)
        shares.append(Share(name, taken, first))
        first += count
    return shares
