"""A pipeline that stays full: duration of a step in steady state, and the spans of one of its steps.

Filling and draining happen once a run, so a step takes the difference of two streams divided by their difference in
steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from parallel_core.analysis.rows import last_end
from parallel_core.schedule.ir import Kind, Op, Program, Schedule
from parallel_core.schedule.stream import Windows, end_of
from parallel_core.simulate import Spans
from parallel_core.spec import RunSpec

MORE_STEPS = 4
"""Difference in steps between the two streams."""


def steps_of(full: int) -> tuple[int, int]:
    """Lengths of the two streams, for a pipeline that fills within `full` steps."""
    return 2 * full + 1, 2 * full + 1 + MORE_STEPS


Walk = Callable[[int], tuple[Schedule, dict[int, Spans]]]
"""Number of steps -> programs of the stream, each step's part after its DATA, and their spans."""


def headed(program: Program, steps: int, per_step: int, head: Op) -> Iterator[Op]:
    """The program of a stream with `head` in front of each step's part."""
    ends = [0, *(end_of(program, step * per_step) for step in range(1, steps)), len(program)]
    for begin, end in pairwise(ends):
        yield head
        yield from program[begin:end]


def step(spec: RunSpec, walk: Walk) -> tuple[float, dict[int, Spans]]:
    """(seconds, spans from 0) of a step while the pipeline is full; micro-batches are numbered from its first."""
    full = Windows(spec).edge
    few, many = steps_of(full)
    (short, spans), (_, longer) = walk(few), walk(many)
    more = last_end(longer) - last_end(spans)
    parts = {rank: _part(short.programs[rank], rows, full) for rank, rows in spans.items()}
    begin = min(int(rows["start"].min()) for rows in parts.values())
    for rows in parts.values():
        rows["start"] -= begin
        rows["end"] -= begin
        rows["micro_batch"] -= full * (short.micro_batches // few)
    return more / MORE_STEPS / 1e9, parts


def _part(program: Program, rows: Spans, number: int) -> Spans:
    """Rows of step `number`: from its DATA to the next."""
    heads = [i for i, op in enumerate(program) if op.kind is Kind.DATA]
    return rows[heads[number] : heads[number + 1]].copy()
