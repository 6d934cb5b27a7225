"""The steps of an attempt on one rank, and what is due between them and at their end."""

from __future__ import annotations

from typing import NamedTuple

from parallel_core.engine.checkpoint import Saver
from parallel_core.engine.end_of_step import EndOfStep, save
from parallel_core.engine.evaluation import BrokenOff, Evaluation
from parallel_core.engine.exchange import Exchange
from parallel_core.engine.fingerprint import Fingerprints
from parallel_core.engine.interference import Interference
from parallel_core.engine.norm import Totals
from parallel_core.engine.peak import device_peak
from parallel_core.engine.reference_probe import ReferenceProbe
from parallel_core.engine.reporter import Reporter
from parallel_core.engine.step_times import StepTimes
from parallel_core.engine.stop import Reason
from parallel_core.engine.trainer import Trainer
from parallel_core.observe.observed_steps import extra_steps, first_timed, followed_steps, is_traced, metered_step


class TrainedStep(NamedTuple):
    """A step that has been trained. `known` = the totals that became known with it, `took` = its seconds, `traced` =
    whether its spans are emitted."""

    step: int
    known: list[Totals]
    took: float
    traced: bool


class TrainingLoop:
    """Trains from step `first` on to the last one. What is done between two steps is counted in the time of none."""

    def __init__(
        self,
        trainer: Trainer,
        report: Reporter,
        interference: Interference,
        exchange: Exchange,
        first: int,
        saver: Saver | None,
        prints: Fingerprints,
    ) -> None:
        """`saver` None: nothing is saved."""
        spec = trainer.spec
        self._spec, self._trainer, self._report, self._interference = spec, trainer, report, interference
        self._exchange, self._first, self._saver, self._prints = exchange, first, saver, prints
        self._timed_from = first_timed(spec, first)
        self._metered, self._followed = metered_step(spec, first), followed_steps(spec, first)
        self._times = StepTimes(self._timed_from - first)
        self._evaluation = Evaluation(trainer, exchange) if spec.train.eval_every else None
        self._probe = ReferenceProbe(spec, trainer.device, exchange, trainer.rank)

    def run(self) -> None:
        """Trains, and ends the run. Raises as `run.run_rank`."""
        first, steps = self._first, self._spec.train.steps
        self._report.phase("warmup" if self._timed_from > first else "timed", first)
        self._trainer.stop.limit(self._spec.train.max_minutes)
        end = EndOfStep(first, Reason.NONE, None)
        for step in range(first, steps):
            if step == self._timed_from:
                begin_timed(self._trainer, self._report, self._interference, step if step > first else None)
                self._times.restart()
            end = self._after(self._trained(step))
            if end.stop is Reason.TIME_UP:
                break
        self._end(end)

    def _trained(self, step: int) -> TrainedStep:
        trainer, report, times = self._trainer, self._report, self._times
        with report.profiled(step, trainer.scope):
            known, meter = trainer.metered_step(step) if step in self._followed else (trainer.advance(step), None)
            traced = is_traced(self._spec, step, self._first) or (meter is None and report.requested(step))
            report.ended(traced)  # before anything else, as this ends the step's span: a profile has yet to be written
            took = times.ended()
        self._meet_after_profile(step)
        times.restart()  # the time in which a profile was written is that of no step
        if meter is not None and step == self._metered:
            report.memory(step, meter)
        return TrainedStep(step, known, took, traced)

    def _after(self, done: TrainedStep) -> EndOfStep:
        """Does what is due after the step: reports it, compares replicas, evaluates, does the reference work, saves."""
        step, steps = done.step, self._spec.train.steps
        stop = self._reported(done)
        self._compare(step)
        if stop is Reason.TIME_UP and step + 1 == steps:
            stop = Reason.NONE  # it ends here anyway
        held_out, broken_off = None, False
        time_up = stop is Reason.TIME_UP
        if self._evaluation is not None and (time_up or not stop):
            held_out, broken_off = self._evaluated(self._evaluation, step, last=time_up)
        stop = Reason.SIGNAL if broken_off and not time_up else stop
        if step >= self._timed_from:
            self._probe_reference(step, done.took)
        judge = self._trainer.runner.judge
        end = EndOfStep(step + 1, stop, held_out, judge.broken, judge.since)
        save(self._saver, self._report, self._times, end, steps)
        self._times.leave_out(self._report.spent())
        return end

    def _meet_after_profile(self, step: int) -> None:
        """After a step that some ranks profile: waits for them, so that no rank does so within the next step.

        Only where all ranks know of it, and every one has ended the step: not without a flush, nor for a user's
        request, which a rank may have read too late.
        """
        if self._spec.parallel.flushes and step in self._spec.trace.profile_steps:
            self._exchange.meet()

    def _reported(self, done: TrainedStep) -> Reason:
        """Reports spans and points of a step as they are due; returns why all ranks stop after it, if they do."""
        spec, trainer, report, step, first = self._spec, self._trainer, self._report, done.step, self._first
        if done.traced:
            report.spans(step, trainer.recorder)
        elif is_traced(spec, step + 2, first) or (report.clock.old and not is_traced(spec, step + 1, first)):
            report.clock.tie()  # its time falls into the next step, which is not traced, not into the traced one after
        stop = trainer.runner.stopping
        last = bool(stop) or step + 1 == spec.train.steps
        report.step(step, done.known, done.took, trainer.runner.staleness, trainer.optimizer.lr, last=last)
        return stop

    def _compare(self, step: int) -> None:
        """Compares the replicas after a step if it is due. Before the checkpoint, so that none is saved of replicas
        that differ."""
        found, spent = self._prints.after_step(step, drained=self._trainer.runner.drained)
        for check in found:
            self._report.fingerprint(check)
        self._times.leave_out(spent)

    def _evaluated(self, evaluation: Evaluation, step: int, *, last: bool) -> tuple[float | None, bool]:
        """Evaluates the held-out loss after a step if it is due, or the run's `last` one at its time limit. Returns the
        loss, and whether the evaluation was broken off, as the run is to stop."""
        try:
            found = evaluation.after_step(step, drained=self._trainer.runner.drained, last=last)
        except BrokenOff:
            return None, True
        if found is None:
            return None, False
        self._report.evaluated(found)
        self._times.leave_out(found.seconds)
        return found.loss, False

    def _probe_reference(self, step: int, took: float) -> None:
        """Does the reference work after a timed step if it is due."""
        if (done := self._probe.after_step(took)) is not None:
            self._report.reference(step, done)
            self._times.leave_out(done.lasted)

    def _end(self, end: EndOfStep) -> None:
        """Ends the run after its last step, or at its time limit."""
        done, saver, report = end.done, self._saver, self._report
        self._trainer.progress.at(done - 1, "the end of the run")
        others, processes = self._interference.share(), self._interference.processes()
        over = done == self._spec.train.steps
        # A run that is asked to stop in its last step goes on to its end, and evaluates last, in case it is given no
        # time.
        late = self._evaluation if end.stop and end.held_out is None and over else None
        if over:
            finish(self._trainer, report, self._first, saver, meters=late is None)
        else:
            _finish_early(report, done, saver, saved=saver is not None and not end.broken)
        report.summary(self._times, others, processes, done)
        if late is not None:
            _evaluate_last(late, report, saver)
        report.phase("done", done)


