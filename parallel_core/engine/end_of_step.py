"""What is saved at the end of a step, and which ends of a run leave weights unsaved."""

from __future__ import annotations

from typing import NamedTuple

from parallel_core.engine.checkpoint import Saver
from parallel_core.engine.reporter import Reporter
from parallel_core.engine.step_times import StepTimes
from parallel_core.engine.stop import LossNotFinite, Reason, Stopped


class EndOfStep(NamedTuple):
    """After `done` steps: why the run is to `stop`, the held-out loss, if it was evaluated now, whether the weights are
    `broken`, and `since` when the loss is not finite (`stop.Judge`)."""

    done: int
    stop: Reason
    held_out: float | None
    broken: bool = False
    since: int = -1


def save(saver: Saver | None, report: Reporter, times: StepTimes, now: EndOfStep, steps: int) -> None:
    """Saves what is due `now`, of `steps` steps; nothing without a saver. Its time is not counted in any step.

    On a stop it saves, and after SIGTERM raises Stopped if steps are left for a later attempt. If none are left the run
    continues to its end: that may take longer than the stop allows, but then a later attempt only has to end. Broken
    weights are not saved: they would take the place of sound ones. Raises LossNotFinite where that is the stop.
    """
    if now.stop is Reason.NOT_FINITE or (saver is not None and now.broken):
        _leave_unsaved(saver, now, steps)
        return
    if saver is None:
        return
    if now.stop or saver.due(now.done):
        # Points first: a kill after the checkpoint, which waits for a GPU, too, would leave a gap that nothing fills.
        report.flush(whole=True)
    last = bool(now.stop) or now.done == steps
    times.leave_out(saver.after_step(now.done, now.held_out, last=last))
    if now.stop:
        saver.save(now.done, now.held_out, last=last)
        if now.done < steps and now.stop is Reason.SIGNAL:
            saver.wait()
            raise Stopped(now.done)


def _leave_unsaved(saver: Saver | None, now: EndOfStep, steps: int) -> None:
    """After a step whose weights are broken: raises what is to end the run, once an earlier save is whole."""
    if now.stop in (Reason.NONE, Reason.TIME_UP) or (now.stop is Reason.SIGNAL and now.done == steps):
        return
    if saver is not None:
        saver.wait(required=False)
    if now.stop is Reason.NOT_FINITE:
        raise LossNotFinite(now.since, now.done, steps)
    raise Stopped(now.done, broken=True)
