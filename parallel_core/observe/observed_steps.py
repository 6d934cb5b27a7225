"""Which steps of a run are metered, traced and looked at otherwise, as determined by its spec."""

from __future__ import annotations

from parallel_core.schedule.stream import steps_apart, stream_end
from parallel_core.spec import RunSpec


def is_nth_or_last(spec: RunSpec, every: int, step: int) -> bool:
    """Whether `step` is one of every `every` steps (0: none), or where there are such the last."""
    return every > 0 and (not (step + 1) % every or step + 1 == spec.train.steps)


def first_timed(spec: RunSpec, first: int = 0) -> int:
    """Returns the first timed step of a run that starts at step `first`; the last step is always timed."""
    return min(first + spec.train.warmup_steps, spec.train.steps - 1)


def metered_step(spec: RunSpec, first: int = 0) -> int:
    """Returns the step that is run under the memory meter, -1 if the run does not measure memory. `first`: the step at
    which the run starts.

    It is the second; without a flush, the first in which the pipeline is full and keeps all its weight versions, if
    that is later. If that is no warm-up step, or the stream ends too soon after it (`stream_end`), so that the pipeline
    already drains in it, the metered step is an extra one after the last (`extra_steps`).
    """
    if not spec.trace.memory:
        return -1
    full = _filled(spec)
    metered = first + max(1, full)
    is_full = stream_end(spec.train, first) > first + 2 * full
    return metered if is_full and first_timed(spec, first) > metered else spec.train.steps + full


def _filled(spec: RunSpec) -> int:
    """Returns the number of steps in which a pipeline without a flush fills, and in which it drains; 0 under a flush.

    Stages are `steps_apart`; with other numbers of replicas, the first may be as many micro-batches ahead as there are
    pipeline ranks, which can be more (`schedule.round_robin`)."""
    split, apart = spec.parallel, steps_apart(spec)
    return max(apart, -(-(sum(split.replicas) - 1) // split.per_step)) if apart and split.replicas else apart


def followed_steps(spec: RunSpec, first: int = 0) -> frozenset[int]:
    """Returns the steps that run under the memory meter: the metered one and, without a flush, those before it, in
    which the pipeline filled. Empty if the run does not measure memory."""
    metered = metered_step(spec, first)
    if metered < 0:
        return frozenset()
    if spec.parallel.flushes:
        return frozenset({metered})
    begin = first if metered < spec.train.steps else spec.train.steps
    return frozenset(range(begin, metered + 1))


def extra_steps(spec: RunSpec, first: int = 0) -> range:
    """Returns the steps after the last that are run only for the metered one, which is among them: it alone or, without
    a flush, a stream that fills before it and is still full in it."""
    metered = metered_step(spec, first)
    return range(spec.train.steps, metered + 1 + _filled(spec) if metered >= spec.train.steps else 0)


def is_traced(spec: RunSpec, step: int, first: int = 0) -> bool:
    """Whether the spans of `step` are emitted: those of the step in the middle of the timed ones, and of every
    `trace_every`-th."""
    if step in followed_steps(spec, first):
        return False
    every, timed_from = spec.trace.trace_every, first_timed(spec, first)
    middle = timed_from + (spec.train.steps - timed_from) // 2
    return step == middle or (every > 0 and step > 0 and step % every == 0)


def first_traced(spec: RunSpec) -> int | None:
    """Returns the earliest traced step; None where the run is too short."""
    every, middle = spec.trace.trace_every, spec.train.warmup_steps + spec.timed_steps // 2
    regular = (step for step in range(every, spec.train.steps, every) if is_traced(spec, step)) if every else iter(())
    found = [step for step in (next(regular, middle), middle) if step < spec.train.steps and is_traced(spec, step)]
    return min(found, default=None)
