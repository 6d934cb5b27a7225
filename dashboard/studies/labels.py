"""What the runs of one page are called, so that no two of them, and no two models, are taken for one another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dashboard.runs.models import Run
from parallel_core.outline import outline_of
from parallel_core.spec import RunSpec


def labels_of(runs: Sequence[Run], specs: Mapping[int, RunSpec]) -> dict[int, str]:
    """Names; with the kind of model where kinds differ, with its size or the precision where that tells runs of one
    name apart, and with its number where nothing else does."""
    outlines = {run.pk: outline_of(specs[run.pk].model) for run in runs}
    names = {run.pk: run.name for run in runs}
    if len({outline.name for outline in outlines.values()}) > 1:
        names = {pk: _with(name, outlines[pk].name) for pk, name in names.items()}
    else:
        names = _apart(names, {pk: outline.title for pk, outline in outlines.items()})
    names = _apart(names, {run.pk: specs[run.pk].train.precision for run in runs})
    counts = Counter(names.values())
    return {pk: f"{name} #{pk}" if counts[name] > 1 else name for pk, name in names.items()}


def _apart(names: Mapping[int, str], words: Mapping[int, str]) -> dict[int, str]:
    """Names, with the word of each where those of one name differ in it."""
    found: dict[str, set[str]] = {}
    for pk, name in names.items():
        found.setdefault(name, set()).add(words[pk])
    return {pk: _with(name, words[pk]) if len(found[name]) > 1 else name for pk, name in names.items()}


def _with(name: str, model: str) -> str:
    """Both, once."""
    return name if model.lower() in name.lower() else f"{name}, {model}"
