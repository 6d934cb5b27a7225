"""A pipeline that stays full from step to step: each step's part of its stream.

A *stream* begins and ends with an empty pipeline and may be thousands of steps long. Step t of it is, on every rank,
what comes up to its last backward of that step: its backwards, and the forwards that run ahead of them, some of them of
later steps. While the pipeline is full, every step's part is the same except for its numbers, so parts of long streams
are taken from short ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from parallel_core.schedule import build
from parallel_core.schedule.ir import COMPUTE, RECVS, Kind, Op, Program, Schedule

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec, TrainSpec


def edge(pipeline_ranks: int, per_step: int) -> int:
    """Steps of `per_step` micro-batches (over all replicas) within which a pipeline fills, and within which it
    drains."""
    return 2 + -(-3 * pipeline_ranks // per_step)


def longest_built(pipeline_ranks: int, per_step: int) -> int:
    """Steps of the longest stream from which `Windows` takes a step: in the one in the middle, the pipeline is full."""
    return 2 * edge(pipeline_ranks, per_step) + 1


@dataclass(frozen=True, eq=False)
class Window:
    """Step `step` of `stream`. Steps that look the same share one object (`Windows`)."""

    stream: Schedule
    step: int
    per_step: int

    @property
    def first(self) -> int:
        """The first micro-batch of the step."""
        return self.step * self.per_step

    @cached_property
    def programs(self) -> tuple[Program, ...]:
        """Each rank's part. Micro-batches and versions count from the first micro-batch of the step: those of later
        steps are `per_step` and more, versions from before it are negative."""
        parts = (
            program[end_of(program, self.first) : end_of(program, self.first + self.per_step)]
            for program in self.stream.programs
        )
        return tuple(tuple(_shifted(op, -self.first) for op in part) for part in parts)


class Windows:
    """The steps of the streams of a spec, `per_step` micro-batches (over all replicas) each."""

    def __init__(self, spec: RunSpec) -> None:
        one = build(spec)
        self.per_step = one.micro_batches
        self.edge = edge(one.pipeline_ranks, self.per_step)
        self.longest = longest_built(one.pipeline_ranks, self.per_step)
        self._spec = spec
        self._made: dict[tuple[int, int], Window] = {}
        self._streams: dict[int, Schedule] = {}

    def window(self, step: int, steps: int) -> Window:
        """Step `step` of a stream of `steps` steps. It does not depend on `steps` until `edge` are left."""
        key = self._stand_in(step, steps)
        if key not in self._made:
            self._made[key] = Window(self._stream(key[0]), key[1], self.per_step)
        return self._made[key]

    def _stand_in(self, step: int, steps: int) -> tuple[int, int]:
        """(length of a short stream, the step in it that looks like step `step` of `steps`)."""
        made = min(steps, self.longest)
        if step < self.edge:
            return made, step
        if steps - step <= self.edge or made == steps:
            return made, made - (steps - step)
        return made, self.edge

    def _stream(self, steps: int) -> Schedule:
        if steps not in self._streams:
            self._streams[steps] = build(self._spec, steps)
        return self._streams[steps]


def steps_apart(spec: RunSpec) -> int:
    """Returns the number of steps by which stages may be apart: 0 under a flush.

    The last stage ends a micro-batch pp - 1 micro-batches after the first stage has begun it, and a replica of a stage
    with r of them works on one of r.
    """
    split = spec.parallel
    return 0 if split.flushes else -(-(split.pp - 1) * max(split.copies) // split.per_step)


def stream_end(train: TrainSpec, step: int) -> int:
    """Returns the step before which the pipeline that is filled at `step` is empty again: it drains where a checkpoint
    is due and after the last step."""
    every = train.checkpoint_every or train.steps
    return min((step // every + 1) * every, train.steps)


def end_of(program: Program, before: int) -> int:
    """Position after the backwards of all micro-batches below `before` and the operations that belong to them."""
    at = 1 + max((i for i, op in enumerate(program) if op.kind is Kind.BW and op.micro_batch < before), default=-1)
    while 0 < at < len(program) and program[at].kind not in COMPUTE | RECVS:
        at += 1
    return at


def _shifted(op: Op, by: int) -> Op:
    return replace(op, micro_batch=op.micro_batch + by, version=op.version + by)
