"""One schedule at chosen costs, simulated for display: step length, idle time, and activations kept on each device.

Costs are those of one device's share of a micro-batch; a schedule with v chunks a device splits them into v operations.
Micro-batches kept are counted in the same shares, so that schedules can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from parallel_core import schedule
from parallel_core.analysis.rows import durations, last_end
from parallel_core.observe.recorder import LANE_COMPUTE, LANE_HOST
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import COMPUTE, Kind, Op, Schedule
from parallel_core.schedule.passes.early_gradients import hand_back
from parallel_core.schedule.peaks import peak_in_flight, peak_kept
from parallel_core.schedule.traits import flushes
from parallel_core.simulate import Costs, Prices, simulate
from parallel_core.simulate.idle import bubble

UNIT = 1_000_000
"""Nanoseconds of one unit of cost."""
EARLY = "-early"
"""Suffix to the name of a schedule whose gradients leave a stage before its weight gradients are computed."""


@dataclass(frozen=True)
class SchedulePreview:
    """A simulated step; for a pipeline that never flushes, one while it is full. `spans` by pipeline rank: a STEP row
    over the whole step, then compute."""

    schedule: Schedule
    spans: Mapping[int, NDArray[np.void]]
    chunks: int
    length: int
    """Nanoseconds until the last device is done."""
    busy: int
    """Nanoseconds of compute over all devices."""
    skewed: float
    """Idle over busy on the worst device between its own first and last operation: the bubble that remains if no device
    waits for the others at the end of the step (no barrier before the optimizer)."""
    silent: frozenset[int] = frozenset()
    """Stages without backward: their activations are freed when their forward ends."""

    @property
    def devices(self) -> int:
        return self.schedule.pipeline_ranks

    @property
    def fraction(self) -> float:
        """Idle share of all device time."""
        return 1 - self.busy / (self.devices * self.length) if self.length else 0.0

    @property
    def overhead(self) -> float:
        """Idle over busy: (p - 1) / m for GPipe and 1F1B with equal stages (Huang et al. 2019)."""
        return self.devices * self.length / self.busy - 1 if self.busy else 0.0

    @property
    def working(self) -> float:
        """Average number of devices that compute."""
        return self.busy / self.length if self.length else 0.0

    def busy_of(self, ranks: Iterable[int]) -> float:
        """Average share of the step in which these devices compute."""
        own = [self.spans[rank] for rank in ranks]
        busy = sum(int(durations(rows)[1:].sum()) for rows in own)
        return busy / (len(own) * self.length) if self.length else 0.0

    @cached_property
    def in_flight(self) -> tuple[float, ...]:
        """For each device, the most micro-batches with F done but not B (their activations are kept)."""
        return self._shares(peak_in_flight(self.schedule))

    @cached_property
    def kept(self) -> tuple[float, ...]:
        """As `in_flight`, including those whose weight gradients are still to come."""
        return self._shares(peak_kept(self.schedule))

    def held(self, rank: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(times, forward, weights): what the rank keeps from each instant on (`schedule.peaks.Held`).

        A pipeline that never flushes begins and ends with micro-batches in flight.
        """
        if self._silent(rank):
            return held(self.spans[rank], Kind.F)
        times, forward, weights = held(self.spans[rank])
        under_way = 0 if self.schedule.sync == "flush" else peak_in_flight(self.schedule)[rank] - forward.max()
        return times, forward + under_way, weights

    def _silent(self, rank: int) -> bool:
        return self.schedule.programs[rank][0].stage in self.silent

    def _shares(self, most: tuple[int, ...]) -> tuple[float, ...]:
        """Micro-batches on each device; a device that keeps none for a backward has the one it works on."""
        return tuple(1.0 if self._silent(rank) else count / self.chunks for rank, count in enumerate(most))


