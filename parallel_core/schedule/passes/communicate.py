"""Adds SEND and RECV between neighbouring stages on different ranks."""

from __future__ import annotations

from dataclasses import replace

from parallel_core.schedule.ir import Kind, Op, Program, Schedule


def communicate(schedule: Schedule) -> Schedule:
    """RECV stands right in front of the compute that needs it, SEND right behind the compute that made it.

    A RECV in a program is the place where the rank *waits*; the engine posts the receive earlier. Sends and receives
    on the link between two ranks therefore come in the order of the compute on both ends. Does not say how far ahead
    receives are posted, nor when a send's buffer is free again: `check` proves that one receive ahead is enough. Where
    both stages stand on one rank nothing is added: the engine hands the tensor over in place.
    """
    return replace(schedule, programs=tuple(_lower(schedule, q) for q in range(schedule.pipeline_ranks)))


def _lower(schedule: Schedule, rank: int) -> Program:
    out: list[Op] = []
    for op in schedule.programs[rank]:
        if op.kind is Kind.W:  # needs nothing of its neighbours: B has sent the gradient of the input
            out.append(op)
            continue
        before = replace(op, kind=Kind.RECV_ACT if op.kind is Kind.F else Kind.RECV_GRAD)
        after = replace(op, kind=Kind.SEND_ACT if op.kind is Kind.F else Kind.SEND_GRAD)
        step = 1 if op.kind is Kind.F else -1
        source, target = _neighbour(schedule, op, -step), _neighbour(schedule, op, step)
        if source >= 0:
            out.append(replace(before, peer=source))
        out.append(op)
        if target >= 0:
            out.append(replace(after, peer=target))
    return tuple(out)


def _neighbour(schedule: Schedule, op: Op, step: int) -> int:
    """Pipeline rank of the stage `step` behind `op.stage` in the same replica; -1 past either end or on this rank."""
    stage = op.stage + step
    if not 0 <= stage < schedule.stages:
        return -1
    rank = schedule.placement[stage][op.replica]
    return -1 if rank == schedule.placement[op.stage][op.replica] else rank
