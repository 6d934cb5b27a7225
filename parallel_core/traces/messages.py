"""Names messages of a pipeline whose operations are known, where no annotation does: a send by the operation before it,
a receive by the operation after it and by what the sender had made by then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.schedule.ir import P2P, SENDS, Kind
from parallel_core.simulate.recovered import RecoveredOp, Spans

_P2P = [int(kind) for kind in P2P]
_Tensor = tuple[bool, int, int]
"""A message's contents: (activation or gradient?, stage that made it, micro-batch)."""


class _Ends(NamedTuple):
    """The operations of one rank, in order, that send to another rank, and those that need an input from another."""

    sending: list[RecoveredOp]
    needing: list[tuple[RecoveredOp, _Tensor]]


def named(spans: Spans, done: Mapping[int, Sequence[RecoveredOp]]) -> dict[int, NDArray[np.void]]:
    """The spans with kind, stage and micro-batch set in every message without a stage. `done`: the known operations."""
    stages = 1 + max(one.stage for own in done.values() for one in own)
    made: dict[_Tensor, int] = {}
    for own in done.values():
        for one in own:
            if one.kind is not Kind.W:
                key = one.kind is Kind.F, one.stage, one.micro_batch
                made[key] = min(made.get(key, one.end), one.end)
    return {rank: _named(rows, _ends(done[rank], stages), made) for rank, rows in spans.items()}


def _ends(own: Sequence[RecoveredOp], stages: int) -> _Ends:
    here = {one.stage for one in own}
    out = _Ends([], [])
    for one in own:
        if one.kind is Kind.W:
            continue
        way = 1 if one.kind is Kind.F else -1
        if 0 <= one.stage + way < stages and one.stage + way not in here:
            out.sending.append(one)
        if 0 <= one.stage - way < stages and one.stage - way not in here:
            out.needing.append((one, (one.kind is Kind.F, one.stage - way, one.micro_batch)))
    return out


def _named(rows: NDArray[np.void], ends: _Ends, made: Mapping[_Tensor, int]) -> NDArray[np.void]:
    out = rows.copy()
    begun = np.array([one.start for one in ends.sending])
    free = list(ends.needing)
    talks = np.flatnonzero(np.isin(out["kind"], _P2P) & (out["stage"] < 0))
    for i in talks[np.argsort(out["end"][talks], kind="stable")].tolist():
        send = Kind(int(out["kind"][i])) in SENDS
        if send:
            at = int(np.searchsorted(begun, out["start"][i], "left")) - 1
            one = ends.sending[at] if at >= 0 else None
        else:
            one = _needs(free, int(out["end"][i]), made)
        if one is None:
            continue
        kinds = (Kind.SEND_ACT, Kind.SEND_GRAD) if send else (Kind.RECV_ACT, Kind.RECV_GRAD)
        out["kind"][i] = kinds[one.kind is not Kind.F]
        out["stage"][i], out["micro_batch"][i] = one.stage, one.micro_batch
    return out


def _needs(free: list[tuple[RecoveredOp, _Tensor]], end: int, made: Mapping[_Tensor, int]) -> RecoveredOp | None:
    """Returns, and removes from `free`, the operation that a message received at `end` is for.

    It is the first one after `end` whose input was made by then, or, as clocks may differ, the first after `end`.
    """
    behind = [k for k, (one, _) in enumerate(free) if one.start >= end]
    at = next((k for k in behind if made.get(free[k][1], end) <= end), behind[0] if behind else None)
    return None if at is None else free.pop(at)[0]
