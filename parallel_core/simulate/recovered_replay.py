"""What-if for a recovered pipeline: its step as the spans this engine would have recorded, then simulated with changes.

Between annotated operations a rank waits, or its host works. Before an operation that needs a tensor of another rank
this becomes a RECV; it lasts until the operation starts, and `simulate.measured` separates the waiting from it, since
the other end is known. After a rank's last operation come the gradient reductions over its stage's replicas, which end
with the last collective, and the update. If no rank updates before all have finished, they wait for each other there,
as for a global gradient norm.

The model is unknown. Where costs move to other stages, each stage's cost is assumed to be evenly divided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.rows import last_end
from parallel_core.analysis.waits import of_kinds, step_start
from parallel_core.layout import Layout
from parallel_core.observe.recorder import LANE_COLLECTIVE, LANE_HOST, lane_of
from parallel_core.observe.records import SPAN
from parallel_core.schedule import build
from parallel_core.schedule.ir import COMPUTE, RECVS, REPLICA_COLLECTIVES, SENDS, Kind, Op, Program
from parallel_core.schedule.table import to_csv
from parallel_core.schedule.traits import CUSTOM, TRAITS
from parallel_core.simulate.measured import Measured, measure
from parallel_core.simulate.recovered import NotRecovered, Pipeline, RecoveredOp, Spans, is_pipeline, recover
from parallel_core.simulate.replay import Change, Replay, replay_as
from parallel_core.spec import DeviceKind, RunSpec

MOST_OFF = 0.03
"""Largest relative error of an unchanged replay at which its changes are still trusted."""
_SLACK_NS = 20_000
"""An update that starts at most this long before the last rank's end still waited for it: clock tolerance."""
_HOST = (Kind.DATA, Kind.SETUP)
"""Kinds before a rank's first operation."""


