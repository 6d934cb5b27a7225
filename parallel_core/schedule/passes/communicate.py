"""Adds SEND and RECV between neighbouring stages on different ranks."""

from __future__ import annotations

from dataclasses import replace

from parallel_core.schedule.ir import Kind, Op, Program, Schedule


def communicate(schedule: Schedule) -> Schedule:
    """RECV stands right in front of the compute that needs it, SEND right behind the compute that made it.

    A RECV in a program is the place where the rank *waits*; the engine posts the receive earlier. Sends and receives
    on the link between two ranks therefore come in the order of the compute on both ends. Does not say how far ahead
    receives are posted, nor when a send's buffer is free again: `check` proves that one receive ahead is enough. Where
    both stages stand on one rank nothing is added: the engine hands the tensor over in place. Both halves of a PAIR
    have their RECVs in front of it and their SENDs behind it.
    """
    return replace(schedule, programs=tuple(_lower(schedule, q) for q in range(schedule.pipeline_ranks)))


def _lower(schedule: Schedule, rank: int) -> Program:
    out: list[Op] = []
    for op in schedule.programs[rank]:
        if op.kind is Kind.W:  # needs nothing of peers
            out.append(op)
            continue
        parts = [part for part in op.parts() if part.kind in (Kind.F, Kind.B, Kind.BW)]
        out += [_message(part, kind, peer) for part in parts for kind, peer in _sources(schedule, part)]
        out.append(op)
        out += [_message(part, kind, peer) for part in parts for kind, peer in _targets(schedule, part)]
    return tuple(out)


def _message(op: Op, kind: Kind, peer: int) -> Op:
    return Op(kind, op.stage, op.micro_batch, op.replica, op.version, peer)


def _sources(schedule: Schedule, op: Op) -> list[tuple[Kind, int]]:
    """The RECV that `op` needs, as (kind, peer); none where its input is made on this rank."""
    forward = op.kind is Kind.F
    peer = _neighbour(schedule, op, -1 if forward else 1)
    return [(Kind.RECV_ACT if forward else Kind.RECV_GRAD, peer)] if peer >= 0 else []


def _targets(schedule: Schedule, op: Op) -> list[tuple[Kind, int]]:
    """The SEND of what `op` makes, as (kind, peer); none where it is needed on this rank."""
    forward = op.kind is Kind.F
    peer = _neighbour(schedule, op, 1 if forward else -1)
    return [(Kind.SEND_ACT if forward else Kind.SEND_GRAD, peer)] if peer >= 0 else []


def _neighbour(schedule: Schedule, op: Op, step: int) -> int:
    """Pipeline rank of the stage `step` behind `op.stage` that works on the micro-batch (`Schedule.home`); -1 past
    either end or on this rank."""
    stage = op.stage + step
    if not 0 <= stage < schedule.stages:
        return -1
    places = schedule.placement[stage]
    rank = places[0] if len(places) == 1 else places[schedule.home(stage, op.micro_batch)]
    return -1 if rank == schedule.placement[op.stage][op.replica] else rank
