"""Adds the end of a step: gradients summed over the replicas of a stage, then the optimizer."""

from __future__ import annotations

from dataclasses import replace

from parallel_core.schedule.ir import Kind, Op, Schedule


def reduce_and_step(schedule: Schedule) -> Schedule:
    """ALLREDUCE (where a stage has several replicas) and OPT_STEP behind the last backward of every program.

    ALLREDUCE is where the rank *waits* for the sums: buckets start earlier, inside the last backward. The tied
    embedding's sum over the first and last stage, and the gradient norm, belong to the engine and are not shown.
    """
    programs = list(schedule.programs)
    for stage, ranks in enumerate(schedule.placement):
        for replica, rank in enumerate(ranks):
            end = [Op(Kind.ALLREDUCE, stage, replica=replica)] if len(ranks) > 1 else []
            programs[rank] += (*end, Op(Kind.OPT_STEP, stage, replica=replica))
    return replace(schedule, programs=tuple(programs))
