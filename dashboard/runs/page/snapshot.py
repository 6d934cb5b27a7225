"""The Memory tab's snapshots of the CUDA allocator: the chosen one as a chart, and what was allocated at its peak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.cache import caches

from dashboard.charts import allocations as picture
from dashboard.runs.models import Run
from dashboard.runs.tracing import profiles
from dashboard.runs.tracing.profiles import Kind, Profile
from parallel_core.analysis.allocations import Alive, Allocations, allocations, place
from parallel_core.analysis.quantities import percent_text, sentence_text
from parallel_core.observe.snapshot import unpacked

KEPT_S = 3600


def context(run: Run, given: Mapping[str, Any]) -> dict[str, Any]:
    """`snapshots` lists all of them; `shot` is the one named by the parameter `snapshot` (step-rank), else the first
    rank of the newest step."""
    steps = profiles.listed(run, Kind.SNAPSHOT)
    whole = {f"{one.step}-{one.rank}": one for step in reversed(steps) for one in step.ranks if one.whole}
    if not whole:
        return {"snapshots": steps}
    chosen = whole.get(given.get("snapshot", "")) or next(iter(whole.values()))
    key = f"allocations:{run.pk}:{run.queued_at.timestamp()}:{run.attempts.count()}:{chosen}".replace(" ", "")
    found: Allocations | None = caches["large"].get(key)
    try:
        found = found or _read(run, chosen)
    except ValueError as error:
        return {"snapshots": steps, "shot": chosen, "unreadable": sentence_text(str(error))}
    caches["large"].set(key, found, KEPT_S)
    alive = [_row(one, found.peak) for one in found.alive]
    drawn = picture.chart(found, chosen.step, chosen.rank)
    return {"snapshots": steps, "shot": chosen, "allocations": found, "alive": alive, "allocated": drawn}


def _read(run: Run, chosen: Profile) -> Allocations:
    """The allocations in the snapshot. Raises ValueError if the file is not a snapshot."""
    return allocations(unpacked(profiles.data(run, chosen.step, chosen.rank, Kind.SNAPSHOT) or b""))


def _row(alive: Alive, peak: int) -> dict[str, Any]:
    made = place(alive.frames)
    file = made.filename.rpartition("/")[2] if made else ""
    return {"alive": alive, "share": percent_text(alive.bytes / max(1, peak)), "place": made, "file": file}
