"""A training run on one rank, from its groups to its last step; what happened is reported as records."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist

from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.checkpoint.manifest import CheckpointError
from parallel_core.engine import checkpoint
from parallel_core.engine.clocks import open_clock
from parallel_core.engine.collectives import Group
from parallel_core.engine.device import be_deterministic, keep_no_weights, open_device
from parallel_core.engine.distributed import Rendezvous, connect, joined
from parallel_core.engine.fingerprint import Fingerprints
from parallel_core.engine.interference import Interference
from parallel_core.engine.norm import Totals
from parallel_core.engine.peak import device_peak, of_gpu
from parallel_core.engine.reference_probe import ReferenceProbe
from parallel_core.engine.rehearsal import is_due, rehearse
from parallel_core.engine.reporter import Reporter, StepTimes
from parallel_core.engine.stop import Stopped
from parallel_core.engine.trainer import Trainer
from parallel_core.faults import broken
from parallel_core.layout import Layout
from parallel_core.observe.progress import Progress
from parallel_core.observe.records import Sink
from parallel_core.observe.trace_request import TraceRequests
from parallel_core.observe.when import first_timed, followed_steps, is_traced, metered_step
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
    """Train to the end, from step 0 or from a checkpoint. `saves` None: nothing is saved, and SIGTERM just kills.

    Raises Stopped where SIGTERM ended it in good order before its last step was done, else what went wrong; whoever
    started the rank reports it.
    """
    spec = broken(spec)
    if spec.train.deterministic:
        be_deterministic()
    if lets_go_of_weights(spec):
        keep_no_weights()
    device = open_device(spec.train.device, rendezvous.sharing)
    report = Reporter(spec, rank, sink, device, TraceRequests(progress.folder))
    report.phase("building", 0)
    progress.at(-1, "connecting")
    groups = connect(rendezvous, rank, Layout.of(spec), device.backend, spec.model.tied)
    with joined(), report.flushed():
        report.clock = open_clock(rendezvous, rank, groups.store)
        progress.at(-1, "building")
        trainer = Trainer(spec, rank, groups, device, progress, corpus_cache)
        report.hello(trainer.flat, trainer.units, trainer.layout)
        first, saver = _take_up(trainer, saves, sink, groups.world)
        _prepare(trainer, first, saver is not None, groups.store if rendezvous.node is not None else None)
        if first == spec.train.steps:
            _end(trainer, report, saver)
            return
        neighbours = Interference(device, groups.world, trainer.layout.world, rendezvous.node or 0)
        _train(trainer, report, neighbours, first, saver, Fingerprints(trainer, groups.world))


def lets_go_of_weights(spec: RunSpec) -> bool:
    """Whether a backward of LSTMs must find the weights as they are by then, not as its forward left them: gathered
    once more, or updated in between."""
    return spec.model.kind == "gnmt" and (spec.parallel.zero == 3 or TRAITS[spec.parallel.schedule].sync == "none")


def _prepare(trainer: Trainer, first: int, saves: bool, store: dist.Store | None) -> None:
    """What comes before the step `first`: hosts agree on it by their `store` (None: there is one), devices rehearse."""
    if store is not None:
        _agree(store, trainer.rank, first if saves else None)
    if is_due(trainer):
        trainer.progress.at(-1, "rehearsing")
        rehearse(trainer, first)
        of_gpu(trainer.device, trainer.spec.train.precision)  # a pipeline that stays full is never idle from now on


def _take_up(
    trainer: Trainer, saves: CheckpointConfig | None, sink: Sink, world: Group
) -> tuple[int, checkpoint.Saver | None]:
    """(the first step to train, what saves) as `saves` says."""
    if saves is None:
        return 0, None
    first = 0
    if saves.resume is not None:
        first = checkpoint.load(trainer, saves.resume, saves.run)
    saver = checkpoint.Saver(trainer, saves, sink, world)
    trainer.stop.listen()
    return first, saver


def _agree(store: dist.Store, rank: int, first: int | None) -> None:
    """Ranks on several hosts begin with the same step, and save all or none (None): what their hosts say they share is
    one folder. Raises CheckpointError where it is not."""
    told = "saves nothing" if first is None else f"begins with step {first}"
    if rank == 0:
        store.set("begins", told)
    elif (zero := store.get("begins").decode()) != told:
        raise CheckpointError(
            f"Rank 0 {zero}, rank {rank} {told}: the hosts of a run must have one folder of checkpoints, or none."
        )


class Done(NamedTuple):
    """A step that has been trained, `first` being the first one of the attempt; `known` are the totals known by then,
    `took` its seconds."""

    step: int
    first: int
    known: list[Totals]
    took: float
    metered: bool


def _train(
    trainer: Trainer,
    report: Reporter,
    neighbours: Interference,
    first: int,
    saver: checkpoint.Saver | None,
    prints: Fingerprints,
) -> None:
    spec, timed_from = trainer.spec, first_timed(trainer.spec, first)
    metered = metered_step(spec, first)
    times, followed = StepTimes(timed_from - first), followed_steps(spec, first)
    beside = ReferenceProbe(spec, trainer.device, neighbours, trainer.rank)
    report.phase("warmup" if timed_from > first else "timed", first)
    for step in range(first, spec.train.steps):
        if step == timed_from:
            _begin_timed(trainer, report, neighbours, step if step > first else None)
            times.restart()
        with report.profiled(step, trainer.scope):
            known, meter = trainer.metered_step(step) if step in followed else (trainer.advance(step), None)
        took = times.ended()
        if meter is not None and step == metered:
            report.memory(step, meter)
        stop = _tell(trainer, report, Done(step, first, known, took, meter is not None), prints)
        if step >= timed_from:
            _refer(beside, report, times, step, took)
        _save(saver, report, step + 1, stop, spec.train.steps)
    others = neighbours.share()
    _finish(trainer, report, metered, saver)
    report.summary(times, others)
    report.phase("done", spec.train.steps)


def _end(trainer: Trainer, report: Reporter, saver: checkpoint.Saver | None) -> None:
    """An earlier attempt trained every step, and was cut off before it could say so: only the end is left. There is no
    summary: what it measured of the steps went with it."""
    steps = trainer.spec.train.steps
    _finish(trainer, report, metered_step(trainer.spec, steps), saver)
    report.phase("done", steps)


def _refer(beside: ReferenceProbe, report: Reporter, times: StepTimes, step: int, took: float) -> None:
    """The reference work behind a timed step, where it is due; its time is no part of any step's."""
    if (done := beside.behind(took)) is not None:
        report.reference(step, done)
        times.leave_out(done.lasted)