def begin_timed(trainer: Trainer, report: Reporter, interference: Interference, warm: int | None) -> None:
    """Measures the devices' peak on all ranks at once, and starts measuring what other processes use of them. `warm` =
    the step at which the warm-up ends, None without a warm-up."""
    peak = device_peak(trainer.device, trainer.spec.train.precision)
    interference.start()
    report.peak(peak, *interference.of_devices(peak.flops_per_s))
    report.others = interference.own_share
    if warm is not None:
        report.phase("timed", warm)


def finish(trainer: Trainer, report: Reporter, first: int, saver: Saver | None, *, meters: bool = True) -> None:
    """After the last step of a run from `first` on: waits for the last checkpoint, then (`meters`) runs the metered
    step, which changes the weights, if no trained step was metered.

    The metered step may fail, most likely for lack of memory, which ends every rank; by then the checkpoint is saved.
    """
    if saver is not None:
        saver.wait()
    metered, extra = metered_step(trainer.spec, first), extra_steps(trainer.spec, first)
    if not (extra and meters):
        return
    trainer.runner.extend(extra)
    for step in range(extra.start, metered + 1):
        _, meter = trainer.metered_step(step)
    report.memory(metered, meter)
    for step in range(metered + 1, extra.stop):
        trainer.advance(step)


def _finish_early(report: Reporter, done: int, saver: Saver | None, *, saved: bool) -> None:
    """At the time limit: waits for the last checkpoint, and tells that the run ends after `done` steps."""
    if saver is not None:
        saver.wait(required=saved)
    report.early(done, saved=saved)


def _evaluate_last(evaluation: Evaluation, report: Reporter, saver: Saver | None) -> None:
    """Evaluates the held-out loss of weights that are saved already, and adds it to their checkpoint."""
    found = evaluation.after_last_step()
    report.evaluated(found)
    if saver is not None:
        saver.add_held_out(found.step + 1, found.loss)
