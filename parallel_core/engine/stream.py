"""Executes the programs of a schedule that never flushes (`schedule.stream`): the pipeline stays full between steps.

Every stage updates its weights independently, and keeps the versions that micro-batches in flight still need. No rank
waits for others at the end of a step: its totals are gathered during the following steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from parallel_core.engine.executor import BaseExecutor, Parts, Prepared, total_loss
from parallel_core.engine.norm import Gathering, Number, clip_factor
from parallel_core.engine.p2p import Traffic
from parallel_core.engine.scaled_gradients import marked, rescaled
from parallel_core.engine.stage import Batch
from parallel_core.engine.versions import WeightVersions, views_of_weights
from parallel_core.observe.progress import Progress
from parallel_core.observe.recorder import LANE_COLLECTIVE, LANE_HOST
from parallel_core.observe.scope import Scope
from parallel_core.schedule.ir import Kind, Op
from parallel_core.schedule.send_completion import Key, receipts
from parallel_core.schedule.stream import Window, Windows
from parallel_core.spec import TrainSpec


class Staleness(NamedTuple):
    """Number of updates to a stage's weights between the forward of a micro-batch and the update by its gradient."""

    mean: float
    most: int


@dataclass
class TotalStaleness:
    """The staleness of `steps` steps together, in the room of one: a run may have millions."""

    steps: int = 0
    _sum: float = 0.0
    _most: int = 0

    def add(self, step: Staleness) -> None:
        """Adds that of one step."""
        self.steps, self._sum, self._most = self.steps + 1, self._sum + step.mean, max(self._most, step.most)

    def whole(self) -> Staleness:
        """Returns the mean over the steps added, of which there must be one, and their maximum."""
        return Staleness(self._sum / self.steps, self._most)


class _Step(NamedTuple):
    """A rank's part of a step, prepared for execution."""

    program: list[Prepared]
    traffic: Traffic
    ahead: int
    """Number of later steps some of whose micro-batches already go forward in this one."""


