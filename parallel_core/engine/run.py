"""Runs the training of one rank, from joining its groups to its last step, and reports it as records."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist

from parallel_core.checkpoint import llama_weights
from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.checkpoint.manifest import CheckpointError
from parallel_core.engine import checkpoint
from parallel_core.engine.clocks import open_clock
from parallel_core.engine.collectives import Group
from parallel_core.engine.device import disable_cudnn, open_device, use_deterministic_algorithms
from parallel_core.engine.distributed import Rendezvous, connect, joined
from parallel_core.engine.end_of_step import EndOfStep, save
from parallel_core.engine.evaluation import BrokenOff, Evaluation
from parallel_core.engine.fingerprint import Fingerprints
from parallel_core.engine.interference import Interference
from parallel_core.engine.norm import Totals
from parallel_core.engine.peak import device_peak, of_gpu
from parallel_core.engine.reference_probe import ReferenceProbe
from parallel_core.engine.rehearsal import is_due, rehearse
from parallel_core.engine.reporter import Reporter, StepTimes
from parallel_core.engine.step_meter import StepMeter
from parallel_core.engine.stop import Reason
from parallel_core.engine.trainer import Trainer
from parallel_core.faults import broken
from parallel_core.layout import Layout
from parallel_core.observe.observed_steps import extra_steps, first_timed, followed_steps, is_traced, metered_step
from parallel_core.observe.progress import Progress
from parallel_core.observe.records import Sink
from parallel_core.observe.trace_request import TraceRequests
from parallel_core.outline import outline_of
from parallel_core.schedule.traits import TRAITS
from parallel_core.spec import RunSpec


def run_rank(
    spec: RunSpec,
    rank: int,
    sink: Sink,
    rendezvous: Rendezvous,
    progress: Progress,
    corpus_cache: Path | None = None,
    saves: CheckpointConfig | None = None,
) -> None:
    """Trains to the last step, from step 0 or from a checkpoint. `saves` None: saves nothing, and SIGTERM kills.

    Raises Stopped if it saved and ended on SIGTERM before its last step was done. Other exceptions are faults, which
    the caller reports. At its time limit it saves and returns; a record (`early_end`) tells.
    """
    spec = broken(spec)
    if spec.train.deterministic:
        use_deterministic_algorithms()
    if lstm_must_reread_weights(spec):
        disable_cudnn()
    device = open_device(spec.train.device, rendezvous.sharing)
    report = Reporter(spec, rank, sink, device, TraceRequests(progress.folder))
    report.phase("building", 0)
    progress.at(-1, "connecting")
    groups = connect(rendezvous, rank, Layout.of(spec), device.backend, spec.model.tied)
    with joined(), report.flushed():
        report.clock = open_clock(rendezvous, rank, groups.store)
        progress.at(-1, "building")
        trainer = Trainer(spec, rank, groups, device, progress, corpus_cache)
        report.meter = StepMeter(trainer.recorder, rank, trainer.layout)
        report.hello(trainer.flat, trainer.units, trainer.layout)
        first, saver = _load(trainer, saves, corpus_cache, sink, groups.world)
        _prepare(trainer, first, saver is not None, groups.store if rendezvous.node is not None else None)
        if first == spec.train.steps:
            _end(trainer, report, saver)
            return
        interference = Interference(device, groups.world, trainer.layout.world, rendezvous.node or 0)
        _train(trainer, report, interference, first, saver, Fingerprints(trainer, groups.fingerprints, first))


def lstm_must_reread_weights(spec: RunSpec) -> bool:
    """Whether the backward of LSTMs must use the weights at that time, not the copy that their forward kept: ZeRO-3
    gathers them again, and without a flush they may be updated in between."""
    changed = spec.parallel.zero == 3 or TRAITS[spec.parallel.schedule].sync == "none"
    return changed and outline_of(spec.model).recurrent


def _prepare(trainer: Trainer, first: int, saves: bool, store: dist.Store | None) -> None:
    """Prepares the step `first`: hosts agree on it through `store` (None: there is one host), devices rehearse.

    What the set-up took for a moment (first messages of every size, a rehearsal) is no part of the run's peak.
    """
    if store is not None:
        _check_first_step(store, trainer.rank, first if saves else None)
    if is_due(trainer):
        trainer.progress.at(-1, "rehearsing")
        rehearse(trainer, first)
        of_gpu(trainer.device, trainer.spec.train.precision)  # now, as a pipeline without flushes is never idle later
    trainer.device.forget_memory_peak()


def _load(
    trainer: Trainer, saves: CheckpointConfig | None, data: Path | None, sink: Sink, world: Group
) -> tuple[int, checkpoint.Saver | None]:
    """Loads the checkpoint to resume from, if any, or else the weights in the folder `data` that the spec names, if it
    names any; returns (the first step to train, the saver or None)."""
    first, weights = 0, trainer.spec.train.weights
    if saves is not None and saves.resume is not None:
        first = checkpoint.load(trainer, saves.resume, saves.run)
    elif weights:
        checkpoint.load_weights(trainer, llama_weights.path_of(weights, data))
    if saves is None:
        return first, None
    saver = checkpoint.Saver(trainer, saves, sink, world)
    trainer.stop.listen()
    return first, saver


def _check_first_step(store: dist.Store, rank: int, first: int | None) -> None:
    """Checks that all ranks begin with the same step, or all save nothing (`first` None).

    Raises CheckpointError if not: then the checkpoint folder that the hosts are to share is not the same on all.
    """
    mine = "saves nothing" if first is None else f"begins with step {first}"
    if rank == 0:
        store.set("begins", mine)
    elif (zero := store.get("begins").decode()) != mine:
        raise CheckpointError(
            f"Rank 0 {zero}, rank {rank} {mine}: the hosts of a run must have one folder of checkpoints, or none."
        )


class TrainedStep(NamedTuple):
    """A step that has been trained. `first` = first step of the attempt, `known` = the totals that became known with
    it, `took` = its seconds, `traced` = whether its spans are emitted."""

    step: int
    first: int
    known: list[Totals]
    took: float
    traced: bool


def _train(
    trainer: Trainer,
    report: Reporter,
    interference: Interference,
    first: int,
    saver: checkpoint.Saver | None,
    prints: Fingerprints,
) -> None:
    spec, timed_from = trainer.spec, first_timed(trainer.spec, first)
    metered = metered_step(spec, first)
    times, followed = StepTimes(timed_from - first), followed_steps(spec, first)
    evaluation = Evaluation(trainer, interference) if spec.train.eval_every else None
    probe = ReferenceProbe(spec, trainer.device, interference, trainer.rank)
    report.phase("warmup" if timed_from > first else "timed", first)
    trainer.stop.limit(spec.train.max_minutes)
    done = first
    for step in range(first, spec.train.steps):
        if step == timed_from:
            _begin_timed(trainer, report, interference, step if step > first else None)
            times.restart()
        with report.profiled(step, trainer.scope):
            known, meter = trainer.metered_step(step) if step in followed else (trainer.advance(step), None)
            traced = is_traced(spec, step, first) or (meter is None and report.requested(step))
            report.ended(traced)  # before anything else, as this ends the step's span: a profile has yet to be written
            took = times.ended()
        _meet_after_profile(trainer.spec, step, interference)
        times.restart()  # the time in which a profile was written is that of no step
        if meter is not None and step == metered:
            report.memory(step, meter)
        stop = _report_step(trainer, report, TrainedStep(step, first, known, took, traced))
        _compare(prints, report, times, step, trainer.runner.drained)
        if stop is Reason.TIME_UP and step + 1 == spec.train.steps:
            stop = Reason.NONE  # it ends here anyway
        held_out, broken_off = None, False
        time_up = stop is Reason.TIME_UP
        if evaluation is not None and (time_up or not stop):
            held_out, broken_off = _evaluate(evaluation, report, times, step, trainer.runner.drained, last=time_up)
        stop = Reason.SIGNAL if broken_off and not time_up else stop
        if step >= timed_from:
            _probe_reference(probe, report, times, step, took)
        done, judge = step + 1, trainer.runner.judge
        save(saver, report, times, EndOfStep(done, stop, held_out, judge.broken, judge.since), spec.train.steps)
        times.leave_out(report.spent())
        if stop is Reason.TIME_UP:
            break
    others, processes = interference.share(), interference.processes()
    # A run that is asked to stop in its last step goes on to its end, and evaluates last, in case it is given no time.
    late = evaluation if stop and held_out is None and done == spec.train.steps else None
    if done < spec.train.steps:
        _finish_early(report, done, saver, saved=saver is not None and not trainer.runner.judge.broken)
    else:
        _finish(trainer, report, first, saver, meters=late is None)
    report.summary(times, others, processes, done)
    if late is not None:
        _evaluate_last(late, report, saver)
    report.phase("done", done)


def _meet_after_profile(spec: RunSpec, step: int, interference: Interference) -> None:
    """After a step that some ranks profile: waits for them, so that no rank does so within the next step.

    Only where all ranks know of it, and every one has ended the step: not without a flush, nor for a user's request,
    which a rank may have read too late.
    """
    if spec.parallel.flushes and step in spec.trace.profile_steps:
        interference.total(0.0)


def _end(trainer: Trainer, report: Reporter, saver: checkpoint.Saver | None) -> None:
    """Ends a run of which an earlier attempt trained every step but was killed before its end. There is no summary, as
    that attempt's measurements are lost."""
    steps = trainer.spec.train.steps
    _finish(trainer, report, steps, saver)
    report.phase("done", steps)


