"""Which runs may be spread over several hosts, and what prevents it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from dashboard.fleet.models import Worker
from dashboard.fleet.run_on import ANYWHERE, RunOn
from dashboard.fleet.selectors import FleetSnapshot, idle_host
from dashboard.fleet.words import WORDS, apart_text, unable_text
from dashboard.placement.assignments import Share, plan
from dashboard.placement.finding import Wait
from dashboard.placement.hosts import Host, Request
from dashboard.runs.models import Attempt
from dashboard.runs.run_files import Files, alone_because
from parallel_core.analysis.quantities import bytes_text, listed_text, plural_text
from parallel_core.known_fields import needs_later
from parallel_core.spec import RunSpec
from workers.contract import ResumeFrom

MOST_HOSTS = 64
SILENT = "silent"
"""The state of a worker that does not report."""
FITS_NOWHERE = "Cancel it and change it, or queue it although it is predicted not to fit."


def hosts_error(asks: Request, fleet: FleetSnapshot, alone: str) -> str:
    """Why the ranks of a run cannot be spread evenly over the hosts that it asks for; '' if they can. `alone`: why they
    must be on one."""
    over, devices, kind, among = asks.hosts, asks.devices, asks.kind, asks.over
    word = WORDS[kind]
    if over < 2:
        return ""
    if alone:
        return f"All ranks must be on one host, because {alone}."
    if devices % over:
        fitting = [str(n) for n in range(2, min(devices, MOST_HOSTS) + 1) if devices % n == 0]
        choose = f"choose {' or '.join(fitting)}, or as few as it takes" if fitting else "choose as few as it takes"
        return f"{devices} {word}s cannot be spread evenly over {over} hosts; {choose}."
    reporting = fleet.among(among)
    have = [worker for worker in reporting if _count(worker.devices, kind) >= devices // over]
    apart = [worker.name for worker in have if not worker.across_hosts]
    enough = len(have) - len(apart)
    if reporting and enough < over:
        each = plural_text(devices // over, word)
        those = f"those that share its files ({listed_text(among)}) have" if among else fleet.on.have
        return f"{over} hosts with {each} each are needed; {those} {enough}.{apart_text(apart)}"
    return ""


def asked(
    spec: RunSpec, files: Files, *, begins: ResumeFrom | None = None, host_count: int = 0, on: RunOn = ANYWHERE
) -> tuple[str, Request]:
    """Returns (why all ranks must be on one host, '' if they need not be; the request for the placement).

    `begins`: the checkpoint from which the run begins; `on`: the devices chosen for it.
    """
    plain, resumes = spec.model_dump(mode="json"), begins is not None
    holder = files.holder(begins) if begins is not None else None
    alone = alone_because(plain, files, resumes=resumes, host_count=host_count, holder=holder, on=on)
    needs, over = files.needed(plain, holder), files.reach(plain, resumes=resumes)
    where = Request(0, spec.parallel.world, spec.train.device, needs=needs, hosts=host_count, over=over, on=on)
    return alone, replace(where, alone=bool(alone), unit=spec.parallel.tp, fields=needs_later(plain))


def chosen(request: Request, fleet: FleetSnapshot | None = None) -> list[str]:
    """The worker of each rank, as the placement would choose it in an idle fleet; [] if it has too few devices."""
    return [share.host for share in given(request, fleet or FleetSnapshot.now()) for _ in share.devices]


def given(request: Request, fleet: FleetSnapshot) -> list[Share]:
    """The devices that the placement would choose in an idle fleet; [] if it has too few."""
    return [share for _, shares in plan([request], fleet.idle()).placed for share in shares]


def least_memory(request: Request, fleet: FleetSnapshot) -> int:
    """Bytes of the smallest of the devices `given`; 0 if there are none, or if none of them reports its memory."""
    hosts = {host.name: host.memory.get(request.kind, {}) for host in fleet.idle()}
    sizes = (hosts[share.host].get(i, 0) for share in given(request, fleet) for i in share.devices)
    return min(filter(None, sizes), default=0)


def most_memory(request: Request, fleet: FleetSnapshot) -> int:
    """The most bytes that the smallest of the run's devices could have: reporting workers, also draining ones, have
    enough devices with as much, on as few hosts as the run needs. Of the largest device if they have too few devices;
    0 if no memory is known. Looked up once for each request."""
    if request not in fleet.most_memory:
        fleet.most_memory[request] = _most_memory(request, [idle_host(one) for one in fleet.among(request.needs)])
    return fleet.most_memory[request]


def _most_memory(request: Request, hosts: Sequence[Host]) -> int:
    """`most_memory` on these hosts, by bisection: devices that are enough with one size are enough with any less."""
    sizes = sorted({size for host in hosts for size in host.memory.get(request.kind, {}).values()}, reverse=True)
    if len(sizes) < 2:
        return sum(sizes)
    first = bisect_left(sizes, True, key=lambda size: bool(plan([replace(request, memory=size)], hosts).placed))
    return sizes[first] if first < len(sizes) else sizes[0]


def too_small(request: Request, fleet: FleetSnapshot) -> str:
    """Names the open workers that the run could have if their devices had enough memory, as a sentence; '' if there are
    none."""
    anywhere = replace(request, memory=0)
    left = [host for host in fleet.idle() if host.open and _could(host, anywhere) and not _could(host, request)]
    return f"Left out, as their devices are smaller: {sizes_text(left, request.kind)}." if left else ""


def sizes_text(hosts: Iterable[Host], kind: str) -> str:
    """`yard-b (24 GiB)`: the memory of these hosts' devices of a kind, from the least to the most."""
    said = []
    for host in hosts:
        sizes = [bytes_text(size) for size in sorted(set(host.memory.get(kind, {}).values()))]
        said.append(f"{host.name} ({' to '.join(dict.fromkeys((sizes[0], sizes[-1])))})" if sizes else host.name)
    return listed_text(said)