@dataclass(frozen=True)
class Recovered:
    """A pipeline with its spans, on the trace's clock."""

    pipeline: Pipeline
    spans: Spans
    device: DeviceKind = "cpu"

    @classmethod
    def of(cls, spans: Spans, device: DeviceKind = "cpu") -> Recovered | None:
        """The recovered pipeline; None where ranks are not stages of a pipeline. Raises NotRecovered where they are,
        but their operations cannot be determined or have no length."""
        if not is_pipeline(spans):
            return None
        if last_end(spans) <= step_start(spans):
            raise NotRecovered("its spans have no length")
        return cls(recover(spans), spans, device)

    @cached_property
    def spec(self) -> RunSpec:
        """What is known of the job as the spec of a run; the model is a placeholder."""
        return _spec(self._split, self.device, self.pipeline.schedule.stages)

    @cached_property
    def measured(self) -> Measured:
        """Costs of the ranks' operations, from the first instant of the step to the end of the last update."""
        return measure(build(self.spec), self.rows, Layout.of(self.spec))

    @property
    def tail(self) -> int:
        """Nanoseconds of the step after the last update."""
        return last_end(self.spans) - step_start(self.spans) - self.measured.step

    @cached_property
    def off(self) -> float:
        """Relative error of the unchanged replay against the measured step."""
        made = self.replay(Change())
        return abs(made.step / self.step - 1)

    def replay(self, change: Change) -> Replay:
        """The step with `change`. Raises pydantic's ValidationError, naming fields, for an invalid result."""
        split = self._after(change)
        stages = self.pipeline.schedule.stages if split["program"] else split["pp"] * split["chunks"]
        units = math.lcm(self.pipeline.schedule.stages, stages)
        before = _spec(self._split, self.device, self.pipeline.schedule.stages, units)
        after = _spec(split, self.device, stages, units)
        made = replay_as(after, before, self.measured, change, [1] * len(after.model.units()))
        return Replay(made.spec, made.spans, made.step + self.tail)

    def first_ranks(self, pipeline_rank: int) -> tuple[int, int]:
        """(global rank of the layout, rank of the trace) of the first tensor rank of a pipeline rank."""
        layout, width = Layout.of(self.spec), self.pipeline.width
        place, replica = layout.position(pipeline_rank)
        return layout.rank(place, replica), self.pipeline.ranks[place][replica * width]

    @property
    def _split(self) -> dict[str, Any]:
        made, pipeline = self.pipeline.schedule, self.pipeline
        own = made.name == CUSTOM
        return {
            "pp": made.pipeline_ranks,
            "dp": pipeline.replicas,
            "tp": pipeline.width,
            "micro_batches": made.micro_batches,
            "schedule": made.name,
            "chunks": None if own else made.stages // made.pipeline_ranks,
            "program": to_csv(made) if own else None,
            "recompute": "full" if any((rows["kind"] == Kind.R).any() for rows in self.spans.values()) else "none",
        }

    def _after(self, change: Change) -> dict[str, Any]:
        """The parallel spec with `change`."""
        split = self._split
        if change.schedule and change.schedule != split["schedule"]:
            split |= {"schedule": change.schedule, "chunks": TRAITS[change.schedule].chunks, "program": None}
        if change.micro_batches:
            split["micro_batches"] = change.micro_batches
        return split | {"early_gradients": change.early_gradients}

    @property
    def step(self) -> int:
        """Measured nanoseconds of the step."""
        return self.measured.step + self.tail

    @cached_property
    def ranks(self) -> dict[int, int]:
        """Global rank of the layout -> rank of the trace."""
        layout = Layout.of(self.spec)
        return {layout.rank(place, *divmod(i, self.pipeline.width)): rank
                for place, own in enumerate(self.pipeline.ranks) for i, rank in enumerate(own)}  # fmt: skip

    @cached_property
    def rows(self) -> dict[int, NDArray[np.void]]:
        """Global rank of the layout -> its spans in the form that this engine records."""
        layout, programs, zero = Layout.of(self.spec), build(self.spec).programs, step_start(self.spans)
        meet = max(self._ended.values())
        out = {}
        for rank, theirs in self.ranks.items():
            program, replica = programs[layout.pipeline_rank(rank)], layout.coords(rank).replica
            out[rank] = self._laid(program, theirs, replica, zero)
            if self._meet:
                norm = _row(Kind.NORM, LANE_COLLECTIVE, self._ended[theirs], max(meet, self._normed(theirs)))
                out[rank] = np.concatenate([out[rank], norm])
        return out

    @cached_property
    def _meet(self) -> bool:
        """Whether no rank updates before all have ended their last operation."""
        last = max(own[-1].end for own in self.pipeline.done.values())
        firsts = [self._updates(rank)["start"] for rank in self.pipeline.done]
        return all(len(own) > 0 and own[0] >= last - _SLACK_NS for own in firsts)

    @cached_property
    def _ended(self) -> dict[int, int]:
        """When each rank had its reduced gradients. Where all meet before the update, the last of several collectives
        is that meeting."""
        out = {}
        for rank, done in self.pipeline.done.items():
            last, ends = done[-1].end, self._collectives(rank)
            sums = ends[:-1] if self._meet and len(ends) > 1 else ends
            out[rank] = max([last, *sums]) if self.pipeline.replicas > 1 else last
        return out

    def _normed(self, rank: int) -> int:
        """When the rank's norm was done, by the collective that computed it; 0 without one."""
        ends = self._collectives(rank)
        return ends[-1] if len(ends) > (self.pipeline.replicas > 1) else 0

    def _collectives(self, rank: int) -> list[int]:
        """Ends of the collectives after the rank's last operation, up to its first update."""
        last, updates = self.pipeline.done[rank][-1].end, self._updates(rank)["start"]
        ends = np.sort(of_kinds(self.spans[rank], Kind.BUCKET)["end"])
        ends = ends[ends > last]
        return (ends[ends <= updates[0]] if len(updates) else ends).tolist()

    def _updates(self, rank: int) -> NDArray[np.void]:
        own = of_kinds(self.spans[rank], Kind.OPT_STEP)
        return own[own["start"] >= self.pipeline.done[rank][-1].start]

    def _laid(self, program: Program, rank: int, replica: int, zero: int) -> NDArray[np.void]:
        """A row for each operation of `program`, and the spans inside of them."""
        own, dp = self.spans[rank], self.pipeline.replicas
        done = {(one.kind, one.stage, one.micro_batch * dp + replica): one for one in self.pipeline.done[rank]}
        first = self.pipeline.done[rank][0].start
        host = own[np.isin(own["kind"], [int(kind) for kind in _HOST]) & (own["end"] <= first)]
        clock = max([zero, *host["end"].tolist()])
        update, rows = self._updates(rank), np.zeros(len(program), SPAN)
        updated = (int(update["start"][0]), int(update["end"].max())) if len(update) else None
        for i, op in enumerate(program):
            start, clock = self._times(op, program[i + 1 : i + 2], done, clock, updated, self._ended[rank])
            if op.kind is Kind.OPT_STEP:
                updated = None
            rows[i] = (op.kind, lane_of(op.kind), op.stage, op.micro_batch, op.replica, 0, start, clock, 0)
        step = _row(Kind.STEP, LANE_HOST, zero, clock)
        return np.concatenate([step, rows, *self._inside(rank, list(done.values()))])

    def _times(
        self,
        op: Op,
        behind: Program,
        done: Mapping[tuple[Kind, int, int], RecoveredOp],
        clock: int,
        updated: tuple[int, int] | None,
        ended: int,
    ) -> tuple[int, int]:
        """(start, end) of an operation that follows whatever ended at `clock`."""
        if op.kind in COMPUTE:
            one = done[op.kind, op.stage, op.micro_batch]
            return one.start, one.end
        if op.kind in RECVS:
            following = done[behind[0].kind, behind[0].stage, behind[0].micro_batch]
            return clock, max(clock, following.start)
        if op.kind in REPLICA_COLLECTIVES:
            return clock, max(clock, ended)
        if op.kind in SENDS or updated is None:
            return clock, clock
        return updated

    def _inside(self, rank: int, done: list[RecoveredOp]) -> list[NDArray[np.void]]:
        """Recomputation and the exposed parts of collectives, as children of the operations."""
        own = self.spans[rank]
        again = of_kinds(own, Kind.R)
        again = again[again["micro_batch"] >= 0].copy()
        busy = own[np.isin(own["kind"], [int(kind) for kind in COMPUTE])]
        alone = _uncovered(of_kinds(own, Kind.BUCKET), busy)
        talk = [_row(Kind.TP_COLLECTIVE, LANE_COLLECTIVE, max(a, one.start), min(b, one.end))
                for a, b in alone for one in done if a < one.end and b > one.start]  # fmt: skip
        return [again, *talk]


