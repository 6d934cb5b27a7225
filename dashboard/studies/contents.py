"""Files of one name with other content: runs that read them are not alike, although their specs are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from dashboard.runs.models import Run
from parallel_core.spec import RunSpec

READ = ("corpus", "weights")
"""Training fields that name what a run reads."""


def told_apart(specs: Mapping[int, RunSpec], runs: Iterable[Run]) -> dict[int, RunSpec]:
    """`specs` by run, for comparisons: where runs are known to have read different content under one name, each name is
    followed by the digits of what its run read, so that the specs differ."""
    read = {run.pk: run.summary.get("reads") or {} for run in runs}
    known: dict[tuple[str, str], set[str]] = defaultdict(set)
    for pk, spec in specs.items():
        for what in READ:
            known[what, getattr(spec.train, what)].update(filter(None, [read[pk].get(what)]))
    return {pk: _told(spec, read[pk], known) for pk, spec in specs.items()}


def _told(spec: RunSpec, read: Mapping[str, str], known: Mapping[tuple[str, str], set[str]]) -> RunSpec:
    changed = {}
    for what in READ:
        name = getattr(spec.train, what)
        if len(known[what, name]) > 1 and what in read:
            changed[what] = f"{name} (content {read[what][:8]})"
    return spec.model_copy(update={"train": spec.train.model_copy(update=changed)}) if changed else spec