def _compare(prints: Fingerprints, report: Reporter, times: StepTimes, step: int, drained: bool) -> None:
    """Compares the replicas after a step if it is due; its time is not counted in any step. Before the checkpoint, so
    that none is saved of replicas that differ."""
    found, spent = prints.after_step(step, drained=drained)
    for check in found:
        report.fingerprint(check)
    times.leave_out(spent)


def _evaluate(
    evaluation: Evaluation, report: Reporter, times: StepTimes, step: int, drained: bool, *, last: bool
) -> tuple[float | None, bool]:
    """Evaluates the held-out loss after a step if it is due, or the run's `last` one at its time limit; its time is not
    counted in any step. Returns the loss, and whether the evaluation was broken off, as the run is to stop."""
    try:
        found = evaluation.after_step(step, drained=drained, last=last)
    except BrokenOff:
        return None, True
    if found is None:
        return None, False
    report.evaluated(found)
    times.leave_out(found.seconds)
    return found.loss, False


def _evaluate_last(evaluation: Evaluation, report: Reporter, saver: checkpoint.Saver | None) -> None:
    """Evaluates the held-out loss of weights that are saved already, and adds it to their checkpoint."""
    found = evaluation.after_last_step()
    report.evaluated(found)
    if saver is not None:
        saver.add_held_out(found.step + 1, found.loss)


