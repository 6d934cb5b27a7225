"""Comparing a few runs: which fields of their specs differ, whether they are like for like, and time to a loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from dashboard.runs.differences import Difference, flat
from dashboard.runs.metrics import left_out
from dashboard.runs.places import Place
from dashboard.runs.samples import samples_after
from dashboard.runs.texts import corpus_names
from dashboard.studies.comparability import same_work, tolerance
from dashboard.studies.overview import streams
from dashboard.studies.overview.overviews import Overview
from dashboard.studies.overview.rows import Row
from parallel_core.analysis import sentences
from parallel_core.analysis.parity_words import AMPLIFIED
from parallel_core.analysis.quantities import (
    bytes_text,
    count_text,
    difference_text,
    finished_text,
    listed_text,
    plural_text,
    seconds_text,
    significant,
)
from parallel_core.outline import outline_of
from parallel_core.spec import RunSpec

UNLIKE = (
    ("model", "model"),
    ("train.global_batch", "batch"),
    ("train.corpus", "data"),
    ("train.precision", "precision"),
)
UNEQUAL_STEPS = "Their traced steps train different numbers of samples, so none of their parts are compared."
BELOW = "already below it where it began"
"""For a run resumed from a checkpoint whose loss was below the target already: the time is not its own."""
TIMES = "Times are sums of step times: reference work and checks between steps are left out."
SHOWN = 4
"""The most runs whose steps a sentence names."""


def placed_apart(places: Sequence[Place]) -> list[Difference]:
    """Which of hosts and devices differ between the runs with these places; what is not known counts as no value."""
    sides = {"hosts": [place.hosts for place in places], "devices": [place.devices for place in places]}
    return [
        Difference(field, [listed_text(names) or "not known" for names in every])
        for field, every in sides.items()
        if len({names for names in every if names}) > 1
    ]


def unlike(specs: Sequence[RunSpec]) -> str:
    """A warning if model, batch, data or precision differ; '' if the runs are like for like."""
    found, read = [], [spec.train.corpus for spec in specs]
    names = corpus_names.names_of(read)
    told = {"model": [outline_of(spec.model).title for spec in specs], "data": [names[corpus] for corpus in read]}
    for prefix, word in UNLIKE:
        values = [{k: v for k, v in flat(spec).items() if k.startswith(prefix)} for spec in specs]
        if any(value != values[0] for value in values):
            found.append(_named(word, told.get(word) or [_short(value) for value in values]))
    if not found:
        return ""
    batches = len({spec.train.global_batch for spec in specs}) > 1
    kinds = len({spec.model.kind for spec in specs}) > 1
    step = (
        f"a step in {'verdict and' if kinds else 'the'} table is {plural_text(specs[0].train.global_batch, 'sample')}."
    )
    scaled = f"; {step}" if kinds else f"; speedup uses samples/s, and {step}"
    return f"Not like for like: {', '.join(found)}" + (scaled if batches else ".")


def begun(rows: Sequence[Row]) -> str:
    """A warning if the runs do not begin at the same step; '' if they do."""
    first = sorted(((row.run.resume_step or 0, row.entry.label) for row in rows), key=itemgetter(0))
    (least, one), (most, other) = first[0], first[-1]
    if least == most:
        return ""
    return f"Not like for like: {other} begins after {plural_text(most, 'trained step')}, {one} after {least}."


def same_task(specs: Sequence[RunSpec]) -> bool:
    """Whether the losses of the runs can be compared: same model, same corpus."""
    return all((spec.model, spec.train.corpus) == (specs[0].model, specs[0].train.corpus) for spec in specs)


def _short(values: Mapping[str, Any]) -> str:
    return ", ".join(str(value) for value in values.values())


def _named(word: str, texts: list[str]) -> str:
    distinct = list(dict.fromkeys(texts))
    return f"{word} {' against '.join(distinct[:3])}" if len(distinct) > 1 else f"the {word}s differ"


def verdict(view: Overview, others: Sequence[Row]) -> list[str]:
    """For two runs: speed, where it comes from, memory, exactness. For more: the verdict of a study."""
    base = view.baseline
    if len(view.like_for_like.rows) < len(view.rows) and not held(others):
        return view.cautioned([_of_other_models(view)])
    if base is None or len(others) != 1 or view.base is None or not others[0].entry.done:
        like = view.like_for_like
        equal_all = [like.parity_sentence] if len(like.results) > 1 and like.parity_sentence else []
        return [*like.verdict, *equal_all]
    a, b = view.base, others[0].entry.result
    if b is None:
        return view.verdict
    said = [view.no_race or sentences.pair_sentence(a, b)]
    if not view.no_race and a.breakdown and b.breakdown:
        alike = same_work(base.spec, others[0].spec)
        said.append(sentences.difference_sentence(a.breakdown, b.breakdown) if alike else UNEQUAL_STEPS)
    if a.memory_total and b.memory_total:
        change = b.memory_total - a.memory_total
        differs = f"Memory {'+' if change > 0 else '−'}{bytes_text(abs(change))} on the worst rank."
        said.append(differs if change else "Memory is the same on the worst rank.")
    parity = others[0].parity
    if parity and parity.steps:
        how = (
            f"differ by at most {difference_text(parity.largest)}" if parity.largest else "are the same to the last bit"
        )
        part = f"; {view.losses.part}" if view.losses.part else ""
        said.append(f"Losses {how} over {plural_text(parity.steps, 'step')}{part}.")
        if outline_of(base.spec.model).batch_norm and parity.largest > tolerance(base.spec, others[0].spec):
            said.append(AMPLIFIED)
    return view.cautioned(said)


def held(others: Sequence[Row]) -> bool:
    """Whether any of them can be compared with a baseline: it trains the same kind of model, and did not end without a
    result."""
    return any(row.alike and not row.entry.ended for row in others)


def _of_other_models(view: Overview) -> str:
    """The steps of runs none of which trains the baseline's model, without a speedup."""
    done = [row.entry.result for row in view.rows if row.entry.done and row.entry.result]
    steps = "; ".join(f"{result.label}: {seconds_text(result.step.median)}" for result in done[:SHOWN])
    batches = sorted({row.spec.train.global_batch for row in view.rows})
    of = (
        f" of {plural_text(view.baseline.spec.train.global_batch, 'sample')}"
        if view.baseline and len(batches) > 1
        else ""
    )
    rest = f" ({SHOWN} of {len(done)})" if len(done) > SHOWN else ""
    return f"A step{of} takes: {steps}{rest}." if done else f"{finished_text(0, len(view.rows))}."


