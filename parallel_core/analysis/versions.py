"""Weight versions that a micro-batch used on each stage, read from a schedule without flushes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from parallel_core.schedule.ir import Kind, Program, Schedule


class Use(NamedTuple):
    """One micro-batch on one stage. Versions count the micro-batches whose gradients they hold."""

    stage: int
    micro_batch: int
    forward: int
    backward: int
    late: int
    """Updates of the stage between the forward and the update with this gradient."""


def uses(schedule: Schedule) -> list[Use]:
    """Uses of every micro-batch on every stage, by stage, then by micro-batch."""
    return sorted(use for program in schedule.programs for use in _of_rank(program))


def _of_rank(program: Program) -> Iterator[Use]:
    """Uses on one rank. The age of a version is counted in updates: version v was made by update `made[v]`."""
    made, forward = {0: 0}, dict[int, int]()
    updates = 0
    for op in program:
        if op.kind is Kind.F:
            forward[op.micro_batch] = op.version
        elif op.kind is Kind.BW:
            read = forward.pop(op.micro_batch)
            yield Use(op.stage, op.micro_batch, read, op.version, updates - made[read])
        elif op.kind is Kind.OPT_STEP:
            updates += 1
            made[op.version] = updates
