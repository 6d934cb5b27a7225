"""Which steps of a run are metered and traced, as determined by its spec."""

from __future__ import annotations

from parallel_core.spec import RunSpec


def first_timed(spec: RunSpec, first: int = 0) -> int:
    """Returns the first timed step of a run that starts at step `first`; the last step is always timed."""
    return min(first + spec.train.warmup_steps, spec.train.steps - 1)


def metered_step(spec: RunSpec, first: int = 0) -> int:
    """Returns the step that is run under the memory meter: the second if it is a warm-up step, otherwise an extra one
    after the last.

    -1 if the run does not measure memory. `first`: the step at which the run starts.
    """
    if not spec.trace.memory:
        return -1
    return first + 1 if first_timed(spec, first) > first + 1 else spec.train.steps


def followed_steps(spec: RunSpec, first: int = 0) -> frozenset[int]:
    """Returns the steps that run under the memory meter: the metered one and, if without a flush the pipeline is
    already full when that begins, the step before, in which it filled."""
    metered = metered_step(spec, first)
    full = not spec.parallel.flushes and metered == first + 1
    return frozenset({metered} | ({first} if full else set()))


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
    found = [step for step in (every, 2 * every, middle) if step < spec.train.steps and is_traced(spec, step)]
    return min(found, default=None)
