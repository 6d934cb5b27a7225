"""Labels of the runs of one page, so that no two of them, and no two models, are mistaken for each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dashboard.charts.chart import cut
from dashboard.runs.models import Run
from parallel_core.outline import outline_of
from parallel_core.spec import RunSpec


def labels_of(runs: Sequence[Run], specs: Mapping[int, RunSpec]) -> dict[int, str]:
    """Run id -> its name, with additions where they are needed.

    The kind of model is added if kinds differ; model size or precision where runs of the same name differ in it; the
    run's id where nothing else distinguishes them.
    """
    outlines = {run.pk: outline_of(specs[run.pk].model) for run in runs}
    names = {run.pk: run.name for run in runs}
    if len({outline.name for outline in outlines.values()}) > 1:
        names = {pk: _with(name, outlines[pk].name) for pk, name in names.items()}
    else:
        names = _apart(names, {pk: outline.title for pk, outline in outlines.items()})
    names = _apart(names, {run.pk: specs[run.pk].train.precision for run in runs})
    return numbered(names)


def numbered(names: Mapping[int, str]) -> dict[int, str]:
    """The names by run id, each with the id where several runs have it."""
    counts = Counter(names.values())
    return {pk: f"{name} #{pk}" if counts[name] > 1 else name for pk, name in names.items()}


def readable(names: Mapping[int, str]) -> dict[int, str]:
    """The names without the middle of each long word, as the rows of charts have them: a sentence with three of them
    would fill the screen. A name that then would be as another stays whole."""
    short = {pk: " ".join(map(cut, name.split(" "))) for pk, name in names.items()}
    counts = Counter(short.values())
    return {pk: short[pk] if counts[short[pk]] == 1 else name for pk, name in names.items()}


def _apart(names: Mapping[int, str], words: Mapping[int, str]) -> dict[int, str]:
    """The names, each with its word if runs of that name have different words."""
    found: dict[str, set[str]] = {}
    for pk, name in names.items():
        found.setdefault(name, set()).add(words[pk])
    return {pk: _with(name, words[pk]) if len(found[name]) > 1 else name for pk, name in names.items()}


def _with(name: str, model: str) -> str:
    """The name with the word, unless it contains it already."""
    return name if model.lower() in name.lower() else f"{name}, {model}"
