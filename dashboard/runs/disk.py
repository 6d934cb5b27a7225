"""Whether a worker's disk has room for the checkpoints of a run."""

from __future__ import annotations

from collections.abc import Iterable

from dashboard.fleet.models import Worker
from parallel_core.analysis.quantities import bytes_text, plural_text
from parallel_core.plan.checkpoint_size import checkpoint_bytes, most_checkpoints
from parallel_core.spec import RunSpec


def short_of(spec: RunSpec, workers: Iterable[Worker]) -> str:
    """Says what is missing if no worker that reports its free space has enough; else ''.

    A run that saves only when it is stopped is not checked: it may never save.
    """
    known = [(worker.disk_free, worker.name) for worker in workers if worker.disk_free is not None]
    if not spec.train.checkpoint_every or not known:
        return ""
    size, count = checkpoint_bytes(spec), most_checkpoints(spec)
    free, name = max(known)
    if size * count <= free:
        return ""
    fits = free // size - 1
    less = f"use keep={fits}, or free some" if fits >= 1 else "free some, or use checkpoint_every=0"
    return (
        f"Up to {plural_text(count, 'checkpoint')} of {bytes_text(size)} are there at once, and {name} has "
        f"{bytes_text(free)} left on its disk; {less}."
    )
