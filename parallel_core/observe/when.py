"""Which steps of a run are metered and traced: a question of its spec alone."""

from __future__ import annotations

from parallel_core.spec import RunSpec


def metered_step(spec: RunSpec) -> int:
    """The step whose memory is followed: step 1 where it is a warm-up step, else an extra one behind the last.

    -1 where the run asks for none.
    """
    if not spec.trace.memory:
        return -1
    return 1 if spec.train.warmup_steps > 1 else spec.train.steps


def is_traced(spec: RunSpec, step: int) -> bool:
    """Whether the spans of `step` leave the rank: one in the middle of the timed steps, and every k-th if asked."""
    if step == metered_step(spec):
        return False
    every, first = spec.trace.trace_every, spec.train.warmup_steps
    return step == first + spec.timed_steps // 2 or (every > 0 and step > 0 and step % every == 0)


def first_traced(spec: RunSpec) -> int | None:
    """The earliest traced step; None where the run is too short to have one."""
    every, middle = spec.trace.trace_every, spec.train.warmup_steps + spec.timed_steps // 2
    found = [step for step in (every, 2 * every, middle) if step < spec.train.steps and is_traced(spec, step)]
    return min(found, default=None)