def _probe_reference(probe: ReferenceProbe, report: Reporter, times: StepTimes, step: int, took: float) -> None:
    """Does the reference work after a timed step if it is due; its time is not counted in any step."""
    if (done := probe.after_step(took)) is not None:
        report.reference(step, done)
        times.leave_out(done.lasted)


def _finish(
    trainer: Trainer, report: Reporter, first: int, saver: checkpoint.Saver | None, *, meters: bool = True
) -> None:
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


def _finish_early(report: Reporter, done: int, saver: checkpoint.Saver | None, *, saved: bool) -> None:
    """At the time limit: waits for the last checkpoint, and tells that the run ends after `done` steps."""
    if saver is not None:
        saver.wait()
    report.early(done, saved=saved)


def _report_step(trainer: Trainer, report: Reporter, done: TrainedStep) -> Reason:
    """Reports spans and points of a step as they are due; returns why all ranks stop after it, if they do."""
    spec, step = trainer.spec, done.step
    if done.traced:
        report.spans(step, trainer.recorder)
    elif is_traced(spec, step + 2, done.first) or (report.clock.old and not is_traced(spec, step + 1, done.first)):
        report.clock.tie()  # its time falls into the next step, which is not traced, not into the traced one after it
    stop = trainer.runner.stopping
    last = bool(stop) or step + 1 == spec.train.steps
    report.step(step, done.known, done.took, trainer.runner.staleness, trainer.optimizer.lr, last=last)
    return stop


def _begin_timed(trainer: Trainer, report: Reporter, interference: Interference, warm: int | None) -> None:
    """Measures the devices' peak on all ranks at once, and starts measuring what other processes use of them. `warm` =
    the step at which the warm-up ends, None without a warm-up."""
    peak = device_peak(trainer.device, trainer.spec.train.precision)
    interference.start()
    report.peak(peak, *interference.of_devices(peak.flops_per_s))
    report.others = interference.own_share
    if warm is not None:
        report.phase("timed", warm)
