"""Joins the traces of several ranks: assigns ranks, aligns clocks, and determines stages and micro-batches where
possible."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.quantities import plural_text, ranks_text
from parallel_core.analysis.waits import among
from parallel_core.schedule.ir import P2P, Kind
from parallel_core.simulate.imported import MOST_SPANS
from parallel_core.simulate.recovered import NotRecovered, recover, staged
from parallel_core.traces import messages
from parallel_core.traces.clocks import aligned
from parallel_core.traces.inferred_pipeline import NotCounted, Spans, counted, whole
from parallel_core.traces.kineto import RankTrace, joined
from parallel_core.traces.known_orders import ordered
from parallel_core.traces.known_programs import label
from parallel_core.traces.profiled_cycles import Part, merged

_CALLED = re.compile(r"(?:rank[-_]?|worker)(\d+)", re.I)
_NUMBERED = re.compile(r"[-_](\d+)(?=\.)")
_BY_HANDLER = re.compile(r"(\d*)\.\d{6,}\.pt\.trace\b")
"""A name given by torch.profiler.tensorboard_trace_handler, `<worker name>.<ns>.pt.trace.json`. By default the worker
name is `<host>_<process id>`, whose numbers are no ranks."""


@dataclass
class JobTrace:
    """The traces of a job. `ranks[r]`: trace of rank r; `files[r]`: name of its (first) file; `notes`: findings and
    problems, as text for the user.
    `recorded`: facts about the run that the files state (`exported_job`); {} for traces of torch.profiler."""

    ranks: dict[int, RankTrace] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    recorded: dict[str, Any] = field(default_factory=dict)


def ranks_of(files: Sequence[tuple[str, Mapping[str, Any]]]) -> list[int | None]:
    """The rank of each (file name, header) of a job; None where neither says it.

    Worker names that end with 0 to n - 1 number the n ranks: process ids practically never do.
    """
    workers = [found[1] for found in (_BY_HANDLER.search(name) for name, _ in files) if found]
    numbered = bool(workers) and sorted(workers) == sorted(map(str, range(len(workers))))
    return [rank_of(header, name, len(files) == 1, numbered) for name, header in files]


def rank_of(header: Mapping[str, Any], name: str, alone: bool = False, numbered: bool = False) -> int | None:
    """The rank that the profiler wrote into the file, otherwise the one in its name; None where neither has one.
    `alone`: the job's only file, which a number in its name does not tell from others unless it is called a rank.
    `numbered`: worker names of the profiler's handler end with ranks."""
    info = header.get("distributedInfo")
    told = info.get("rank") if isinstance(info, dict) else None
    if isinstance(told, int) and 0 <= told < 1 << 20:
        return told
    by_handler = _BY_HANDLER.search(name)
    last = (by_handler if numbered else None) if by_handler else (None if alone else _NUMBERED.search(name))
    found = _CALLED.search(name) or last
    return int(found[1]) if found and int(found[1]) < 1 << 20 else None


def world_of(header: Mapping[str, Any]) -> int:
    """The number of the job's ranks that the profiler wrote into the file; 0 where it is not given."""
    info = header.get("distributedInfo")
    told = info.get("world_size") if isinstance(info, dict) else None
    return told if isinstance(told, int) and 0 < told <= 1 << 20 else 0


def world_size(told: Mapping[int, int]) -> int:
    """The number of ranks of a job; `told`: rank -> the number that its trace gives (0: none), at least the rank."""
    return max((max(rank + 1, world) for rank, world in told.items()), default=0)


def join(parts: Sequence[Part]) -> JobTrace:
    """Joins (file name, rank or None, trace) of all files into one job."""
    out = JobTrace()
    free = iter(range(len(parts) + 1))
    taken = {rank for _, rank, _ in parts if rank is not None}
    for name, told, trace in merged(parts):
        rank = told
        if rank is None or rank in out.ranks:
            rank = next(i for i in free if i not in taken)
            taken.add(rank)
            why = "does not say its rank" if told is None else f"says it is rank {told}, as another does"
            if len(parts) > trace.files:
                out.notes.append(f"{name} {why}: it is shown as rank {rank}.")
        out.ranks[rank], out.files[rank] = trace, name
    out.notes += _of_files(parts)
    _cycles(out)
    _missing(out)
    out.notes += aligned(out.ranks)
    _pipeline(out)
    return out


def _of_files(parts: Sequence[Part]) -> list[str]:
    """Returns the notes of each file; notes common to several files appear once."""
    notes = [trace.notes for _, _, trace in parts]
    every = [note for note in notes[0] if all(note in others for others in notes)] if len(notes) > 1 else []
    own = [f"{name}: {note}" for name, _, trace in parts for note in trace.notes if note not in every]
    return [f"All {len(parts)} files: {note}" for note in every] + own


def _cycles(out: JobTrace) -> None:
    several = [rank for rank, trace in out.ranks.items() if trace.files > 1]
    if several:
        out.notes.append(
            f"The files of {ranks_text(sorted(several))} have different steps: those of a rank are shown together."
        )


