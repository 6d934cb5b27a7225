"""Joins steps of one run that Trainyard exported, one file per step with all ranks in it, into one job."""

from __future__ import annotations

from collections.abc import Sequence

from parallel_core.analysis.quantities import few_text, plural_text, ranks_text
from parallel_core.faults import sentences
from parallel_core.layout import Layout
from parallel_core.traces.job_trace import JobTrace
from parallel_core.traces.kineto import RankTrace
from parallel_core.traces.trainyard_export import OwnStep, lacking, largest


def join_own(parts: Sequence[tuple[str, OwnStep]], others: Sequence[str]) -> JobTrace:
    """Joins (file name, contents) of all files exported by Trainyard, at least one of which has spans.

    `others`: names of torch.profiler files, which cannot be read together with these and are reported as left out.
    """
    first = next(own for _, own in parts if own.spans)
    out = JobTrace()
    for name, own in parts:
        before = f"{name}: " if len(parts) + len(others) > 1 else ""
        out.notes += [before + note for note in own.notes]
        if not own.spans:
            out.notes += [] if own.notes else [f"{before}There are no spans in it."]
        elif not _alike(own, first):
            out.notes.append(f"{name} is of another run than the first file and was left out: upload it by itself.")
        else:
            out.notes += [before + note for note in lacking(own)]
            out.notes += _take(out, name, own)
    out.notes += [f"{name} is a trace of torch.profiler and was left out: upload it without these." for name in others]
    for trace in out.ranks.values():
        trace.top, trace.raw = largest(trace.steps.values()), sum(map(len, trace.steps.values()))
    out.notes = [*_about(out, first), *out.notes, *_missing(out, first)]
    out.recorded = {
        "spec": first.spec.model_dump(mode="json") if first.spec else None,
        "run": first.run,
        "others": first.others,
        "spans": {own.step: own.recorded for _, own in parts if own.spans and _alike(own, first)},
    }
    return out


def _alike(own: OwnStep, first: OwnStep) -> bool:
    """Whether both are steps of the same run."""
    return own.run == first.run and own.spec == first.spec


def _take(out: JobTrace, name: str, own: OwnStep) -> list[str]:
    """Adds the spans of a file; where another file already had a rank's step, that one is kept. Returns notes."""
    twice = []
    for rank, rows in own.spans.items():
        trace = out.ranks.setdefault(rank, RankTrace(own.device))
        out.files.setdefault(rank, name)
        if own.step in trace.steps:
            twice.append(rank)
            continue
        trace.steps[own.step] = rows
        trace.counted += [own.step] if own.counted else []
    if not twice:
        return []
    return [f"{name} holds step {own.step} of {ranks_text(twice)} once more: the first one is shown."]


def _about(out: JobTrace, first: OwnStep) -> list[str]:
    """Returns a note on what was read and where its stages and micro-batches are from."""
    steps = sorted({step for trace in out.ranks.values() for step in trace.steps})
    which = f"{'step' if len(steps) == 1 else 'steps'} {few_text(steps)}"
    run = f"{first.run}, {which}" if first.run else which
    size = plural_text(len(out.ranks), "rank")
    if first.spec is None:
        how = "were recognised by messages there" if first.counted else "are those of the file"
        return [f"Exported by Trainyard: {run}, {size}, without a spec that holds. Stages and micro-batches {how}."]
    said = f"As recorded: {run}, {size}. Stages, micro-batches and layout are the run's own; nothing is recovered."
    if first.spec.inject:
        said += f" It was broken on purpose. {'; '.join(sentences(first.spec.inject))}."
    return [said]


def _missing(out: JobTrace, first: OwnStep) -> list[str]:
    """Returns notes on ranks (of the layout, or up to the last one) without spans, and on missing steps."""
    world = Layout.of(first.spec).world if first.spec else max(out.ranks, default=-1) + 1
    absent = sorted(set(range(world)) - set(out.ranks))
    notes = [f"There are no spans of {ranks_text(absent)}."] if absent else []
    every = set().union(*(trace.steps for trace in out.ranks.values()))
    short = [rank for rank, trace in out.ranks.items() if set(trace.steps) != every]
    return notes + ([f"Not every step has spans of {ranks_text(short)}."] if short else [])