class StreamExecutor(BaseExecutor):
    """Executes the windows of a stream, step after step; `here` is this rank's pipeline rank."""

    def __init__(
        self, windows: Windows, here: int, parts: Parts, scope: Scope, progress: Progress, train: TrainSpec
    ) -> None:
        super().__init__(parts, scope, progress, train)
        self._runs |= {Kind.STASH: self._stash, Kind.DROP: self._drop}
        self._windows, self._here = windows, here
        self.versions = WeightVersions(parts.chunks.flat, scope)
        self._saved_as_views = {
            number for number, stage in self._stages.items() if any(map(views_of_weights, stage.layers))
        }
        self._steps: dict[Window, _Step] = {}
        self._read: dict[int, int] = {}
        """Micro-batch -> number of updates that the weights of its forward had received."""
        self._ages: list[int] = []
        self._squares = torch.zeros(())
        self._updates = 0
        self._scale = parts.loss_scale

    def ahead(self, step: int, steps: int) -> int:
        """Returns the number of later steps some of whose micro-batches already go forward in step `step` of a stream
        of `steps`."""
        return self._step(step, steps).ahead

    def run(self, step: int, steps: int, batches: Sequence[Batch]) -> Gathering:
        """Runs step `step` of a stream of `steps` steps; `batches`: of this step and of the `ahead` next ones."""
        now, links, start = self._step(step, steps), self._parts.links, self._scope.mark()
        if step == 0:
            self._fill(batches[0].step)
            links.expect(now.traffic)
        if step + 1 < steps:
            links.expect(self._step(step + 1, steps).traffic)
        links.begin_step(now.traffic)
        self._parts.chunks.begin_step(batches)
        self._ages, self._updates = [], 0
        self._scope.micro_batch = -1
        self._scope.span(Kind.SETUP, LANE_HOST, start)
        self._walk(batches[0].step, now.program)
        if step + 1 == steps:
            links.end_step()
        return self._end(batches[0].step)

    @property
    def staleness(self) -> Staleness:
        """Staleness of the gradients of the last step run."""
        return Staleness(sum(self._ages) / max(len(self._ages), 1), max(self._ages, default=0))

    def _fill(self, step: int) -> None:
        """Starts from an empty pipeline: the current weights become version 0."""
        self.versions.newest, self._base = 0, step * self._windows.per_step
        self._flat.grads.zero_()
        self._parts.reducer.begin_step()

    def _end(self, step: int) -> Gathering:
        """Starts gathering the step's totals, and renumbers micro-batches and versions to count from the next step."""
        size = self._windows.per_step
        done = {i: loss for i, loss in self._losses.items() if i < size}
        begun = self._parts.totals.begin(step, total_loss(done), self._squares / max(self._updates, 1))
        begun.loss_scale, begun.skipped = self._scale.value, self._scale.skipped
        self.versions.use_newest()
        for part in (self.versions, self._parts.chunks, self._parts.links):
            part.renumber(size)
        self._losses = {i - size: loss for i, loss in self._losses.items() if i >= size}
        self._read = {i - size: seen for i, seen in self._read.items()}
        self._base += size
        return begun

    def _step(self, step: int, steps: int) -> _Step:
        window = self._windows.window(step, steps)
        if window not in self._steps:
            program = window.programs[self._here]
            newest = max((op.micro_batch for op in program if op.kind is Kind.F), default=0)
            traffic = Traffic.of(program, self._proves(window))
            self._steps[window] = _Step(self._prepare(program), traffic, newest // self._windows.per_step)
        return self._steps[window]

    def _proves(self, window: Window) -> dict[Key, list[Key]]:
        """Returns `receipts` of the whole stream, with micro-batch ids counted from this step."""
        found, by = receipts(window.stream, self._here), window.first
        return {_earlier(key, by): [_earlier(sent, by) for sent in proven] for key, proven in found.items()}

    def _forward(self, op: Op) -> int:
        self._read[op.micro_batch] = self.versions.use(op.version)
        with self.versions.saving() if op.stage in self._saved_as_views else nullcontext():
            return super()._forward(op)

    def _backward(self, op: Op) -> int:
        """Runs the backward; an arrived gradient is rescaled to this stage's current loss scale, which may have changed
        since it arrived."""
        self.versions.use(op.version)
        came = Kind.RECV_GRAD, op.stage, op.micro_batch
        if self._scale.dynamic and came in self._arrived and op.stage + 1 not in self._stages:
            shape = self._parts.links.edge(op.stage + 1)
            self._arrived[came] = rescaled(self._arrived[came], shape, self._scale.value)
        self._ages.append(self.versions.updates - self._read.pop(op.micro_batch))
        return super()._backward(op)

    def _hand_on(self, op: Op, to: int, send: Kind, receive: Kind, tensor: Tensor) -> None:
        """As in `BaseExecutor`; in fp16 a gradient sent to another rank carries its loss scale."""
        if self._scale.dynamic and receive is Kind.RECV_GRAD and to not in self._stages:
            tensor = marked(tensor, self._scale.value)
        super()._hand_on(op, to, send, receive, tensor)

    def _stash(self, op: Op) -> int:
        self.versions.stash(op.version)
        return self._flat.values.nbytes

    def _drop(self, op: Op) -> int:
        self.versions.drop(op.version)
        return 0

    @torch.no_grad()
    def _optimise(self, op: Op) -> int:
        """Updates by the mean over the micro-batches since the last update, whose losses are parts of a step's loss.

        Skips the update where fp16 gradients overflowed on this stage, whose loss scale then falls. In fp16 the host
        waits for the norm, as the scale of the next backward depends on it.
        """
        parts, start = self._parts, self._scope.mark()
        parts.shared.sum()
        weight = self._windows.per_step / (op.version - self.versions.newest) / self._scale.value
        squares = parts.totals.squares() * weight**2
        self._squares = squares if not self._updates else self._squares + squares
        self._updates += 1
        clip: Number = 1.0
        taken = True
        if self._train.clip_norm is not None or self._scale.dynamic:
            norm = parts.stage_norm.read(squares) if self._scale.dynamic else parts.stage_norm.of(squares)
            clip = clip_factor(norm, self._train.clip_norm)
            taken = not self._scale.dynamic or self._scale.judge(float(norm))
            self._scope.span(Kind.NORM, LANE_COLLECTIVE, start)
        if taken:
            # Autograd would reject weights that change between forward and backward: `versions` keeps the right ones.
            with torch.autograd._unsafe_preserve_version_counter(self._flat.values):
                parts.optimizer.step(weight * clip)
        self.versions.updated(op.version, taken)
        self._flat.grads.zero_()
        parts.reducer.begin_step()
        return 0


def _earlier(key: Key, by: int) -> Key:
    kind, stage, micro_batch = key
    return kind, stage, micro_batch - by
