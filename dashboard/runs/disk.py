"""Whether a run can save its checkpoints: on a disk with room for them, and where all its hosts find them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dashboard.fleet.models import Worker
from parallel_core.analysis.quantities import bytes_text, listed_text, plural_text
from parallel_core.plan.checkpoint_size import checkpoint_bytes, most_checkpoints
from parallel_core.spec import RunSpec


def short_of(spec: RunSpec, workers: Iterable[Worker]) -> str:
    """Says what is missing if no worker that reports its free space has enough; else ''.

    A run that saves only when it is stopped is not checked: it may never save. One with a time limit saves at that.
    """
    train = spec.train
    known = [(worker.disk_free, worker.name) for worker in workers if worker.disk_free is not None]
    if not (train.checkpoint_every or train.max_minutes) or not known:
        return ""
    size, count = checkpoint_bytes(spec), most_checkpoints(spec)
    free, name = max(known)
    if size * count <= free:
        return ""
    fits = free // size - 1
    less = f"use keep={fits}, or free some" if fits >= 1 else f"free some, or use {_without(spec, free >= size)}"
    return (
        f"Up to {plural_text(count, 'checkpoint')} of {bytes_text(size)} {'is' if count == 1 else 'are'} there at "
        f"once, and {name} has {bytes_text(free)} left on its disk; {less}."
    )


def bytes_kept(spec: RunSpec) -> int:
    """Most bytes that the run keeps on disk when it is over; 0 if it saves only when somebody stops it."""
    at_limit = int(bool(spec.train.max_minutes))
    kept = most_checkpoints(spec) - 1 if spec.train.checkpoint_every else 0
    return checkpoint_bytes(spec) * max(kept, at_limit)


def _without(spec: RunSpec, one_fits: bool) -> str:
    """The fields that make it save less than it does: nothing, or one checkpoint at its time limit if that fits."""
    train = spec.train
    saves = {"checkpoint_every": bool(train.checkpoint_every), "max_minutes": bool(train.max_minutes) and not one_fits}
    return " and ".join(f"{name}=0" for name, now in saves.items() if now)


def unsaved(spec: RunSpec, hosts: Sequence[str], workers: Iterable[Worker]) -> str:
    """Says that the run would save nothing at its time limit, if its ranks would be on `hosts`, the worker of each,
    that share no folder for it; else ''. A run that saves before is kept on one host, or on those that share one."""
    names, sharing = list(dict.fromkeys(hosts)), {worker.name for worker in workers if worker.shared_checkpoints}
    if not spec.train.max_minutes or len(names) < 2 or sharing.issuperset(names):
        return ""
    return f"Its ranks would be on {listed_text(names)}, which share no folder for checkpoints."
