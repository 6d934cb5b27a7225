"""A training run on one rank: everything is built, stepped through, and reported as records (observe.records)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch

from parallel_core.checkpoint.order import SaveOrder
from parallel_core.data.dataset import open_dataset
from parallel_core.data.sampler import Sampler
from parallel_core.engine import checkpoint
from parallel_core.engine.chunks import Chunks
from parallel_core.engine.device import Device, be_deterministic, open_device
from parallel_core.engine.distributed import Groups, Rendezvous, connect, disconnect
from parallel_core.engine.executor import Executor, Parts
from parallel_core.engine.fingerprint import Fingerprints, of_arrays
from parallel_core.engine.flat import FlatParameters
from parallel_core.engine.injected import Injected
from parallel_core.engine.neighbours import Neighbours
from parallel_core.engine.norm import StepTotals, Totals
from parallel_core.engine.optimizer import FlatAdamW, Pieces
from parallel_core.engine.p2p import Links
from parallel_core.engine.peak import device_peak
from parallel_core.engine.precision import DTYPES
from parallel_core.engine.reduction import GradientReducer
from parallel_core.engine.reporter import Reporter, StepTimes
from parallel_core.engine.shared import SharedGradients
from parallel_core.engine.stage import Batch
from parallel_core.engine.stop import Stopped, StopRequest
from parallel_core.faults import broken
from parallel_core.layout import Layout
from parallel_core.models.passing import Sample
from parallel_core.observe.memory import MemoryMeter
from parallel_core.observe.progress import Progress
from parallel_core.observe.recorder import LANE_HOST
from parallel_core.observe.records import Sink
from parallel_core.observe.scope import Scope
from parallel_core.observe.when import first_timed, is_traced, metered_step
from parallel_core.outline import outline_of
from parallel_core.plan.units import boundary_shapes
from parallel_core.schedule import build
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec
from parallel_core.tensor.group import TensorGroup


class Trainer:
    """One rank of a run, ready to step. `groups` come from `distributed.connect`."""

    def __init__(
        self,
        spec: RunSpec,
        rank: int,
        groups: Groups,
        device: Device,
        progress: Progress,
        corpus_cache: Path | None = None,
    ) -> None:
        self.spec, self.rank, self.layout, self.device = spec, rank, Layout.of(spec), device
        self.place = self.layout.coords(rank)
        self.recorder = device.recorder(self.place.place, self.place.replica)
        self.scope = Scope(self.recorder, self.place.place, self.place.replica)
        units = spec.model.units()
        stages = {s: [units[i] for i in self.layout.stage_units[s]] for s in self.layout.stages_of(self.place.place)}
        self.faults = Injected(spec.inject, rank, device)
        late = self.faults.collective_delay("tensor")
        tensor = TensorGroup(self.place.tensor, self.layout.tp, groups.tensor, self.scope, late)
        self.chunks = Chunks(spec, stages, tensor, groups.data, device, self.scope)
        self.loss_scale = self.chunks.loss_scale
        self.optimizer = FlatAdamW(self.chunks.flat, spec.train)
        self.stop = StopRequest()
        self._sampler = Sampler(spec, open_dataset(spec, corpus_cache))
        self._ids = self.layout.micro_batches_of(self.place.replica)
        self._executor = self._make_executor(groups, progress)

    def _make_executor(self, groups: Groups, progress: Progress) -> Executor:
        spec, layout, flat = self.spec, self.layout, self.chunks.flat
        here = layout.pipeline_rank(self.rank)
        schedule = build(spec)
        peers = {q: layout.peer(q, self.place.tensor) for q in layout.pipeline_ranks(self.place.replica) if q != here}
        shapes = boundary_shapes(spec)
        edges = [shapes[units[0]] for units in layout.stage_units]
        dtype = DTYPES[spec.train.precision]
        arrivals = Counter({slot: n * len(self._ids) for slot, n in self.chunks.arrivals().items()})
        reducer = GradientReducer(flat, arrivals, groups.data, self.scope, self.faults.collective_delay("data"))
        self.chunks.weights.listener = reducer.arrived
        parts = Parts(
            self.chunks,
            Links(schedule, here, peers, groups.links, edges, dtype, self.device, self.faults.link_delay),
            reducer,
            StepTotals(spec, layout, flat, groups.world, self.device, self.stop),
            self.optimizer,
            SharedGradients(flat, groups, spec.parallel.sequence),
            self.loss_scale,
            self.faults,
        )
        return Executor(schedule.programs[here], parts, self.scope, progress, spec.train.clip_norm)

    @property
    def flat(self) -> FlatParameters:
        return self.chunks.flat

    @property
    def units(self) -> tuple[str, ...]:
        """Names of the layers on this rank."""
        return self.chunks.names

    def buffers(self) -> dict[str, Pieces]:
        """What a checkpoint keeps of this rank (see `checkpoint.Buffers`)."""
        return {"value": ((0, self.flat.values),), **self.optimizer.buffers()}

    def scalars(self) -> dict[str, float]:
        """The numbers that a checkpoint keeps; the same on every rank."""
        scale = {f"loss_scale.{name}": float(value) for name, value in self.loss_scale.state().items()}
        return {**self.optimizer.scalars(), **scale}

    def load_scalars(self, saved: Mapping[str, float]) -> None:
        """Raises KeyError where one is missing."""
        self.optimizer.load_scalars(saved)
        self.loss_scale.restore({name: saved[f"loss_scale.{name}"] for name in self.loss_scale.state()})

    def step(self, step: int) -> Totals:
        """One step: read the batch, walk the program. Its spans are in `recorder` until the next one begins."""
        self.recorder.begin_step(step)
        self.optimizer.lr = self.faults.lr(self.spec.train.lr, step)
        start = self.scope.mark()
        batch = self._read(step)
        self.scope.micro_batch = -1
        self.scope.span(Kind.DATA, LANE_HOST, start)
        return self._executor.run(batch)

    def metered_step(self, step: int) -> tuple[Totals, MemoryMeter]:
        """A step with live storages followed; slower, the same numbers."""
        meter = MemoryMeter(self.spec.trace.memory_cap)
        for tensor, category in (
            (self.chunks.flat.values, "params"),
            (self.chunks.flat.grads, "grads"),
            *((tensor, "optimizer") for tensor in self.optimizer.state()),
            *((tensor, "buffers") for tensor in (self.faults.held,) if tensor is not None),
        ):
            meter.register(tensor, category)
        with ExitStack() as stack:
            stack.callback(setattr, self.scope, "meter", None)
            self.scope.meter = stack.enter_context(meter.measure())
            totals = self.step(step)
        return totals, meter

    def _read(self, step: int) -> Batch:
        """A rank none of whose layers reads the samples draws none."""
        if not outline_of(self.spec.model).readers() & set(self.chunks.names):
            return Batch(step, {}, 0.0)
        self.faults.read()
        drawn = self._sampler.micro_batches(step, self._ids)
        inputs, targets = (self._to_device(array).unbind(0) for array in (drawn.inputs, drawn.targets))
        return Batch(step, dict(zip(self._ids, map(Sample, inputs, targets), strict=True)), 1.0 / drawn.global_count)

    def sample_prints(self, step: int) -> tuple[int, int]:
        """64 bits each of the samples drawn in `step` for all ranks, and of what this rank reads of them."""
        drawn = self._sampler.micro_batches(step, self._ids)
        return of_arrays([self._sampler.numbers(step)]), of_arrays([drawn.inputs, drawn.targets])

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        """Whole numbers as they are, real ones in the run's precision."""
        tensor = torch.from_numpy(array)
        dtype = DTYPES[self.spec.train.precision] if tensor.is_floating_point() else tensor.dtype
        return tensor.to(self.device.torch, dtype)


