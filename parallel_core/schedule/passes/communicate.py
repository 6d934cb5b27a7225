"""Adds SEND and RECV between neighbouring stages on different ranks."""

from __future__ import annotations

from dataclasses import replace

from parallel_core.schedule.ir import Kind, Op, Program, Schedule


def communicate(schedule: Schedule) -> Schedule:
    """Puts RECV directly before the compute that needs it, SEND directly after the compute that makes it.

    A RECV in a program is where the rank *waits*; the engine posts the receive earlier. Sends and receives on the link
    between two ranks therefore come in the order of the compute on both ends. How far ahead receives are posted and
    when a send's buffer is free again is not defined here: `check` proves that one receive ahead is enough. Between two
    stages on one rank nothing is added: the engine hands the tensor over in place. Both halves of a PAIR have their
    RECVs before it and their SENDs after it.
    """
    return replace(schedule, programs=tuple(_lower(schedule, q) for q in range(schedule.pipeline_ranks)))


_GRADIENTS = (Kind.RECV_GRAD, 1), (Kind.SEND_GRAD, -1)
_MESSAGES = {Kind.F: ((Kind.RECV_ACT, -1), (Kind.SEND_ACT, 1)), Kind.B: _GRADIENTS, Kind.BW: _GRADIENTS}
"""For each compute kind (input, output): the message and the offset of the stage at its other end. W has neither."""


def _lower(schedule: Schedule, rank: int) -> Program:
    out: list[Op] = []
    for op in schedule.programs[rank]:
        parts = [part for part in op.parts() if part.kind in _MESSAGES]
        for part in parts:  # loops without generators: pages wait for programs of 10^4 operations
            kind, step = _MESSAGES[part.kind][0]
            if (peer := _neighbour(schedule, part, step)) >= 0:
                out.append(Op(kind, part.stage, part.micro_batch, part.replica, part.version, peer))
        out.append(op)
        for part in parts:
            kind, step = _MESSAGES[part.kind][1]
            if (peer := _neighbour(schedule, part, step)) >= 0:
                out.append(Op(kind, part.stage, part.micro_batch, part.replica, part.version, peer))
    return tuple(out)


def _neighbour(schedule: Schedule, op: Op, step: int) -> int:
    """Pipeline rank of stage `op.stage` + `step` for the operation's micro-batch (`Schedule.home`); -1 beyond either
    end or if it is this rank."""
    stage = op.stage + step
    if not 0 <= stage < schedule.stages:
        return -1
    places = schedule.placement[stage]
    rank = places[0] if len(places) == 1 else places[schedule.home(stage, op.micro_batch)]
    return -1 if rank == schedule.placement[op.stage][op.replica] else rank
