"""Which steps of a run are metered and traced: a question of its spec alone."""

from __future__ import annotations

from parallel_core.spec import RunSpec


def first_timed(spec: RunSpec, first: int = 0) -> int:
    """Where the timed steps begin in a run that begins with step `first`: the last one is always timed."""
    return min(first + spec.train.warmup_steps, spec.train.steps - 1)


def metered_step(spec: RunSpec, first: int = 0) -> int:
    """The step whose memory is followed: the second where it is a warm-up step, else an extra one behind the last.

    -1 where the run asks for none. `first` is the step that the run begins with.
    """
    if not spec.trace.memory:
        return -1
    return first + 1 if first_timed(spec, first) > first + 1 else spec.train.steps


def followed_steps(spec: RunSpec, first: int = 0) -> frozenset[int]:
    """Steps that run under the memory meter: the metered one and, where the pipeline is already full when it begins,
    the one before, in which it filled."""
    metered = metered_step(spec, first)
    full = not spec.parallel.flushes and metered == first + 1
    return frozenset({metered} | ({first} if full else set()))


def is_traced(spec: RunSpec, step: int, first: int = 0) -> bool:
    """Whether the spans of `step` leave the rank: one in the middle of the timed steps, and every k-th if asked."""
    if step in followed_steps(spec, first):
        return False
    every, timed_from = spec.trace.trace_every, first_timed(spec, first)
    middle = timed_from + (spec.train.steps - timed_from) // 2
    return step == middle or (every > 0 and step > 0 and step % every == 0)


def first_traced(spec: RunSpec) -> int | None:
    """The earliest traced step; None where the run is too short to have one."""
    every, middle = spec.trace.trace_every, spec.train.warmup_steps + spec.timed_steps // 2
    found = [step for step in (every, 2 * every, middle) if step < spec.train.steps and is_traced(spec, step)]
    return min(found, default=None)
