"""Where one run could be placed now, and why it cannot: looks for its devices on the hosts as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum

from dashboard.placement.hosts import Host, Request

Counts = dict[str, int]
"""Number of devices by name of the host that gives them, in rank order."""


class Wait(Enum):
    """Why a run was not placed."""

    NO_HOST = "no host"  # no host is connected and open
    TOO_LARGE = "too large"  # the open hosts, alone or together, do not have that many devices of the kind
    BUSY = "busy"  # its hosts have enough devices, but too few are free
    WHOLE_HOST = "whole host"  # it is exclusive and something runs there, or something exclusive runs there
    RESERVED = "reserved"  # a run ahead waits for the host, or for those of its devices
    CHECKPOINT = "checkpoint"  # the host that has the checkpoint it begins from, or its file, is away or draining
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


def find(request: Request, hosts: dict[str, Host], reserved: set[str]) -> Found:
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
    for_all = [host for host in capable if len(host.having(request)) >= request.widest]
    capable = preferred or sorted(
        for_all or capable, key=lambda host: _rank(host, len(host.spare(request)), request.exclusive)
    )
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
    soonest = request.exclusive and request.hosts > 0  # over as few as it takes, those that are idle soonest are more
    order = sorted(hosts, key=lambda host: (host.name != request.prefer, *_rank(host, have(host), soonest)))
    for unit in dict.fromkeys((request.unit, 1)):
        if found := _spread(request, {host.name: have(host) // unit * unit for host in order}, unit):
            return found
    return {}


def _rank(host: Host, have: int, soonest: bool) -> tuple[bool, float, int, str]:
    """Sort key of a host that has so many devices, best first: those with most, or before that those that are idle
    `soonest`, for a run that needs idle ones."""
    return host.profiles, host.idle_in if soonest else 0.0, -have, host.name


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
    if reserved or _could_have_reserved(request, hosts):
        return Wait.RESERVED
    return Wait.WHOLE_HOST if request.exclusive or any(host.exclusive for host in hosts) else Wait.BUSY


def _could_have_reserved(request: Request, hosts: list[Host]) -> bool:
    """Whether the hosts could give the run its devices now, if no run ahead waited for some of them."""
    if not any(host.reserved for host in hosts):
        return False
    freed = [host.unreserved() for host in hosts]
    return sum(len(host.spare(request)) for host in freed if _fits(request, host, 1)) >= request.devices


def _fits(request: Request, host: Host, devices: int) -> bool:
    if host.exclusive or len(host.spare(request)) < devices:
        return False
    return host.idle or not request.exclusive