@dataclass(frozen=True)
class Reached:
    """When a run first reached the loss that all runs reach; the time is that of its steps after the first.

    `others` as in `entries.taken_of`.
    """

    label: str
    step: str
    samples: str
    seconds: str
    others: float = 0.0


class Reaches(NamedTuple):
    """The lowest loss that every run reaches, as text, when each did, and how it is measured; '' and [] if there is
    none, and `why_not` if that is because a run is short or its loss was never finite."""

    target: str = ""
    lines: Sequence[Reached] = ()
    how: str = ""
    why_not: str = ""


def time_to_loss(view: Overview) -> Reaches:
    """As on a study's page, losses are averaged over some steps: a single batch may be low by chance. None of runs that
    shared hosts."""
    if view.side_by_side:
        return Reaches()
    race = streams.race(view)
    found = [(row, reach) for row in view.rows if (reach := race.reaches.get(row.run.pk))]
    over = race.over * view.losses.every
    short = [row.entry.label for row, _ in found if len(view.losses.of(row.run)) < race.over]
    if len(found) > 1 and short:
        return Reaches(why_not=_too_short(short, over))
    if len(found) < 2:
        return Reaches()
    lines = []
    for row, reach in found:
        if race.goal is None or reach.step is None or reach.seconds is None:
            return Reaches(why_not=_not_finite([row.entry.label for row, one in found if one.step is None], over))
        steps = view.losses.of(row.run)["step"]
        at_once = int(steps[0]) > 0 and reach.step == int(steps[race.over - 1])
        took = BELOW if at_once else seconds_text(reach.seconds, zeros=True)
        samples = samples_after(row.run, reach.step + 1)
        seen = "not known" if samples is None else count_text(samples)
        lines.append(Reached(row.entry.whole or row.entry.label, str(reach.step), seen, took, reach.others))
    how = f"Losses are averaged over {over} steps{left_out(row.run for row in view.rows)}. {TIMES}"
    return Reaches(significant(race.goal or 0.0, 5), lines, how)


def _too_short(labels: Sequence[str], over: int) -> str:
    """Why there is no time to a loss while these runs have fewer losses than are averaged: over fewer, chance
    decides."""
    said = f"There is none: losses are averaged over {over} steps, as one batch may be low by chance, and"
    return f"{said} {_have(labels)} fewer."


def _not_finite(labels: Sequence[str], over: int) -> str:
    """Why there is no loss that all reach where the loss of these runs was never finite for so many steps."""
    return f"There is none that all of these runs reach: {_have(labels)} no finite loss over {over} steps."


def _have(labels: Sequence[str]) -> str:
    rest = f" ({SHOWN} of {len(labels)})" if len(labels) > SHOWN else ""
    return f"{listed_text(labels[:SHOWN])}{rest} {'has' if len(labels) == 1 else 'have'}"
