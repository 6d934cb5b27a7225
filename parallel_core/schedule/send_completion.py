"""When a sent tensor can be freed without waiting: a message from the same peer acknowledges it implicitly.

A peer walks its program in order. If it received our message before it sent one to us, then having the second proves
the first. This is read from the schedule once; no acknowledgements are sent.
"""

from __future__ import annotations

from parallel_core.schedule.ir import RECVS, SENDS, Kind, Op, Schedule, other_end

Key = tuple[Kind, int, int]
"""(kind, stage, micro-batch) of a SEND or RECV."""


def key(op: Op) -> Key:
    """What names the message within its step."""
    return op.kind, op.stage, op.micro_batch


def receipts(schedule: Schedule, here: int) -> dict[Key, list[Key]]:
    """For each RECV of pipeline rank `here`: its SENDs that the arrival of this message acknowledges.

    SENDs that no message acknowledges (the last of a step) are in no list.
    """
    out: dict[Key, list[Key]] = {}
    for peer in sorted({op.peer for op in schedule.programs[here] if op.kind in SENDS}):
        taken: list[Key] = []
        for op in schedule.programs[peer]:
            if op.peer != here:
                continue
            if op.kind in RECVS:
                taken.append(other_end(op))
            elif op.kind in SENDS and taken:
                out[other_end(op)], taken = taken, []
    return out
