"""What is said of a study's checkpoints before it is queued: that they may not find room, or would not be saved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate

from dashboard.fleet.selectors import FleetSnapshot
from dashboard.placement.hosts import Request
from dashboard.runs.disk import bytes_kept, short_of, unsaved
from dashboard.runs.waiting.spreading import chosen
from dashboard.studies.new.variants import Variant
from parallel_core.analysis.quantities import bytes_beside, listed_text


def warnings(
    kept: Iterable[Variant], asks: Mapping[str, Request], fleet: FleetSnapshot, repeats: int = 1
) -> dict[str, dict[str, str]]:
    """Sentences by the variant's name, by what they warn of: the keys are those of `submission.WARNINGS`."""
    saving = [one for one in kept if not one.task and bytes_kept(one.spec)]
    timed = [one for one in saving if one.spec.train.max_minutes]
    nowhere = _said({one.name: unsaved(one.spec, chosen(asks[one.name], fleet), fleet.every) for one in timed})
    saving = [one for one in saving if one.name not in nowhere]
    alone = _said({one.name: short_of(one.spec, fleet.among(asks[one.name].needs)) for one in saving})
    return {"unsaved": nowhere, "disk": alone or _together(saving * repeats, fleet)}


def _said(sentences: Mapping[str, str]) -> dict[str, str]:
    return {name: why for name, why in sentences.items() if why}


def _together(saving: list[Variant], fleet: FleetSnapshot) -> dict[str, str]:
    """Why those that come late in the study may find no room, although each has it alone: checkpoints outlive their
    run. Nothing is said while a host has not reported its free space. What workers of one host, or with one folder,
    have is counted once."""
    disks: dict[tuple[str, bool], int] = {}
    for worker in fleet.reporting:
        if worker.disk_free is None:
            return {}
        disk = ("", True) if worker.shared_checkpoints else (worker.host or worker.name, False)
        disks[disk] = min(worker.disk_free, disks.get(disk, worker.disk_free))
    left = sum(disks.values())
    sizes = list(accumulate(bytes_kept(one.spec) for one in saving))
    if not disks or not sizes or sizes[-1] <= left:
        return {}
    taken, room = bytes_beside(sizes[-1], left), bytes_beside(left, sizes[-1])
    names = [worker.name for worker in fleet.reporting]
    where = f"{listed_text(names)} {'has' if len(names) == 1 else 'have'}" if len(disks) == 1 else "the hosts have"
    whose = "their disks" if len(disks) > 1 else "its disk" if len(names) == 1 else "the disk they share"
    why = f"The checkpoints of all runs take up to {taken} together; {where} {room} left on {whose}."
    return {one.name: why for one, size in zip(saving, sizes, strict=True) if size > left}
