"""Has the fleet what a run asks for: the devices, the files, the fields? And what would it wait for?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from dashboard.fleet.listening import away_sentence
from dashboard.fleet.run_on import ANYWHERE, RunOn
from dashboard.fleet.selectors import FleetSnapshot, devices_of
from dashboard.fleet.shared_cores import shared_cores
from dashboard.fleet.words import WORDS, apart_text
from dashboard.placement.hosts import Request
from dashboard.runs import services
from dashboard.runs.run_files import Files
from dashboard.runs.waiting import run_on
from dashboard.runs.waiting.spreading import (
    asked,
    hosts_error,
    most_memory,
    waits_for,
)
from parallel_core.analysis.quantities import listed_text, plural_text
from parallel_core.plan.room import Room
from parallel_core.spec import ParallelSpec, RunSpec
from workers.contract import ResumeFrom, Task

MOST_SHARING = 32
"""The most ranks for which sharing the cores of one worker is suggested."""


@dataclass(frozen=True)
class Capacity:
    """What reporting workers have of one kind of device: most on one host, most for one run, and bytes of the largest
    device; in a FleetCheck, of the smallest device that the run would have if it had the largest ones."""

    kind: str
    largest: int = 0
    total: int = 0
    memory: int = 0
    others: int = 0
    """Number of devices of other kinds."""
    across: int = 0
    """Number of devices for a run over several hosts."""
    apart: tuple[str, ...] = ()
    """Of several workers with such devices, those that take no part in runs over several hosts."""
    readers: tuple[str, ...] = ()
    """The only workers that will do, because they have what the run reads; () = all."""
    on: RunOn = ANYWHERE
    """The chosen devices, of which alone this tells."""
    shared: str = ""
    """`shared_cores` of these workers."""

    @property
    def text(self) -> str:
        """What one run can have: `4 CPU devices`."""
        return plural_text(self.total, WORDS[self.kind]) + (" for one run" if self.apart else "")

    @property
    def room(self) -> Room | None:
        """What a device of that size has for tensors; None if its memory is not known."""
        return Room.on(self.memory, self.kind)

    def most(self, alone: str = "") -> int:
        """The number of devices that one run can have; `alone` says why its ranks must be on one host, if they must."""
        return self.largest if alone else self.total


def capacity(
    kind: str, readers: tuple[str, ...] = (), reach: tuple[str, ...] = (), fleet: FleetSnapshot | None = None
) -> Capacity:
    """What reporting workers offer, including draining ones. Silent workers do not count, as they may never come back.

    `readers`: the only workers that will do; `reach`: those over which the run may be spread (both () = all). `fleet`:
    a snapshot to use instead of a new one; of one that is narrowed, only the chosen devices count.
    """
    fleet = fleet or FleetSnapshot.now()
    workers = fleet.among(readers)
    devices = [device for worker in workers for device in worker.devices]
    mine = [device for device in devices if device["kind"] == kind]
    counts = {worker: len(devices_of(worker).get(kind, ())) for worker in workers}
    within = {worker: count for worker, count in counts.items() if count and (not reach or worker.name in reach)}
    across = sum(count for worker, count in within.items() if worker.across_hosts)
    apart = tuple(worker.name for worker in within if not worker.across_hosts and len(within) > 1)
    memory, largest = max((one.get("memory_total", 0) for one in mine), default=0), max(counts.values(), default=0)
    others = len(devices) - len(mine)
    shared = shared_cores(workers) if kind == "cpu" else ""
    return Capacity(kind, largest, max(largest, across), memory, others, across, apart, readers, fleet.on, shared)


@dataclass(frozen=True)
class FleetCheck:
    """What the fleet says to a run before it is queued."""

    alone: str
    """Why all its ranks must be on one host, as a clause; '' if they need not be."""
    asks: Request
    offered: Capacity
    errors: dict[str, str]
    """Why no worker that reports could ever take it, by field; then it is not queued."""
    fleet: FleetSnapshot

    @cached_property
    def waits(self) -> str:
        """What it would wait for if nothing else were in the queue (`waits_for`), or that the controller is away; '' if
        it could start, or never."""
        return "" if self.errors else away_sentence() or self.awaits

    @property
    def awaits(self) -> str:
        """`waits` while the controller is at work."""
        return "" if self.errors else waits_for(self.asks, self.fleet)


def fleet_check(
    spec: RunSpec,
    fleet: FleetSnapshot,
    *,
    begins: ResumeFrom | None = None,
    host_count: int = 0,
    task: Task = "",
    files: Files | None = None,
    memory: int = 0,
) -> FleetCheck:
    """`begins`: the checkpoint it begins from; `host_count`: as in `assess`; `task`: what it does instead of training;
    `files`: those of the fleet, if they are known; `memory`: bytes that each of its devices must have. A `fleet` that
    is narrowed has the devices chosen for it."""
    files = files or Files.of(fleet)
    alone, asks, offered = offered_to(spec, fleet, files, begins=begins, host_count=host_count)
    offered = replace(offered, memory=most_memory(asks, fleet))
    asks = replace(asks, task=task, memory=memory)
    if refused := run_on.refusal(asks, fleet):
        return FleetCheck(alone, asks, offered, {run_on.FIELD: refused}, fleet)
    spread = hosts_error(asks, fleet, alone)
    errors = {"hosts": spread} if spread else fleet_errors(spec, offered, alone)  # the second would repeat the first
    return FleetCheck(alone, asks, offered, errors, fleet)


def offered_to(
    spec: RunSpec, fleet: FleetSnapshot, files: Files, *, begins: ResumeFrom | None = None, host_count: int = 0
) -> tuple[str, Request, Capacity]:
    """Returns (why all ranks must be on one host, '' if they need not be; the request for the placement; what the
    workers that will do for the run offer it). `files`: those of the fleet; `begins`: the checkpoint it begins from."""
    alone, asks = asked(spec, files, begins=begins, host_count=host_count, on=fleet.on)
    return alone, asks, capacity(asks.kind, asks.needs, asks.over, fleet)


def with_need(spec: RunSpec, check: FleetCheck) -> FleetCheck:
    """The check of a run that asks for the memory that it is predicted to need, as once it is queued. One that is
    predicted to fit nowhere asks for none: it can be queued nevertheless."""
    need = services.predicted_need(spec) or 0
    if need > check.offered.memory:
        return check
    return replace(check, asks=replace(check.asks, memory=need))


def fleet_errors(spec: RunSpec, offered: Capacity, alone: str = "") -> dict[str, str]:
    """Error by field if there are more ranks than devices in the fleet, or on one worker if they must be on one
    (`alone`)."""
    world, word = spec.parallel.world, WORDS[offered.kind]
    files = f" its files ({listed_text(offered.readers)})" if offered.readers else ""
    if not offered.total:
        if not offered.others:
            return {}  # no worker reports: the run waits for one
        having = f" and has{files}" if files else ""
        return {"train.device": f"No worker that reports{having} has a {word}; choose the other kind."}
    if world <= offered.most(alone):
        return {}
    axis, _ = shape_of(spec.parallel)
    needs = f"{ranks_text(spec.parallel)} need {world} {word}s"
    if not alone:
        share = f" A worker started with TRAINYARD_CPU_DEVICES={world} lets ranks share its cores."
        hint = share if offered.kind == "cpu" and world <= MOST_SHARING else ""
        those = f"those that have{files} have" if files else offered.on.have
        if offered.apart:
            apart = f"a run over several hosts can have {offered.across}.{apart_text(offered.apart)}"
            return {f"parallel.{axis}": f"{needs}; {apart}{hint}"}
        return {f"parallel.{axis}": f"{needs}; {those} {offered.total}.{hint}"}
    largest = f"the largest worker that has{files}" if files else "the largest worker"
    return {f"parallel.{axis}": f"{needs} on one host, because {alone}; {largest} has {offered.largest}."}


def shape_of(split: ParallelSpec) -> tuple[str, str]:
    """Returns (the field that makes the run large, its ranks as a product, or as a sum over stages that differ)."""
    if split.replicas is None and split.widths is None:
        axis = max(("dp", "tp", "pp"), key=lambda name: getattr(split, name))
        return axis, f"{split.dp} × {split.tp} × {split.pp}"
    axis = "replicas" if split.widths is None or max(split.copies) > max(split.widths) else "widths"
    if split.widths is None:
        return axis, f"{' + '.join(map(str, split.copies))}{f' × {split.tp}' if split.tp > 1 else ''}"
    shapes = zip(split.copies, split.widths, strict=True)
    return axis, " + ".join(f"{copies} × {width}" for copies, width in shapes)


def ranks_text(split: ParallelSpec) -> str:
    """The ranks of a run in words: "2 replicas × 2 tensor ranks"; degrees of 1 are left out."""
    if split.widths is not None:
        return f"{shape_of(split)[1]} (replicas × tensor ranks of each stage)"
    if split.replicas is not None:
        wide = f", of {plural_text(split.tp, 'tensor rank')} each," if split.tp > 1 else ""
        return f"{' + '.join(map(str, split.copies))} replicas of the stages{wide}"
    degrees = ((split.dp, "replica"), (split.tp, "tensor rank"), (split.pp, "pipeline stage"))
    return " × ".join(plural_text(degree, word) for degree, word in degrees if degree > 1) or "1 rank"
