"""Rules about a pipeline: its schedule, chunks, custom program, stages and cuts. Errors name valid values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from parallel_core.analysis.quantities import plural_text
from parallel_core.rules import MAX_VALUES_NAMED, Proposal, refusal, rule_error
from parallel_core.schedule.custom import read
from parallel_core.schedule.error import ScheduleError
from parallel_core.schedule.round_robin import least_micro_batches
from parallel_core.schedule.table import TableError
from parallel_core.schedule.traits import CUSTOM, TRAITS, allowed_chunks, takes_early_gradients

if TYPE_CHECKING:
    from parallel_core.spec import ParallelSpec

MORE_STAGES = Proposal("pp={} or more", "parallel.pp", range(2, 17))
NOT_EARLY = Proposal("early_gradients=false", "parallel.early_gradients", [False])


def check_pipeline(split: ParallelSpec, units: int) -> None:
    """Raises the error of the first rule that `split` breaks for a model of `units` layers."""
    for check in SPLIT_CHECKS:
        check(split)
    check_stages(split, units)


def _check_program(split: ParallelSpec) -> None:
    fields = ("parallel.program", "parallel.schedule")
    if split.program is None:
        if split.schedule == CUSTOM:
            other = Proposal("schedule={}", "parallel.schedule", ["1f1b"])
            raise refusal(fields, f"schedule={CUSTOM} has no program; give one, or use", other)
        return
    if split.schedule != CUSTOM:
        raise refusal(
            fields,
            f"schedule={split.schedule} takes no program; use",
            Proposal("schedule={}", "parallel.schedule", [CUSTOM]),
            Proposal("leave program empty", "parallel.program", [None]),
        )
    _check_read(split, split.program)


def _check_read(split: ParallelSpec, program: str) -> None:
    """Checks that the program can be read, and that the other fields fit it."""
    try:
        made = read(program)
    except (TableError, ScheduleError) as error:
        raise rule_error(("parallel.program",), str(error)) from error
    chunks = made.stages // made.pipeline_ranks
    if made.pipeline_ranks == 1 and chunks > 1:
        raise rule_error(
            ("parallel.program",), "a program of one row holds one stage; give each pipeline rank a row of its own."
        )
    for field, name, value, right in (
        ("parallel.pp", "pp", split.pp, made.pipeline_ranks),
        ("parallel.micro_batches", "micro-batches", split.micro_batches, made.micro_batches),
        ("parallel.chunks", "chunks", split.chunks or chunks, chunks),
    ):
        if value != right:
            raise rule_error((field, "parallel.program"), f"{name}={value} does not fit the program; use {right}.")


def _check_early(split: ParallelSpec) -> None:
    """Early gradients need a previous stage that waits for them, and a backward that can be split."""
    if not split.early_gradients:
        return
    if split.pp == 1:
        raise refusal(
            ("parallel.early_gradients", "parallel.pp"),
            "early_gradients=true sends gradients to the stage before, and pp=1 has none; use",
            MORE_STAGES,
            NOT_EARLY,
        )
    fitting = takes_early_gradients()
    if split.schedule not in fitting:
        raise refusal(
            ("parallel.early_gradients", "parallel.schedule"),
            f"early_gradients=true parts a backward, and schedule={split.schedule} {_whole(split.schedule)}; use",
            Proposal("schedule={}", "parallel.schedule", fitting, MAX_VALUES_NAMED),
            NOT_EARLY,
        )


def _whole(schedule: str) -> str:
    """Returns why the backwards of `schedule` cannot be split."""
    if schedule == CUSTOM:
        return "runs as it is written"
    return "has parted it already" if TRAITS[schedule].split else "needs the whole of it for an update"


def fewest_micro_batches(split: ParallelSpec) -> int:
    """Returns the smallest number of micro-batches with which the schedule of `split` works."""
    traits = TRAITS[split.schedule]
    if split.replicas is not None:
        return least_micro_batches(split.schedule, split.replicas)
    if split.pp > 1 and traits.pairs:
        return 2 * split.pp
    return max(1, split.pp - 1) if traits.sync == "2bw" else 1


def _check_micro_batches(split: ParallelSpec) -> None:
    least = fewest_micro_batches(split)
    if TRAITS[split.schedule].pairs and split.micro_batches < least:
        raise rule_error(
            ("parallel.micro_batches", "parallel.schedule", "parallel.pp"),
            f"schedule={split.schedule} with pp={split.pp} needs at least {least} micro-batches, "
            f"got {split.micro_batches}; use micro_batches={least} or more.",
        )


def _check_stream(split: ParallelSpec) -> None:
    """A schedule that never flushes needs a pipeline, and enough micro-batches for the versions that it keeps."""
    if split.flushes:
        return
    if split.pp == 1:
        raise refusal(
            ("parallel.schedule", "parallel.pp"),
            f"schedule={split.schedule} keeps a pipeline full, and pp=1 is none; use",
            MORE_STAGES,
            Proposal("schedule={}", "parallel.schedule", ["1f1b"]),
        )
    least = fewest_micro_batches(split)
    if split.replicas is None and split.micro_batches < least:
        raise rule_error(
            ("parallel.micro_batches", "parallel.schedule", "parallel.pp"),
            f"schedule={split.schedule} with pp={split.pp} needs at least {least} micro-batches, or two "
            f"versions do not last; got {split.micro_batches}; use micro_batches={least} or more.",
        )


def _check_chunks(split: ParallelSpec) -> None:
    traits = TRAITS[split.schedule]
    if split.chunks is None or split.program is not None:
        return
    if split.pp == 1 and split.chunks > 1:
        raise refusal(
            ("parallel.chunks", "parallel.pp"),
            f"chunks={split.chunks} needs a pipeline;",
            Proposal("leave it empty", "parallel.chunks", [None]),
            MORE_STAGES._replace(words="use pp={} or more"),
        )
    if split.pp > 1 and not traits.least <= split.chunks <= (traits.most or split.chunks):
        raise refusal(
            ("parallel.chunks", "parallel.schedule"),
            f"chunks={split.chunks} does not fit schedule={split.schedule};",
            Proposal(f"use {allowed_chunks(split.schedule)}", "parallel.chunks", [traits.least]),
            Proposal("leave it empty", "parallel.chunks", [None]),
        )


def check_stages(split: ParallelSpec, units: int) -> None:
    """Checks that every stage has a layer, and that `cuts` are valid."""
    cuts, v = split.cuts, split.chunks_per_rank
    shape = f"pp={split.pp}" if v == 1 else f"pp={split.pp} x chunks={v}"
    count = "is more than" if v == 1 else f"makes {split.stages} stages, more than"
    if split.stages > units:
        field = "parallel.pp" if v == 1 else "parallel.chunks"
        raise rule_error(
            (field, "parallel.pp", "model.layers"),
            f"{shape} {count} the model's {units} cuttable layers; {_fewer_stages(split, units)}.",
        )
    if cuts is None:
        return
    if len(cuts) != split.stages - 1:
        needs = plural_text(split.stages - 1, "cut")
        message = f"{shape} needs {needs}, got {len(cuts)}; leave cuts empty, and they are balanced."
        raise rule_error(("parallel.cuts", "parallel.pp"), message)
    if list(cuts) != (near := _nearest_cuts(cuts, units)):
        message = (
            f"cuts must rise strictly within 1 .. {units - 1}, as the model has {units} cuttable layers; got "
            f"{list(cuts)}; try {near}."
        )
        raise rule_error(("parallel.cuts", "model.layers"), message)


SPLIT_CHECKS = (_check_program, _check_early, _check_micro_batches, _check_stream, _check_chunks)
"""Checks that do not depend on the model."""


def _nearest_cuts(cuts: Sequence[int], units: int) -> list[int]:
    """Returns the nearest valid cuts: strictly ascending, with room for those that follow."""
    near: list[int] = []
    for i, cut in enumerate(sorted(cuts)):
        near.append(min(max(cut, near[-1] + 1 if near else 1), units - len(cuts) + i))
    return near


def _fewer_stages(split: ParallelSpec, units: int) -> str:
    """Returns what would reduce the number of stages to `units`."""
    if split.program is not None:
        return f"the program needs a model of at least {split.stages}"
    if split.chunks_per_rank == 1:
        return f"use at most {units}"
    ways = [f"chunks={units // split.pp}"] if units // split.pp >= TRAITS[split.schedule].least else []
    if units // split.chunks_per_rank > 1:
        ways.append(f"pp={units // split.chunks_per_rank}")
    if ways:
        return f"use at most {' or '.join(ways)}"
    least = 2 * TRAITS[split.schedule].least
    return f"schedule={split.schedule} needs at least {least} of them; use schedule=1f1b, or more layers"
