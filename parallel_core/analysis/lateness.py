"""Joins the spans of a simulated (planned) step with those of a measured one, operation by operation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.rows import by_start
from parallel_core.analysis.waits import among, step_start
from parallel_core.layout import Layout
from parallel_core.schedule.ir import MEASURED_ONLY

LATE = np.dtype(
    [
        ("rank", "<i4"),
        ("kind", "u1"),
        ("stage", "<i2"),
        ("micro_batch", "<i4"),
        ("planned_start", "<i8"),
        ("planned_end", "<i8"),
        ("start", "<i8"),
        ("end", "<i8"),
    ]
)
"""Nanoseconds from the start of either step; `end - planned_end` is the lateness."""


def lateness(
    planned: Mapping[int, NDArray[np.void]], measured: Mapping[int, NDArray[np.void]], layout: Layout
) -> NDArray[np.void]:
    """LATE rows of all operations that are in both, rank after rank in measured order.

    `planned` is by pipeline rank (as `simulate` returns it), `measured` by global rank. The key (kind, stage,
    micro-batch) is unique within a pipeline rank.
    """
    zero = [step_start(planned), step_start(measured)]
    parts = [np.empty(0, LATE)]
    for rank, rows in sorted(measured.items()):
        plan = planned.get(layout.pipeline_rank(rank))
        if plan is not None:
            parts.append(_of_rank(rank, plan, rows, zero))
    return np.concatenate(parts)


def _of_rank(rank: int, plan: NDArray[np.void], rows: NDArray[np.void], zero: list[int]) -> NDArray[np.void]:
    plan, rows = (table[~among(table, MEASURED_ONLY)] for table in (plan, rows))
    rows = by_start(rows)
    order = np.argsort(_key(plan), kind="stable")
    keys, wanted = _key(plan)[order], _key(rows)
    if not len(keys):
        return np.empty(0, LATE)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    both = keys[at] == wanted
    out = np.zeros(int(both.sum()), LATE)
    rows, plan = rows[both], plan[order[at[both]]]
    out["rank"] = rank
    for name in ("kind", "stage", "micro_batch"):
        out[name] = rows[name]
    out["planned_start"], out["planned_end"] = plan["start"] - zero[0], plan["end"] - zero[0]
    out["start"], out["end"] = rows["start"] - zero[1], rows["end"] - zero[1]
    return out


def late(table: NDArray[np.void]) -> NDArray[np.int64]:
    """Nanoseconds by which each operation ended after its planned end (negative: before)."""
    return table["end"] - table["planned_end"]


def _key(rows: NDArray[np.void]) -> NDArray[np.int64]:
    kind, stage = rows["kind"].astype(np.int64), rows["stage"].astype(np.int64)
    return (kind << 56) + ((stage + 1) << 36) + rows["micro_batch"] + 1