def _finish(trainer: Trainer, report: Reporter, metered: int, saver: checkpoint.Saver | None) -> None:
    """Behind the last step: the end of what is being saved, then the metered step, where none of the others was to be.

    It may fail, for want of memory above all, and its failure ends every rank: what was trained is kept by then.
    """
    if saver is not None:
        saver.wait_published()
    if metered == trainer.spec.train.steps:
        report.memory(metered, trainer.metered_step(metered)[1])


def _tell(trainer: Trainer, report: Reporter, done: Done, prints: Fingerprints) -> bool:
    """Spans, points and fingerprint of a step, as they are due; whether somebody said stop."""
    spec, step = trainer.spec, done.step
    if is_traced(spec, step, done.first) or (not done.metered and report.wished(step)):
        # first of all: the span of the step ends when it is asked for
        report.spans(step, trainer.recorder)
    elif is_traced(spec, step + 2, done.first):
        report.clock.tie()  # takes from the next step, which nobody looks at, and not from the one behind it
    stop = trainer.pace.stopping
    last = stop or step + 1 == spec.train.steps
    report.step(step, done.known, done.took, trainer.pace.staleness, trainer.optimizer.lr, last=last)
    if prints.due(step):  # before the checkpoint: none is kept of replicas that differ
        report.fingerprint(prints.check(step))
    return stop


def _begin_timed(trainer: Trainer, report: Reporter, neighbours: Interference, behind: int | None) -> None:
    """All ranks at once: what their devices can do at most, and from now on who else uses them. `behind`: the step at
    which the warm-up ends, where there was one."""
    peak = device_peak(trainer.device, trainer.spec.train.precision)
    report.peak(peak, neighbours.total(peak.flops_per_s))
    neighbours.start()
    if behind is not None:
        report.phase("timed", behind)


def _save(saver: checkpoint.Saver | None, report: Reporter, done: int, stop: bool, steps: int) -> None:
    """What is due behind `done` of `steps` steps; without a saver nothing.

    Where it is stopped it saves, and raises Stopped where steps are left to a later attempt. Where none are it goes on
    to its end: that may take longer than a stop leaves it, but a later attempt would only have to end.
    """
    if saver is None:
        return
    if stop or saver.due(done):
        report.flush()  # no checkpoint runs ahead of the points: a kill in between would leave a gap that nothing fills
    saver.after_step(done)
    if stop:
        saver.save(done)
        if done < steps:
            saver.wait_published()
            raise Stopped(done)
