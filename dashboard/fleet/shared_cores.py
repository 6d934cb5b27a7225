"""CPU devices that share cores, as on a worker that offers more devices than it has cores."""

from __future__ import annotations

from collections.abc import Iterable

from dashboard.fleet.models import Worker
from parallel_core.analysis.quantities import plural_text


def devices_and_cores(worker: Worker) -> tuple[int, int]:
    """(CPU devices, cores that they share); (0, 0) if each has its own."""
    names = [device.get("name") or device["index"] for device in worker.devices if device["kind"] == "cpu"]
    return (len(names), len(set(names))) if len(set(names)) < len(names) else (0, 0)


def shared_by(workers: Iterable[Worker]) -> tuple[int, int, str]:
    """(CPU devices, cores that they share, worker) of the first worker with more devices than cores; (0, 0, "") if
    there is none."""
    return next((found for worker in workers if (found := (*devices_and_cores(worker), worker.name))[0]), (0, 0, ""))


def shared_cores(workers: Iterable[Worker]) -> str:
    """The same in words: "; 4 CPU devices share 2 cores …"; '' if each has its own."""
    devices, cores, worker = shared_by(workers)
    if not devices:
        return ""
    return (
        f"; {devices} CPU devices share {plural_text(cores, 'core')} on {worker}: processes take turns there, "
        f"so no strategy can be more than {cores} times as fast"
    )
