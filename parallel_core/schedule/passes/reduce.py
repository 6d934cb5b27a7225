"""Adds the end of a step: gradient reduction over the replicas of a stage, then the optimizer."""

from __future__ import annotations

from dataclasses import replace

from parallel_core.schedule.ir import REPLICA_COLLECTIVES, Kind, Op, Schedule


def reduce_and_step(schedule: Schedule, zero: int = 0) -> Schedule:
    """ALLREDUCE (for stages with several replicas), then OPT_STEP, for each stage after the last compute of its rank.

    A rank with several stages reduces the gradients of all of them before it updates any: the gradient norm comes
    between. ALLREDUCE is where the rank *waits* for the reductions: buckets start earlier, inside the last backward.
    The tied embedding's reduction over the first and last stage, and the gradient norm, belong to the engine and are
    not shown. With ZeRO (`zero` > 0): REDUCE_SCATTER, OPT_STEP, and up to ZeRO-2 GATHER; under ZeRO-3 layers gather
    their parameters when they run, inside compute operations.
    """
    programs = list(schedule.programs)
    sharded = (Kind.REDUCE_SCATTER, Kind.OPT_STEP, Kind.GATHER)[: 2 if zero > 2 else 3]
    for kind in sharded if zero else (Kind.ALLREDUCE, Kind.OPT_STEP):
        for stage, ranks in enumerate(schedule.placement):
            if kind in REPLICA_COLLECTIVES and len(ranks) == 1:
                continue
            for replica, rank in enumerate(ranks):
                programs[rank] += (Op(kind, stage, replica=replica),)
    return replace(schedule, programs=tuple(programs))
