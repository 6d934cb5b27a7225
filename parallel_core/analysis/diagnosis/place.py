"""Where in a step the cause of a finding is best seen: a window of the timeline around one span.

The span is the longest of the rule's kinds, on the rank that the finding names (else on any). The window extends by its
length on both sides, to show what it waits for and what waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.rows import durations
from parallel_core.analysis.waits import step_start
from parallel_core.schedule.ir import COMPUTE, RECVS, REPLICA_COLLECTIVES, Kind

_WORK = tuple(sorted(COMPUTE - {Kind.R}))
_SUMS = (*sorted(REPLICA_COLLECTIVES), Kind.BUCKET, Kind.UNSHARD, Kind.BUCKET_WAIT)
KINDS: dict[str, tuple[Kind, ...]] = {
    "straggler": _WORK,
    "unbalanced_stages": _WORK,
    "slow_link": tuple(sorted(RECVS)),
    "few_micro_batches": tuple(sorted(RECVS)),
    "exposed_reduction": _SUMS,
    "exposed_collectives": (Kind.BUCKET,),
    "tensor_too_fine": (Kind.TP_COLLECTIVE,),
    "needless_recompute": (Kind.R,),
    "data_stall": (Kind.DATA,),
    "tiny_kernels": (Kind.F, Kind.BW),
}
"""Kinds of spans that each rule is about; rules that are not visible in a step are missing."""
AROUND = 1.0
"""Margin on either side, in lengths of the span."""
LEAST = 0.02
"""Minimum width of a window, as a share of the step."""


class Place(NamedTuple):
    """A window (`begin`, `end`) of a step in ms from its start, the rank to look at, and its span (`start`, `stop`)."""

    rank: int
    begin: float
    end: float
    start: float
    stop: float


def place(rule: str, rank: int | None, spans: Mapping[int, NDArray[np.void]]) -> Place | None:
    """The window for a finding of `rule`; None if the step has no span of its kinds."""
    kinds = [int(kind) for kind in KINDS.get(rule, ())]
    zero = step_start(spans)
    whole = max((int(rows["end"].max()) for rows in spans.values() if len(rows)), default=zero) - zero
    found: tuple[int, int, int] | None = None
    for own, every in sorted(spans.items()):
        rows = every[np.isin(every["kind"], kinds)]
        if rank not in (None, own) or not len(rows):
            continue
        took = durations(rows)
        i = int(took.argmax())
        if found is None or int(took[i]) > found[0]:
            found = int(took[i]), int(rows["start"][i]) - zero, own
    if found is None or not whole:
        return None
    took_ns, start, seen = found
    margin = max(AROUND * took_ns, (LEAST * whole - took_ns) / 2)
    begin, end = max(0.0, start - margin), min(float(whole), start + took_ns + margin)
    return Place(seen, *(round(at / 1e6, 4) for at in (begin, end, start, start + took_ns)))
