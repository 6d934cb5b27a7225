"""The fleet as forms and the controller see it: hosts, what occupies their devices, and how recent that is."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from math import inf
from typing import Any

from django.db.models import QuerySet

from dashboard import one_clock
from dashboard.fleet.listening import listened_until
from dashboard.fleet.models import Worker
from dashboard.fleet.run_on import ANYWHERE, RunOn, type_of
from dashboard.ledger.models import Profile, ProfileState
from dashboard.one_look import read_once
from dashboard.placement.hosts import Host, Request
from dashboard.runs.models import Attempt, Run, State
from dashboard.runs.waiting.expected_start import seconds_left
from workers.contract import LEASE_S

RETURNS_S = 600.0
"""Silence in seconds up to which a host may be expected back: a server takes some minutes to boot, a worker far less.
Until then the runs of a timed study wait for it rather than go to a smaller host."""


def age_of(worker: Worker) -> float | None:
    """Seconds since the worker's last heartbeat."""
    if worker.heartbeat_at is None:
        return None
    return max(0.0, (one_clock.now() - worker.heartbeat_at).total_seconds())


@read_once
def every_worker() -> tuple[Worker, ...]:
    """All workers, by name."""
    return tuple(Worker.objects.all())


def reporting() -> QuerySet[Worker]:
    """Workers that are not silent."""
    return Worker.objects.filter(heartbeat_at__gt=silent_before())


def silent_before() -> datetime:
    """A worker whose last heartbeat is older is silent: a lease before now, or before the controller, which alone hears
    heartbeats, listened last."""
    return listened_until() - timedelta(seconds=LEASE_S)


def stays(worker: Worker) -> str:
    """Why the worker cannot be removed now, as a sentence; '' if it can."""
    if reporting().filter(pk=worker.pk).exists():
        return f"{worker.name} still reports: stop its process first. Until then draining keeps new runs away."
    held = [a.run.name for a in live_attempts() if any(node["worker"] == worker.name for node in a.devices)]
    if held:
        return f"“{held[0]}” is still held to run on {worker.name}: cancel it, or wait until it is given up as lost."
    return ""


@dataclass(frozen=True)
class FleetSnapshot:
    """The fleet at one moment: every worker by name, and those that are not silent.

    One that is `narrowed` has only the devices that were chosen for a run (`on`), and the workers that have some of
    them; `whole` is then the fleet that it is a part of.
    """

    every: tuple[Worker, ...]
    reporting: tuple[Worker, ...]
    most_memory: dict[Request, int] = field(default_factory=dict, compare=False, repr=False)
    """The answers of `spreading.most_memory` so far: a study may have thousands of runs that ask alike."""
    on: RunOn = ANYWHERE
    _whole: FleetSnapshot | None = field(default=None, repr=False)

    @classmethod
    @read_once
    def now(cls) -> FleetSnapshot:
        every, since = every_worker(), silent_before()
        return cls(every, tuple(one for one in every if one.heartbeat_at is not None and one.heartbeat_at > since))

    @property
    def whole(self) -> FleetSnapshot:
        return self._whole or self

    def narrowed(self, on: RunOn) -> FleetSnapshot:
        """The devices of the whole fleet that are among those chosen."""
        if not on:
            return self.whole
        every = {one.name: _with_devices(one, on) for one in self.whole.every if on.takes(one.name, types_of(one))}
        reporting = tuple(every[one.name] for one in self.whole.reporting if one.name in every)
        return FleetSnapshot(tuple(every.values()), reporting, on=on, _whole=self.whole)

    def among(self, names: Collection[str]) -> list[Worker]:
        """The reporting workers; only those with one of `names`, unless that is empty."""
        return [worker for worker in self.reporting if not names or worker.name in names]

    def idle(self) -> list[Host]:
        """Every worker as a Host for the placement, as if nothing ran."""
        return list(self._idle)

    @cached_property
    def _idle(self) -> list[Host]:
        reporting = {worker.name for worker in self.reporting}
        idle = [(worker, idle_host(worker)) for worker in self.every]
        return [replace(host, open=host.name in reporting and worker.in_service) for worker, host in idle]


def types_of(worker: Worker) -> set[str]:
    """The types of its devices."""
    return {type_of(device) for device in worker.devices}


def _with_devices(worker: Worker, on: RunOn) -> Worker:
    """A copy of the worker that has only its chosen devices."""
    made = copy(worker)
    made.devices = on.of(worker.devices)
    return made


def all_cores(fleet: FleetSnapshot) -> int:
    """Number of cores of all CPU devices that report, if some of them share one; 0 if each has its own."""
    found = [(one.name, device["name"]) for one in fleet.reporting for device in one.devices if device["kind"] == "cpu"]
    return len(set(found)) if len(set(found)) < len(found) else 0


