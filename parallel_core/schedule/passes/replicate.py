"""Copies the pipeline of one replica for each data-parallel replica."""

from __future__ import annotations

from dataclasses import replace

from parallel_core.schedule.ir import Op, Schedule


def replicate(schedule: Schedule, replicas: int) -> Schedule:
    """Replica r gets the pipeline ranks after those of replica r - 1, and the micro-batches congruent to r.

    `schedule` has one replica. Gradient reduction between the copies is added by `reduce`.
    """
    if replicas == 1:
        return schedule
    ranks = schedule.pipeline_ranks
    return replace(
        schedule,
        micro_batches=schedule.micro_batches * replicas,
        per_step=schedule.per_step * replicas,
        placement=tuple(tuple(replica * ranks + rank for replica in range(replicas)) for (rank,) in schedule.placement),
        programs=tuple(
            tuple(_copy(op, replica, replicas) for op in program)
            for replica in range(replicas)
            for program in schedule.programs
        ),
    )


def _copy(op: Op, replica: int, replicas: int) -> Op:
    partner = op.partner and (op.partner[0], op.partner[1] * replicas + replica)
    return Op(op.kind, op.stage, op.micro_batch * replicas + replica, replica, op.version, partner=partner)