def several(workers: Sequence[str]) -> list[str]:
    """The worker of each rank if they are on several hosts, else []."""
    return list(workers) if len(set(workers)) > 1 else []


def expected(request: Request, fleet: FleetSnapshot | None = None) -> list[str]:
    """As `chosen`, but [] on one host."""
    return several(chosen(request, fleet)) if request.devices > 1 else []


def waits_for(request: Request, fleet: FleetSnapshot) -> str:
    """What a run would wait for even if nothing else ran, as a sentence: workers, or devices with the memory that it
    asks for; '' if it could start, or if there are never so many devices of its kind."""
    found = plan([request], fleet.idle())
    if found.placed:
        return ""
    if not fleet.every:
        return "No worker has reported yet."
    why, names = found.waits[request.run]
    if why is Wait.UNABLE:
        return unable_sentence(names, request, fleet)
    if why is Wait.VERSIONS:
        return versions_sentence(names, request, fleet)
    if why is Wait.MEMORY and not _takes_once_open(request, fleet):
        return f"{too_small_text([host for host in fleet.idle() if host.name in names], request)}. {FITS_NOWHERE}"
    return _closed([worker for worker in fleet.every if _could(idle_host(worker), request)], fleet)


def unable_sentence(names: Sequence[str], request: Request, fleet: FleetSnapshot) -> str:
    """What a run waits for if the workers `names` have the devices but do not know its task or its fields: workers that
    have both, if those could take it once they take runs again, else a newer version."""
    old = unable_text([(w.name, w.version) for w in fleet.every if w.name in names], request.task, request.fields)
    able = [one for one in fleet.every if (host := idle_host(one)).knows(request) and _could(host, request)]
    closed = _closed(able, fleet)
    if closed and _takes_once_open(request, fleet):
        return f"{closed} {old}."
    return f"Needs a newer worker: {old}."


