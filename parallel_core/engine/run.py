"""Runs the training of one rank, from joining its groups to its last step, and reports it as records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch.distributed as dist

from parallel_core.checkpoint import llama_weights
from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.checkpoint.manifest import CheckpointError
from parallel_core.engine import checkpoint
from parallel_core.engine.clocks import open_clock
from parallel_core.engine.device import Device, disable_cudnn, open_device, use_deterministic_algorithms
from parallel_core.engine.distributed import Groups, Rendezvous, awaited, connect, joined
from parallel_core.engine.exchange import Exchange
from parallel_core.engine.fingerprint import Fingerprints
from parallel_core.engine.inputs import (
    reads,
    require_expected,
    require_same_corpus,
    require_same_weights,
    require_saved,
)
from parallel_core.engine.interference import Interference
from parallel_core.engine.peak import of_gpu
from parallel_core.engine.rehearsal import is_due, rehearse
from parallel_core.engine.reporter import Reporter
from parallel_core.engine.step_meter import StepMeter
from parallel_core.engine.trainer import Trainer
from parallel_core.engine.training_loop import TrainingLoop, finish
from parallel_core.faults import broken
from parallel_core.layout import Layout
from parallel_core.observe.progress import CONNECTING, Progress
from parallel_core.observe.record_files import Sink
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
    expects: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Trains to the last step, from step 0 or from a checkpoint. `saves` None: saves nothing, and SIGTERM kills.
    `expects`: what it has to read, where that is known (`inputs.require_expected`).

    Raises Stopped if it saved and ended on SIGTERM before its last step was done. Other exceptions are faults, which
    the caller reports. At its time limit it saves and returns; a record (`early_end`) tells.
    """
    spec = broken(spec)
    with awaited(rendezvous, rank):
        device = _device(spec, rendezvous.sharing)
    report = Reporter(spec, rank, sink, device, TraceRequests(progress.folder))
    report.phase("building", 0)
    progress.at(-1, CONNECTING)
    groups = connect(rendezvous, rank, Layout.of(spec), device.backend, spec.model.tied)
    with joined(), report.flushed():
        report.clock = open_clock(rendezvous, rank, groups.store)
        progress.at(-1, "building")
        trainer = Trainer(spec, rank, groups, device, progress, corpus_cache)
        report.meter = StepMeter(trainer.recorder, rank, trainer.layout)
        between_hosts = groups.store if rendezvous.node is not None else None
        weights = _weights(spec, saves, corpus_cache)
        found = _inputs(trainer, saves, weights, between_hosts)
        report.hello(trainer.flat, trainer.units, trainer.layout, found if rank == 0 else {})
        require_expected(spec.train, found, expects)
        first, saver = _load(trainer, saves, weights, sink, groups, found)
        _prepare(trainer, first, saver is not None, between_hosts)
        if first == spec.train.steps:
            _end(trainer, report, saver)
            return
        exchange = Exchange(device, groups.world, trainer.layout.world)
        interference = Interference(device, exchange, rendezvous.node or 0)
        prints = Fingerprints(trainer, groups.fingerprints, first)
        TrainingLoop(trainer, report, interference, exchange, first, saver, prints).run()


def _device(spec: RunSpec, sharing: int) -> Device:
    """Sets what the spec wants of torch's algorithms, and opens the device, which `sharing` ranks are on."""
    if spec.train.deterministic:
        use_deterministic_algorithms()
    if lstm_must_reread_weights(spec):
        disable_cudnn()
    return open_device(spec.train.device, sharing)


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


def _weights(spec: RunSpec, saves: CheckpointConfig | None, data: Path | None) -> Path | None:
    """The folder of weights in the folder `data` from which the run begins; None if it begins from none."""
    resumes = saves is not None and saves.resume is not None
    return llama_weights.path_of(spec.train.weights, data) if spec.train.weights and not resumes else None


def _inputs(
    trainer: Trainer, saves: CheckpointConfig | None, weights: Path | None, between_hosts: dist.Store | None
) -> dict[str, str]:
    """What the run reads, on rank 0 and, where it has other hosts (a store `between_hosts`), on every rank; else {}."""
    if trainer.rank != 0 and between_hosts is None:
        return {}
    found = reads(trainer.reader.sampler.dataset, weights)
    if between_hosts is not None:
        require_same_corpus(between_hosts, trainer.rank, trainer.spec.train, found)
    if saves is not None and saves.resume is not None:
        require_saved(trainer.spec.train, found, saves.resume)
    return found


def _load(
    trainer: Trainer,
    saves: CheckpointConfig | None,
    weights: Path | None,
    sink: Sink,
    groups: Groups,
    found: Mapping[str, str],
) -> tuple[int, checkpoint.Saver | None]:
    """Loads the checkpoint to resume from, if any, or else the `weights`, if any; returns (the first step to train, the
    saver or None). The saver writes down what was `found` to be read."""
    first = 0
    if saves is not None and saves.resume is not None:
        first = checkpoint.load(trainer, saves.resume, saves.run)
    elif weights is not None:
        checkpoint.load_weights(trainer, weights)
        require_same_weights(groups.store, trainer.rank, weights)
    if saves is None:
        return first, None
    saver = checkpoint.Saver(trainer, saves, sink, groups.world, found)
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


def _end(trainer: Trainer, report: Reporter, saver: checkpoint.Saver | None) -> None:
    """Ends a run of which an earlier attempt trained every step but was killed before its end. There is no summary, as
    that attempt's measurements are lost."""
    steps = trainer.spec.train.steps
    finish(trainer, report, steps, saver)
    report.phase("done", steps)
