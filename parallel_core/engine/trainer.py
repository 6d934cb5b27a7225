"""Everything that one rank needs for training: builds the components and runs steps; `run` is a whole training run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from parallel_core.data.dataset import open_dataset
from parallel_core.data.sampler import Sampler
from parallel_core.engine.chunks import Chunks
from parallel_core.engine.device import Device
from parallel_core.engine.distributed import Groups, shard_group
from parallel_core.engine.executor import Executor, Parts
from parallel_core.engine.flat import FlatParameters, Pieces
from parallel_core.engine.injected import Injected
from parallel_core.engine.norm import StageNorm, StepTotals, Totals
from parallel_core.engine.optimizer import flat_optimizer
from parallel_core.engine.p2p import Links, Messages, Peer, Traffic
from parallel_core.engine.reader import Reader
from parallel_core.engine.reducers import reducer_of
from parallel_core.engine.shared_gradients import SharedGradients
from parallel_core.engine.stage import Batch
from parallel_core.engine.step_runner import FlushingRunner, StepRunner, StreamingRunner
from parallel_core.engine.stop import StopRequest
from parallel_core.engine.stream import StreamExecutor
from parallel_core.engine.updates import scalar_codec
from parallel_core.engine.versions import WeightVersions
from parallel_core.layout import Layout
from parallel_core.learning_rate import rate_at
from parallel_core.observe.memory import MemoryMeter
from parallel_core.observe.progress import Progress
from parallel_core.observe.scope import Scope
from parallel_core.schedule import build
from parallel_core.schedule.send_completion import receipts
from parallel_core.schedule.stream import Windows
from parallel_core.spec import RunSpec
from parallel_core.tensor.group import TensorGroup


class Trainer:
    """One rank of a run, ready to step. `groups` are from `distributed.connect`."""

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
        self.progress = progress
        self.place = self.layout.coords(rank)
        self.recorder = device.recorder(self.place.place, self.place.replica)
        self.scope = Scope(self.recorder, self.place.place, self.place.replica)
        self.scope.moved = progress.moved
        self.faults = Injected(spec.inject, rank, device)
        self.chunks = self._make_chunks(groups)
        self.loss_scale = self.chunks.loss_scale
        self.optimizer = flat_optimizer(self.chunks.flat, spec.train)
        self._scalar_codec = scalar_codec(spec, self.layout, self.place.place, groups.world, device)
        self.stop = StopRequest()
        self._ids = self.layout.micro_batches_of(self.place.place, self.place.replica)
        sampler = Sampler(spec, open_dataset(spec, corpus_cache))
        self.reader = Reader(spec, sampler, self._ids, self.units, device, self.scope, self.faults)
        self._versions: WeightVersions | None = None
        self._meter: MemoryMeter | None = None
        self.parts = self._make_parts(groups)
        self.runner = self._make_runner(progress)

    def _make_chunks(self, groups: Groups) -> Chunks:
        spec, layout, here = self.spec, self.layout, self.place
        units = spec.model.units()
        stages = {s: [units[i] for i in layout.stage_units[s]] for s in layout.stages_of(here.place)}
        late = self.faults.collective_delay("tensor")
        tensor = TensorGroup(here.tensor, layout.widths[here.place], groups.tensor, self.scope, late)
        shards = shard_group(self.rank, layout, groups.data) if spec.parallel.zero_backend == "fully_shard" else None
        built = partial(self.progress.at, -1, "building")  # drawing the initial values of a large model takes minutes
        return Chunks(spec, stages, tensor, groups.data, self.device, self.scope, shards, built)

    def _make_runner(self, progress: Progress) -> StepRunner:
        spec, here, parts = self.spec, self.layout.pipeline_rank(self.rank), self.parts
        if spec.parallel.flushes:
            schedule = build(spec)
            program = schedule.programs[here]
            traffic = Traffic.of(program, receipts(schedule, here))
            executor = Executor(program, traffic, parts, self.scope, progress, spec.train)
            return FlushingRunner(spec.train, executor, self._read)
        windows = Windows(spec)
        stream = StreamExecutor(windows, here, parts, self.scope, progress, spec.train)
        self._versions = stream.versions
        return StreamingRunner(spec, stream, parts.totals, windows, self._read)

    def _read(self, step: int) -> Batch:
        if self.reader.reads:
            self.progress.at(step, "reading data")
        return self.reader.read(step)

    def _make_parts(self, groups: Groups) -> Parts:
        spec, layout, flat = self.spec, self.layout, self.chunks.flat
        here = layout.pipeline_rank(self.rank)
        others = [q for q in layout.linked(self.place.replica) if q != here]
        peers = {q: Peer(layout.sender(self.rank, q), layout.receivers(self.rank, q)) for q in others}
        late = self.faults.collective_delay("data")
        self.reducer = reducer_of(spec, self.chunks, groups.data, self.scope, len(self._ids), late)
        return Parts(
            self.chunks,
            Links(here, peers, groups.links, Messages.of(spec, layout), self.device, self.faults.link_delay),
            self.reducer,
            StepTotals(spec, layout, flat, groups.totals, self.device, self.stop),
            StageNorm(flat, groups.tensor, self.place.tensor, spec.parallel.tensor_split),
            self.optimizer,
            SharedGradients(flat, groups, spec.parallel.sequence),
            self.loss_scale,
            self.faults,
        )

    @property
    def flat(self) -> FlatParameters:
        """The flat parameters of this rank."""
        return self.chunks.flat

    @property
    def units(self) -> tuple[str, ...]:
        """Names of the layers on this rank."""
        return self.chunks.names

    def buffers(self) -> dict[str, Pieces]:
        """Returns the buffers that a checkpoint saves of this rank (see `checkpoint_state.Buffers`)."""
        return {**self.flat.buffers(), **self.optimizer.buffers()}

    def loaded_buffers(self) -> dict[str, Pieces]:
        """Returns the buffers that a checkpoint fills: those that a step holds anyway."""
        return {**self.flat.loaded_buffers(), **self.optimizer.buffers()}

    def scalars(self) -> dict[str, float]:
        """Returns the scalars that a checkpoint saves, the same on every rank. A collective: every rank calls it."""
        scale = {f"loss_scale.{name}": float(value) for name, value in self.loss_scale.state().items()}
        return self._scalar_codec.scalars({**self.optimizer.scalars(), **scale})

    def load_scalars(self, saved: Mapping[str, float]) -> None:
        """Restores the scalars of a checkpoint. Raises KeyError where one is missing."""
        own = self._scalar_codec.restore(saved)
        self.optimizer.load_scalars(own)
        self.loss_scale.restore({name: own[f"loss_scale.{name}"] for name in self.loss_scale.state()})

    def step(self, step: int) -> Totals:
        """Runs one step and returns its totals; a pipeline without a flush stays full, but is waited for."""
        return [*self.advance(step), *self.runner.settle()][-1]

    def advance(self, step: int) -> list[Totals]:
        """Runs one step; returns the totals that are known by then, possibly of earlier steps.

        The step's spans stay in `recorder` until the next one begins.
        """
        self.recorder.begin_step(step)
        self.optimizer.lr = self.faults.lr(rate_at(self.spec.train, step), step)
        known = self.runner.advance(step)
        self.faults.flip(self.flat.slots[len(self.flat.slots) // 2].parameter, step)
        return known

    def metered_step(self, step: int) -> tuple[list[Totals], MemoryMeter]:
        """Runs a step under the memory meter: slower, with the same results. Storages left by earlier metered steps
        stay known."""
        meter = self._meter = self._meter or MemoryMeter(self.spec.trace.memory_cap, self.device.kind)
        copies = self._versions.buffers() if self._versions else []
        for tensor, category in (
            *((tensor, "params") for tensor in (*self.chunks.flat.stores, *copies)),
            (self.chunks.flat.grads, "grads"),
            *((tensor, "optimizer") for tensor in self.optimizer.state()),
            *((tensor, "buffers") for tensor in self.chunks.buffers().values()),
            *((tensor, "buffers") for tensor in (self.faults.held,) if tensor is not None),
        ):
            meter.register(tensor, category)
        with ExitStack() as stack:
            stack.callback(setattr, self.scope, "meter", None)
            self.scope.meter = stack.enter_context(meter.measure())
            totals = self.advance(step)
        return totals, meter