def _missing(out: JobTrace) -> None:
    world = world_size({rank: trace.world for rank, trace in out.ranks.items()})
    absent = sorted(set(range(world)) - set(out.ranks))
    if absent:
        are = "is" if len(out.ranks) == 1 else "are"
        out.notes.append(f"There is no trace of {ranks_text(absent)}: {len(out.ranks)} of {world} ranks {are} here.")
    steps = {rank: set(trace.steps) for rank, trace in out.ranks.items()}
    every = set.union(*steps.values()) if steps else set()
    short = [rank for rank, own in steps.items() if own != every]
    if short and every:
        out.notes.append(f"Not every step is in the traces of {ranks_text(short)}.")


def _pipeline(out: JobTrace) -> None:
    """Notes what is known of stages and micro-batches, and how certain it is."""
    if any(trace.micro_batches for trace in out.ranks.values()):
        most = max(trace.micro_batches for trace in out.ranks.values())
        stages = "stages and " if any(trace.stages for trace in out.ranks.values()) else ""
        named = f"{stages}up to {plural_text(most, 'micro-batch')} a rank"
        out.notes.append(f"Certain: {named} are named by annotations in the traces.")
        _messages(out)
        return
    steps = (rows for trace in out.ranks.values() for rows in trace.steps.values())
    if any(np.isin(rows["kind"], [*P2P]).any() for rows in steps):
        out.notes.append(_counted(out))


def _messages(out: JobTrace) -> None:
    """Names messages that have no annotation, where the operations around them form a pipeline."""
    for step in _common(out):
        spans = {rank: trace.steps[step] for rank, trace in out.ranks.items()}
        unnamed = [(np.isin(rows["kind"], [*P2P]) & (rows["stage"] < 0)).any() for rows in spans.values()]
        if not any(unnamed) or sum(map(len, spans.values())) > MOST_SPANS:
            continue
        try:
            recover(spans)
        except NotRecovered:
            continue
        for rank, rows in messages.named(spans, staged(spans)[1]).items():
            out.ranks[rank].steps[step] = rows


def _common(out: JobTrace) -> list[int]:
    """Returns the steps that are in all traces."""
    return sorted(set.intersection(*(set(trace.steps) for trace in out.ranks.values())))


def _counted(out: JobTrace) -> str:
    """Numbers stages and micro-batches of the steps where messages determine them; returns the note that says so, or
    why not."""
    steps = _common(out)
    why, found, names = "no step is in all traces", set[tuple[int, int]](), set[str]()
    assumed = False
    for step in steps:
        try:
            name, made = _inferred({rank: trace.steps[step] for rank, trace in out.ranks.items()})
        except NotCounted as error:
            why = str(error)
            continue
        names |= {label(name)} if name else set()
        assumed |= all(_forwards_first(rows) for rows in made.values())
        for rank, rows in made.items():
            out.ranks[rank].steps[step] = joined(rows, out.ranks[rank].pause)
            out.ranks[rank].counted.append(step)
            found.add((int(rows["stage"].max()) + 1, int(rows["micro_batch"].max()) + 1))
    if not found:
        return (
            "Not recovered: ranks send to each other, as a pipeline does, but nothing names stages or micro-batches, "
            f"and {why}. torch.distributed.pipelining and this engine annotate them."
        )
    stages, micro_batches = (max(pair[i] for pair in found) for i in range(2))
    some = f"in {len(next(iter(out.ranks.values())).counted)} of {len(steps)} steps"
    return _likely(stages, micro_batches, some, sorted(names)) + (_ASSUMED if assumed else "")


_ASSUMED = (
    " All forwards come before all backwards: that backwards take the micro-batches in the same order is assumed. "
    "PyTorch's looped BFS takes the last one first; then forwards are numbered right and backwards the other way round."
)


def _forwards_first(rows: NDArray[np.void]) -> bool:
    """Whether all of several forwards come before the first backward, so that nothing determines each backward's
    micro-batch."""
    named = rows[rows["micro_batch"] >= 0]
    back = among(named, (Kind.B, Kind.W, Kind.BW))
    ahead = named[among(named, (Kind.F,))]
    several = len(np.unique(ahead["micro_batch"])) > 1 and bool(back.any())
    return several and int(ahead["start"].max()) < int(named["start"][back].min())


def _likely(stages: int, micro_batches: int, some: str, orders: Sequence[str]) -> str:
    """Returns the note on what was determined, and by what: the order of known schedules, or messages alone."""
    if orders:
        return (
            f"Likely: {stages} stages and {micro_batches} micro-batches, because {some} the ranks did what "
            f"{' or '.join(orders)} does, in its order. Nothing names them."
        )
    return (
        f"Likely: {stages} stages by who computes before anything arrives, {micro_batches} micro-batches by counting "
        f"messages, {some}. Nothing names them."
    )


def _inferred(spans: Spans) -> tuple[str, dict[int, NDArray[np.void]]]:
    """Returns the spans with stages and micro-batches, and the name of the known order that determined them ('':
    counted).

    Raises NotCounted where neither works. Where messages are missing, no order is tried.
    """
    try:
        return "", counted(spans)
    except NotCounted as error:
        why = error
    if not whole(spans):
        raise why
    try:
        return ordered(spans)
    except NotCounted as error:
        raise NotCounted(f"{why}; {error}") from error