def idle_host(worker: Worker) -> Host:
    """The worker for the placement, as if it were open and nothing ran there."""
    have, memory, types = devices_of(worker), dict[str, dict[int, int]](), dict[str, dict[int, str]]()
    for device in worker.devices:
        types.setdefault(device["kind"], {})[device["index"]] = type_of(device)
        if size := device.get("memory_total"):
            memory.setdefault(device["kind"], {})[device["index"]] = size
    knows: dict[str, Any] = {"tasks": tuple(worker.tasks), "fields": frozenset(worker.fields)}
    knows["version"] = worker.version
    knows |= {"type_of": types, "types": {kind: ", ".join(sorted(set(of.values()))) for kind, of in types.items()}}
    return Host(worker.name, have, have, across=worker.across_hosts, memory=memory, **knows)


def devices_of(worker: Worker) -> dict[str, tuple[int, ...]]:
    """Indices of its devices by kind."""
    found: dict[str, tuple[int, ...]] = {}
    for device in worker.devices:
        found[device["kind"]] = (*found.get(device["kind"], ()), device["index"])
    return found


def live_attempts() -> list[Attempt]:
    """All attempts that hold devices, with their runs."""
    return list(Attempt.objects.filter(over=False).select_related("run", "run__owner").defer("run__summary"))


def occupancy(attempts: Collection[Attempt]) -> dict[tuple[str, str, int], Run]:
    """(worker, kind, device index) -> the run that holds it."""
    return {
        (node["worker"], kind_of(attempt.run), index): attempt.run
        for attempt in attempts
        for node in attempt.devices
        for index in node["devices"]
    }


def device_memory(attempt: Attempt) -> int | None:
    """Bytes of the smallest of the devices that the attempt was given; None where they are not known, or any more."""
    names = [node["worker"] for node in attempt.devices]
    listed = dict(Worker.objects.filter(name__in=names).values_list("name", "devices"))
    sizes = [
        device["memory_total"]
        for node in attempt.devices
        for device in listed.get(node["worker"], ())
        if device["index"] in node["devices"] and device.get("memory_total")
    ]
    return min(sizes, default=None)


def kind_of(run: Run) -> str:
    """The kind of device a run asks for: cpu or cuda."""
    return str(run.spec.get("train", {}).get("device", "cpu"))


def hosts(
    alive: Collection[str] | None = None, fresh: Collection[str] | None = None, known: Collection[str] = ()
) -> list[Host]:
    """Every worker as a Host for the placement.

    `alive` = workers whose lease holds; None judges by the age of heartbeats. `fresh` = those that may be given runs
    now, None = all that are alive: the others are open, so that runs that belong there wait, but have nothing free.
    `known` = those that are expected back although their last heartbeat is older than RETURNS_S.
    """
    attempts, profiled, since = live_attempts(), _profiled(), silent_before()
    held, left = occupancy(attempts), _left(attempts)
    exclusive = {node["worker"] for a in attempts if a.run.exclusive for node in a.devices}
    holding = {name for name, _, _ in held}
    returns = since + timedelta(seconds=LEASE_S - RETURNS_S)
    out = []
    for worker in every_worker():
        heard = worker.heartbeat_at or returns
        there = worker.name in alive if alive is not None else heard > since
        opened = there and worker.in_service
        host = replace(
            _with_free(idle_host(worker), held, fresh is None or worker.name in fresh),
            exclusive=worker.name in exclusive,
            open=opened,
            known=opened or worker.name in known or heard > returns,
            held=worker.name in holding,
            profiles=worker.pk in profiled,
            idle_in=left.get(worker.name, 0.0),
        )
        out.append(host)
    return out


def _with_free(idle: Host, held: Collection[tuple[str, str, int]], gives: bool) -> Host:
    """The host with those of its devices free that are not `held` (`occupancy`); with none unless it `gives` any."""
    return replace(
        idle,
        free={
            kind: tuple(i for i in ids if gives and (idle.name, kind, i) not in held)
            for kind, ids in idle.devices.items()
        },
    )


def _left(attempts: Iterable[Attempt]) -> dict[str, float]:
    """Worker -> seconds until the last of these attempts there is expected to have ended; inf if that is not known."""
    out: dict[str, float] = {}
    for attempt in attempts:
        seconds = 0.0 if attempt.run.state == State.CANCELLING else seconds_left(attempt.run, roughly=True)
        for node in attempt.devices:
            out[node["worker"]] = max(out.get(node["worker"], 0.0), inf if seconds is None else seconds)
    return out


def _profiled() -> set[int]:
    """Ids of the workers of which a profile was requested."""
    return set(Profile.objects.filter(state=ProfileState.ASKED).values_list("worker", flat=True))