def versions_sentence(names: Sequence[str], request: Request, fleet: FleetSnapshot) -> str:
    """What a run waits for that only those of the workers `names` could take which differ in version."""
    said = [
        f"{worker.name} runs {worker.version or 'an unknown one'}" for worker in fleet.every if worker.name in names
    ]
    ranks = plural_text(request.devices, "rank")
    return f"Needs workers of one version for its {ranks}: {listed_text(said)}. Update the older ones."


def _takes_once_open(request: Request, fleet: FleetSnapshot) -> bool:
    """Whether the known workers could take the run once all of them take runs."""
    return bool(plan([request], [host.ready() for host in fleet.idle()]).placed)


def too_small_text(hosts: Iterable[Host], request: Request) -> str:
    """That the run needs more memory than the devices of these hosts have: `Needs 1 GPU of 40 GiB, …`, without a full
    stop."""
    each = "" if request.devices == 1 else " each"
    needs = f"Needs {request.devices} {word_of(request)} of {bytes_text(request.memory)}{each}, by its predicted memory"
    return f"{needs}; too small: {sizes_text(hosts, request.kind)}"


def word_of(request: Request) -> str:
    """What the devices of the run are called: `GPU` of one, `GPUs` of several."""
    return WORDS.get(request.kind, request.kind) + ("" if request.devices == 1 else "s")


def _closed(workers: Iterable[Worker], fleet: FleetSnapshot) -> str:
    """A sentence that those of the workers that take no runs now are missing; '' if all take them."""
    said = listed_text([f"{worker.name} is {state}" for worker in workers if (state := state_of(worker, fleet))])
    return f"Too few such devices take runs now: {said}." if said else ""


def _could(host: Host, request: Request) -> bool:
    """Whether the host could have all or some ranks of a run if it took runs now."""
    have = len(host.having(request))
    whole = request.hosts < 2 and have >= request.devices
    some = have > 0 and host.across and not request.alone
    return (whole or some) and (not request.needs or host.name in request.needs)


def state_of(worker: Worker, fleet: FleetSnapshot) -> str:
    """Why the worker takes no runs; '' if it does."""
    if worker not in fleet.reporting:
        return SILENT
    if worker.clashes:
        return "a name that two workers use"
    return "draining" if worker.draining else "leaving" if worker.leaving else ""


def _count(devices: list[dict[str, Any]], kind: str) -> int:
    return sum(device["kind"] == kind for device in devices)


def workers_of(attempt: Attempt | None) -> list[str]:
    """The worker of each rank, in rank order; [] without an attempt."""
    return [str(node["worker"]) for node in _nodes(attempt) for _ in node["devices"]] if attempt else []


def hosts_of(attempt: Attempt | None) -> list[str]:
    """The worker of each rank, in rank order; [] if all ranks are on one."""
    return several(workers_of(attempt))


def devices_of(attempt: Attempt) -> list[int]:
    """The index of each rank's device on its worker, in rank order."""
    return [index for node in _nodes(attempt) for index in node["devices"]]


def core_by_rank(attempt: Attempt | None) -> dict[int, int]:
    """Rank -> a number that only ranks on the same core of their worker have; without those whose worker has no such
    CPU device any more."""
    out: dict[int, int] = {}
    nodes = _nodes(attempt) if attempt else []
    workers = {worker.name: worker for worker in Worker.objects.filter(name__in=[node["worker"] for node in nodes])}
    for node in nodes:
        devices = workers[node["worker"]].devices if node["worker"] in workers else []
        names = {device["index"]: device["name"] for device in devices if device["kind"] == "cpu"}
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names.values()))}
        for rank, index in enumerate(node["devices"], int(node["first_rank"])):
            if index in names:
                out[rank] = numbers[names[index]]
    return out


def _nodes(attempt: Attempt) -> list[dict[str, Any]]:
    return sorted(attempt.devices, key=lambda node: int(node["first_rank"]))
