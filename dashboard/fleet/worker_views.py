"""Workers and their devices as pages and the API show them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dashboard.fleet.models import Worker
from dashboard.fleet.selectors import age_of, every_worker, live_attempts, occupancy, silent_before
from dashboard.ledger.models import Profile, ProfileState
from dashboard.runs.models import Attempt, Run
from parallel_core.version import version

OTHERS_ABOVE = 0.25
"""Load of a free device above which its page says that something else uses it; an idle yard itself stays below."""


@dataclass(frozen=True)
class DeviceView:
    """One device of a worker; `run` = the run that holds it now, or None. Memory in bytes; load 0 .. 1. `why` = why it
    cannot be used, as a sentence; '' if it can."""

    index: int
    kind: str
    name: str
    memory_total: int
    memory_used: int
    load: float
    run: Run | None
    why: str = ""

    @property
    def used_by_others(self) -> bool:
        """Whether no run holds it but something keeps it busy: another program, or a run on the same core."""
        return self.run is None and self.load > OTHERS_ABOVE


@dataclass(frozen=True)
class WorkerView:
    """A worker with its devices, those that can be used and those that cannot. `age` = seconds since its last
    heartbeat, None if it never sent one; `profiles` = the oldest profile that was requested of it and not answered."""

    worker: Worker
    age: float | None
    silent: bool
    devices: list[DeviceView]
    unusable: list[DeviceView]
    runs: list[Run]
    profiles: Profile | None = None
    profiling: bool = False
    """Whether it is working on that profile now, which it does as soon as no run sent before is left."""

    @property
    def every(self) -> list[DeviceView]:
        """All its devices, those of one kind by index: a run may hold one that cannot be used any more."""
        return sorted([*self.devices, *self.unusable], key=lambda device: (device.kind, device.index))

    @property
    def other_version(self) -> str:
        """The dashboard's version, if the worker runs another one; '' where they agree or one is not known."""
        theirs, ours = self.worker.version, version()
        return ours if theirs and theirs != ours and "unknown" not in {theirs, ours} else ""

    @property
    def others(self) -> bool:
        """Whether something else uses a free device; the work of a profile does not count."""
        return not self.profiling and any(device.used_by_others for device in self.devices)


def workers() -> list[WorkerView]:
    """Every worker by name, with the runs that hold its devices."""
    since, attempts = silent_before(), live_attempts()
    held = occupancy(attempts)
    asked = {profile.worker_id: profile for profile in Profile.objects.filter(state=ProfileState.ASKED).order_by("-id")}
    return [_view(worker, since, attempts, held, asked.get(worker.pk)) for worker in every_worker()]


def timing() -> set[int]:
    """Ids of the profiles that workers are working on now; the other requested ones wait for something."""
    return {view.profiles.pk for view in workers() if view.profiles is not None and view.profiling}


def _view(
    worker: Worker, since: datetime, attempts: list[Attempt], held: dict[Any, Run], profiles: Profile | None
) -> WorkerView:
    age = age_of(worker)
    devices, unusable = (_devices(worker, listed, held) for listed in (worker.devices, worker.unusable))
    here = [a for a in attempts if any(node["worker"] == worker.name for node in a.devices)]
    silent = worker.heartbeat_at is None or worker.heartbeat_at < since
    profiling = profiles is not None and not silent and all(_waits_for_profile(attempt, profiles) for attempt in here)
    return WorkerView(worker, age, silent, devices, unusable, [a.run for a in here], profiles, profiling)


def _devices(worker: Worker, listed: list[dict[str, Any]], held: dict[Any, Run]) -> list[DeviceView]:
    return [
        DeviceView(
            index=device["index"],
            kind=device["kind"],
            name=device.get("name", ""),
            memory_total=device.get("memory_total", 0),
            memory_used=device.get("memory_used", 0),
            load=device.get("load", 0.0),
            run=held.get((worker.name, device["kind"], device["index"])),
            why=device.get("why", ""),
        )
        for device in listed
    ]


def _waits_for_profile(attempt: Attempt, profile: Profile) -> bool:
    """Whether the attempt was sent to the worker after the profile was requested, and so waits for its end."""
    return attempt.started_at is None and attempt.sent_at is not None and attempt.sent_at > profile.asked_at
