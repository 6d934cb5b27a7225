"""Runs pairs of features on real ranks: what `parallel_core.combinations` says of each, in several launches.

Pairs with the same number of ranks share their processes. The launches of a pair are its *legs*: each is a part of a
run from a checkpoint of an earlier leg, or generates text from it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch

from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.combinations import Combination
from parallel_core.engine import checkpoint, generate, host_memory
from parallel_core.engine.device import use_deterministic_algorithms
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.fingerprint import ReplicasDiffer
from parallel_core.engine.run import run_rank
from parallel_core.engine.trainer import Trainer
from parallel_core.observe.memory import MemoryCapExceeded
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink, events_path
from parallel_core.outcome import points
from parallel_core.spec import RunSpec
from tests.parallel_core import injections, ranks
from tests.parallel_core.frames import read_file
from tests.parallel_core.injections import Injections
from tests.parallel_core.pair_legs import Kind, Leg, corpora, corpora_of, legs_of


class Steps(NamedTuple):
    """Of a rank that only trained: its losses, and a hash of the parameters that it holds after the last step."""

    losses: list[float]
    parameters: str


class End(NamedTuple):
    """Of a rank that ran: what ended it, '' if nothing did, and what faults did on it."""

    why: str
    injections: Injections


@dataclass
class Ran:
    """The legs of a pair, and the result of each rank in each: `Steps` of "steps", `End` of others. `error`: tracebacks
    of a leg that failed, after which there is none.
    """

    legs: list[Leg]
    results: list[list[Any]] = field(default_factory=list)
    error: str = ""

    def named(self, name: str) -> Leg:
        return next(leg for leg in self.legs if leg.folder.name == name)

    def ends(self, leg: Leg) -> list[End]:
        return next(results for one, results in zip(self.legs, self.results, strict=True) if one is leg)

    def losses(self, *names: str) -> list[float]:
        """The losses of these legs, in the order of their steps."""
        found: dict[int, float] = {}
        for leg, results in zip(self.legs, self.results, strict=True):
            if leg.folder.name in names:
                rows = points(read_file(events_path(leg.folder, 0)), "loss")[["step", "value"]].tolist()
                found |= dict(enumerate(results[0].losses) if leg.kind == "steps" else rows)
        return [found[step] for step in sorted(found)]


def run(pairs: Mapping[str, Combination], home: Path) -> dict[str, Ran]:
    """Runs the legs of all pairs, with a folder in `home` for each; the first ones of all, then the second ones."""
    corpora()  # now, as ranks inherit the cached result
    every = {name: Ran(legs_of(pair, home / str(i))) for i, (name, pair) in enumerate(pairs.items())}
    for number in range(max(len(ran.legs) for ran in every.values())):
        due = [ran for ran in every.values() if number < len(ran.legs) and not ran.error]
        worlds = sorted(((ran.legs[number].spec.parallel.world, i) for i, ran in enumerate(due)))
        for _, group in groupby(worlds, itemgetter(0)):
            _run_legs([due[i] for _, i in group], number)
    return every


def _run_legs(due: Sequence[Ran], number: int) -> None:
    turns = []
    for ran in due:
        leg = ran.legs[number]
        leg.folder.mkdir(parents=True)
        turns.append((leg.spec, partial(_WORK[leg.kind], leg, leg.source)))
    for ran, result in zip(due, ranks.run_each(turns), strict=True):
        if isinstance(result, str):
            ran.error = f"{ran.legs[number].folder.name}: {result}"
        else:
            ran.results.append(result)


def _steps(leg: Leg, source: Path | None, spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Steps:
    if spec.train.deterministic:
        use_deterministic_algorithms()

    def use(trainer: Trainer) -> Steps:
        losses = [trainer.step(step).loss for step in range(spec.train.steps)]
        parameters = hashlib.sha256()
        for _, (_, values) in sorted(trainer.flat.owned_values().items()):
            parameters.update(values.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
        return Steps(losses, parameters.hexdigest())

    return ranks.with_trainer(spec, rank, meeting, folder, use, corpora_of(spec))


def _run(leg: Leg, source: Path | None, spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> End:
    saving = spec.train.checkpoint_every or source is not None
    saves = CheckpointConfig(leg.folder, source) if saving else None
    sink, page, why = FileSink(leg.folder, rank), Progress(folder, rank), ""
    with injections.measured() as found:
        try:
            run_rank(spec, rank, sink, _at_host(leg, rank, meeting), page, corpora_of(spec), saves)
        except (ReplicasDiffer, MemoryCapExceeded) as error:
            why = str(error)
    return End(why, found)


def _run_capped(leg: Leg, source: Path | None, spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> End:
    """Runs with less memory than any rank of the earlier run had for its optimizer, so that each fails by itself."""
    assert leg.cap_of is not None
    of_ranks = (read_file(events_path(leg.cap_of, rank)) for rank in range(spec.parallel.world))
    peaks = [[frame for frame in frames if frame.kind == "memory"][-1].header["peak"] for frames in of_ranks]
    trace = spec.trace.model_copy(update={"memory_cap": min(peak["optimizer"] for peak in peaks)})
    return _run(leg, source, spec.model_copy(update={"trace": trace}), rank, meeting, folder)


def _reload(leg: Leg, source: Path | None, spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> End:
    assert source is not None

    def use(trainer: Trainer) -> End:
        done = checkpoint.load(trainer, source)
        saver = checkpoint.Saver(trainer, CheckpointConfig(leg.folder), FileSink(leg.folder, rank))
        saver.save(done)
        saver.wait()
        return End("", Injections())

    return ranks.with_trainer(spec, rank, meeting, folder, use, corpora_of(spec))


def _text(leg: Leg, source: Path | None, spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> End:
    assert source is not None and leg.request is not None
    sink, page = FileSink(leg.folder, rank), Progress(folder, rank)
    generate.run_rank(spec, rank, sink, _at_host(leg, rank, meeting), page, source, leg.request)
    return End("", Injections())


_WORK: dict[Kind, Callable[..., Any]] = {
    "steps": _steps,
    "run": _run,
    "capped": _run_capped,
    "reload": _reload,
    "text": _text,
}


def _at_host(leg: Leg, rank: int, meeting: Rendezvous) -> Rendezvous:
    """Puts the rank on one of the leg's hosts, which share no memory; the first half of the ranks is on the first."""
    if leg.hosts == 1 or meeting.world == 1:
        return meeting
    node = 0 if rank < meeting.world // 2 else meeting.world // 2
    os.environ[host_memory.NODE] = str(node)
    return replace(meeting, node=node)
