"""The order found for a run from its cost table, compared with handmade ones, predicted as the ledger predicts runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from parallel_core.plan.memory import worst_stage
from parallel_core.plan.orders.problem import Problem
from parallel_core.plan.orders.search import EFFORT, FoundOrder, find
from parallel_core.profile.table import CostTable
from parallel_core.schedule import places
from parallel_core.schedule.ir import Kind
from parallel_core.schedule.table import to_csv
from parallel_core.schedule.traits import CUSTOM
from parallel_core.simulate.network import ALONE, Where
from parallel_core.simulate.predict import predict_step
from parallel_core.simulate.stage_costs import message_times, stage_times
from parallel_core.spec import RunSpec

BESIDE = (("1f1b", False), ("1f1b", True), ("zb-h1", False), ("zb-v", False))
"""Handmade schedules for comparison, each with or without early gradients."""
SHAPES = {"line": "zb-h1", "v": "zb-v"}
"""Shape -> a schedule whose stages are placed in that shape."""


@dataclass(frozen=True)
class Ordered:
    """A run under one order: predicted `seconds` a step and worst-rank bytes; `found`: result of a search, if any."""

    name: str
    spec: RunSpec
    seconds: float
    memory: int
    found: FoundOrder | None = None


def problem_of(spec: RunSpec, table: CostTable, keep: float, where: Where = ALONE) -> Problem:
    """Stage times of `spec`, with ranks on the hosts of `where`, each of which may keep `keep` micro-batches of its
    share of the model.

    Raises CannotPredict where the table does not belong to this run, OrderError where `keep` is too small.
    """
    home = places(spec.parallel)
    stages, ranks = len(home), spec.parallel.pp
    share = (ranks / stages,) * stages
    f, b, w, whole = (tuple(stage_times(spec, table, kind, where)) for kind in (Kind.F, Kind.B, Kind.W, Kind.BW))
    messages = tuple(message_times(spec, table, where))
    micro_batches = spec.parallel.micro_batches
    return Problem(micro_batches, home, f, b, w, whole, messages, share, share, (keep,) * ranks)


def with_schedule(spec: RunSpec, name: str, program: str | None = None, early: bool = False) -> RunSpec:
    """The run under another schedule, with or without `early` gradients. Cuts are kept if the number of stages is the
    same. Raises ValidationError."""
    split: dict[str, Any] = {**spec.parallel.model_dump(), "schedule": name, "program": program, "chunks": None}
    split["early_gradients"] = early
    made = RunSpec.model_validate(spec.model_dump() | {"parallel": {**split, "cuts": None}})
    if made.parallel.stages != spec.parallel.stages:
        return made
    return RunSpec.model_validate(spec.model_dump() | {"parallel": split})


def ordered(
    spec: RunSpec, table: CostTable, keep: float | None = None, effort: int = EFFORT, where: Where = ALONE
) -> list[Ordered]:
    """Handmade orders of the run and those found for its stages in a line and in a V, fastest first.

    `keep` in micro-batches (default: as many as 1F1B's first stage); `where`: hosts of its ranks. Raises CannotPredict,
    OrderError.
    """
    room = spec.parallel.pp if keep is None else keep
    rows = [*_handmade(spec, table, where), *_found(spec, table, room, effort, where)]
    return sorted(rows, key=lambda row: row.seconds)


def _handmade(spec: RunSpec, table: CostTable, where: Where) -> Iterator[Ordered]:
    for name, early in BESIDE:
        words = f"{name} + early gradients" if early else name
        try:
            yield _row(words, with_schedule(spec, name, early=early), table, where)
        except ValidationError:  # too few layers or micro-batches for it
            continue


def _found(spec: RunSpec, table: CostTable, keep: float, effort: int, where: Where) -> Iterator[Ordered]:
    for shape, like in SHAPES.items():
        try:
            made = find(problem_of(with_schedule(spec, like), table, keep, where), effort // len(SHAPES))
            chosen = with_schedule(spec, CUSTOM, to_csv(made.schedule))
        except ValidationError:  # too few layers for as many stages, or another rule against custom
            continue
        yield _row("found order" if shape == "line" else "found order as a V", chosen, table, where, made)


def _row(name: str, spec: RunSpec, table: CostTable, where: Where, found: FoundOrder | None = None) -> Ordered:
    return Ordered(name, spec, predict_step(spec, table, where=where).seconds, worst_stage(spec).total, found)