@lru_cache(maxsize=8)
def preview(
    name: str,
    pp: int,
    micro_batches: int,
    costs: tuple[float, float, float] = (1, 1, 1),
    message: float = 0,
    chunks: int | None = None,
) -> SchedulePreview:
    """`costs`: forward, backward for the input, backward for the weights, in units; `message`: units from stage to
    stage. `name` may end in EARLY.

    Cached: a comparison changes only one of two, and downloads ask for it again. Raises KeyError for an unknown name;
    whether the numbers are compatible is checked by `check_pipeline`.
    """
    plain = name.removesuffix(EARLY)
    steps = 1 if flushes(plain) or pp == 1 else 2 * -(-pp // micro_batches) + 3
    made = schedule.compute_only(plain, pp, micro_batches, chunks=chunks, steps=steps)
    return preview_of(made if name == plain else replace(hand_back(made), name=name), costs, message, steps)


def preview_of(
    made: Schedule, costs: tuple[float, float, float], message: float = 0, steps: int = 1
) -> SchedulePreview:
    """As `preview`, for a compute-only schedule of one replica; for a stream of `steps` steps if more than one."""
    per_rank = made.stages // made.pipeline_ranks
    f, b, w = (round(cost * UNIT / per_rank) for cost in costs)
    return preview_at(made, Costs.uniform(made.stages, f, b, w, message=round(message * UNIT)), steps)


def preview_at(made: Schedule, prices: Prices, steps: int = 1, silent: frozenset[int] = frozenset()) -> SchedulePreview:
    """As `preview_of`, at any prices; `silent`: stages without backward, whose backward must cost nothing."""
    spans = simulate(made, prices)
    length = 0 if steps > 1 else last_end(spans)
    shown = {rank: _shown(made, rank, rows, prices, length, silent) for rank, rows in spans.items()}
    if steps > 1:
        return _steady(made, shown, steps, silent)
    chunks = max(1, made.stages // made.pipeline_ranks)
    return SchedulePreview(made, shown, chunks, length, _busy(shown), bubble(shown), silent)


def _busy(shown: Mapping[int, NDArray[np.void]]) -> int:
    """Nanoseconds of compute over all devices."""
    return sum(int(durations(rows)[1:].sum()) for rows in shown.values())


def _steady(
    made: Schedule, shown: Mapping[int, NDArray[np.void]], steps: int, silent: frozenset[int]
) -> SchedulePreview:
    """A step in the middle of a stream, when the pipeline is full: from the last stage's first forward of it to that of
    the next step. Micro-batches are numbered from the first one seen."""
    first = made.micro_batches // steps * (steps // 2)
    last = shown[made.placement[-1][0]]
    forward = last["kind"] == Kind.F
    begin, end = (
        int(last[forward & (last["micro_batch"] == i)]["start"][0])
        for i in (first, first + made.micro_batches // steps)
    )
    cut = {rank: _cut(rows, begin, end) for rank, rows in shown.items()}
    seen = min(int(rows["micro_batch"][1:].min()) for rows in cut.values() if len(rows) > 1)
    for rows in cut.values():
        rows["micro_batch"][1:] -= seen
    return SchedulePreview(made, cut, 1, end - begin, _busy(cut), bubble(cut), silent)


def _cut(rows: NDArray[np.void], begin: int, end: int) -> NDArray[np.void]:
    """The rows between two instants, with times relative to the first."""
    inside = rows[(rows["end"] > begin) & (rows["start"] < end) | (rows["micro_batch"] < 0)].copy()
    inside["start"], inside["end"] = (np.clip(inside[side], begin, end) - begin for side in ("start", "end"))
    inside["end"][0] = end - begin
    return inside


def held(
    rows: NDArray[np.void], last: Kind = Kind.BW
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(times, forward, weights) of a rank from its spans: what it keeps from each instant on
    (`schedule.peaks.Held`).

    An activation is kept from the start of its F to the end of its B or `last`; what W needs, until the end of W.
    """
    changes = (("end", Kind.B, -1, 1), ("end", last, -1, 0), ("end", Kind.W, 0, -1), ("start", Kind.F, 1, 0))
    parts = [(own[side], forward, weights) for side, kind, forward, weights in changes for own in [_of(rows, kind)]]
    times = np.concatenate([at for at, _, _ in parts])
    order = np.argsort(times, kind="stable")
    forward, weights = (
        np.cumsum(np.concatenate([np.full(len(part[0]), part[i], np.int64) for part in parts])[order]) for i in (1, 2)
    )
    return times[order], forward, weights


def _of(rows: NDArray[np.void], kind: Kind) -> NDArray[np.void]:
    return rows[rows["kind"] == kind]


def _shown(
    made: Schedule, rank: int, rows: NDArray[np.void], costs: Prices, length: int, silent: frozenset[int]
) -> NDArray[np.void]:
    """A STEP row and the rank's compute, PAIRs as two halves; of `silent` stages only the forwards."""
    own = rows[np.isin(rows["kind"], [int(kind) for kind in COMPUTE])]
    if (own["kind"] == Kind.PAIR).any():
        own = _halves([op for op in made.programs[rank] if op.kind in COMPUTE], own["start"].tolist(), costs)
    own = own[(own["kind"] == Kind.F) | ~np.isin(own["stage"], list(silent))]
    out = np.zeros(len(own) + 1, SPAN)
    out[0] = (Kind.STEP, LANE_HOST, -1, -1, 0, 0, 0, length, 0)
    out["lane"][1:] = LANE_COMPUTE
    for name in ("kind", "stage", "micro_batch", "start", "end"):
        out[name][1:] = own[name]
    return out


def _halves(ops: Sequence[Op], starts: Sequence[int], costs: Prices) -> NDArray[np.void]:
    """Rows of the operations' parts, those of a PAIR one after the other."""
    out = []
    for op, start in zip(ops, starts, strict=True):
        parts = op.parts()
        ends = accumulate((costs.of(part) for part in parts), initial=start)
        for part, (begin, end) in zip(parts, pairwise(ends), strict=True):
            out.append((part.kind, 0, part.stage, part.micro_batch, 0, 0, begin, end, 0))
    return np.array(out, SPAN)