def run_rank(
    spec: RunSpec,
    rank: int,
    sink: Sink,
    rendezvous: Rendezvous,
    progress: Progress,
    corpus_cache: Path | None = None,
    saves: SaveOrder | None = None,
) -> None:
    """Train to the end, from step 0 or from a checkpoint. `saves` None: nothing is saved, and SIGTERM just kills.

    Raises Stopped where SIGTERM ended it in good order, else what went wrong; whoever started the rank reports it.
    """
    spec = broken(spec)
    if spec.train.deterministic:
        be_deterministic()
    device = open_device(spec.train.device)
    layout = Layout.of(spec)
    report = Reporter(spec, rank, sink, device)
    report.phase("building", 0)
    progress.at(-1, "connecting")
    groups = connect(rendezvous, rank, layout, device.backend, spec.model.tied)
    try:
        progress.at(-1, "building")
        trainer = Trainer(spec, rank, groups, device, progress, corpus_cache)
        report.hello(trainer.flat, trainer.units, layout)
        first, saver = _take_up(trainer, saves, sink, progress)
        neighbours = Neighbours(device, groups.world, layout.world)
        _train(trainer, report, neighbours, first, saver, Fingerprints(trainer, groups.world))
    finally:
        report.flush()
        disconnect()


def _take_up(
    trainer: Trainer, saves: SaveOrder | None, sink: Sink, progress: Progress
) -> tuple[int, checkpoint.Saver | None]:
    """(the first step to train, what saves) as `saves` says."""
    if saves is None:
        return 0, None
    first = 0
    if saves.resume is not None:
        progress.at(-1, "loading")
        first = checkpoint.load(trainer, saves.resume)
    saver = checkpoint.Saver(trainer, saves, sink)
    trainer.stop.listen()
    return first, saver