def _row(kind: Kind, lane: int, start: int, end: int) -> NDArray[np.void]:
    return np.array([(kind, lane, 0, -1, 0, 0, start, end, 0)], SPAN)


def _uncovered(rows: NDArray[np.void], busy: NDArray[np.void]) -> list[tuple[int, int]]:
    """The parts of `rows` in which nothing of `busy` runs, in order."""
    marks = [(int(row["start"]), 0, 1) for row in rows] + [(int(row["end"]), 0, -1) for row in rows]
    marks += [(int(row["start"]), 1, 1) for row in busy] + [(int(row["end"]), 1, -1) for row in busy]
    out, running, since = [], [0, 0], 0
    for at, which, change in sorted(marks):
        if running[0] and not running[1] and at > since:
            out.append((since, at))
        running[which] += change
        since = at
    return out


def _spec(split: Mapping[str, Any], device: DeviceKind, stages: int, units: int = 1) -> RunSpec:
    """A run with this split whose model has some multiple of `units` layers, cut evenly."""
    each = 2 * math.lcm(units, stages)
    count = each if each > 2 else 4
    width = split["tp"]
    model = {"layers": count // 2 - 1, "hidden": 8 * width, "heads": width, "vocab": 2 * width}
    cuts = [count // stages * stage for stage in range(1, stages)]
    given = {
        "model": model,
        "parallel": {**split, "cuts": cuts},
        "train": {"global_batch": split["dp"] * split["micro_batches"], "device": device},
    }
    return RunSpec.model_validate(given)