def _train(
    trainer: Trainer,
    report: Reporter,
    neighbours: Neighbours,
    first: int,
    saver: checkpoint.Saver | None,
    prints: Fingerprints,
) -> None:
    spec, timed_from = trainer.spec, first_timed(trainer.spec, first)
    metered = metered_step(spec, first)
    times, meter = StepTimes(timed_from - first), None
    report.phase("warmup" if timed_from > first else "timed", first)
    for step in range(first, spec.train.steps):
        if step == timed_from:
            _begin_timed(trainer, report, neighbours)
            if step > first:
                report.phase("timed", step)
            times.restart()
        if step == metered:
            totals, meter = trainer.metered_step(step)
        else:
            totals, meter = trainer.step(step), None
        took = times.ended()
        if meter is not None:
            report.memory(step, meter)
        if is_traced(spec, step, first):  # first of all: the span of the step ends when it is asked for
            report.spans(step, trainer.recorder)
        report.step(step, totals, took, last=totals.stop or step + 1 == spec.train.steps)
        if prints.due(step):  # before the checkpoint: none is kept of replicas that differ
            report.fingerprint(prints.check(step))
        if saver is not None:
            _save(saver, report, step + 1, totals.stop)
    others = neighbours.share()
    if metered == spec.train.steps:
        report.memory(metered, trainer.metered_step(metered)[1])
    if saver is not None:
        saver.wait()
    report.summary(times, others)
    report.phase("done", spec.train.steps)


def _begin_timed(trainer: Trainer, report: Reporter, neighbours: Neighbours) -> None:
    """All ranks at once: what their devices can do at most, and from now on who else uses them."""
    peak = device_peak(trainer.device, trainer.spec.train.precision)
    report.peak(peak, neighbours.total(peak.flops_per_s))
    neighbours.start()


def _save(saver: checkpoint.Saver, report: Reporter, done: int, stop: bool) -> None:
    if stop or saver.due(done):
        report.flush()  # no checkpoint runs ahead of the points: a kill in between would leave a gap that nothing fills
    saver.after_step(done)
    if stop:
        saver.save(done)
        saver.wait()
        raise Stopped(done)
