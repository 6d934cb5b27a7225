"""Walks the programs of a schedule that never flushes (`schedule.stream`): the pipeline stays full from step to step.

Every stage updates its weights on its own, and keeps the versions that micro-batches under way still need. Nobody waits
for the others at the end of a step: its totals are gathered beside the steps that follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from parallel_core.engine.executor import Parts, Prepared, Walker, total_loss
from parallel_core.engine.norm import Gathering, clip_factor
from parallel_core.engine.p2p import Traffic
from parallel_core.engine.scaled import marked, rescaled
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
    """Updates that a stage's weights had seen between the forward of a micro-batch and the update by its gradient."""

    mean: float
    most: int


class _Step(NamedTuple):
    """A rank's part of a step, made ready."""

    program: list[Prepared]
    traffic: Traffic
    ahead: int
    """Steps to come whose micro-batches go forward in it."""


class StreamExecutor(Walker):
    """Runs the windows of a stream, step after step; `here` is this rank's pipeline rank."""

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
        """Micro-batch -> updates that the weights of its forward had seen."""
        self._ages: list[int] = []
        self._squares = torch.zeros(())
        self._updates = 0
        self._scale = parts.loss_scale

    def ahead(self, step: int, steps: int) -> int:
        """Steps behind step `step` of a stream of `steps` steps whose micro-batches already go forward in it."""
        return self._step(step, steps).ahead

    def run(self, step: int, steps: int, batches: Sequence[Batch]) -> Gathering:
        """Step `step` of a stream of `steps` steps; `batches` are that of this step and of as many as it is `ahead`."""
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
        """Of the gradients of the step that ran last."""
        return Staleness(sum(self._ages) / max(len(self._ages), 1), max(self._ages, default=0))

    def _fill(self, step: int) -> None:
        """The pipeline is empty: version 0 is what is there."""
        self.versions.newest, self._base = 0, step * self._windows.per_step
        self._flat.grads.zero_()
        self._parts.reducer.begin_step()

    def _end(self, step: int) -> Gathering:
        """Sends this rank's part of the totals, and lets numbers count from the next step."""
        size = self._windows.per_step
        done = {i: loss for i, loss in self._losses.items() if i < size}
        begun = self._parts.totals.begin(step, total_loss(done), self._squares / max(self._updates, 1))
        begun = begun._replace(loss_scale=self._scale.value, skipped=self._scale.skipped)
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
        """What the receives of the whole stream prove, in the numbers of this step."""
        found, by = receipts(window.stream, self._here), window.first
        return {_earlier(key, by): [_earlier(sent, by) for sent in proven] for key, proven in found.items()}

    def _forward(self, op: Op) -> int:
        self._read[op.micro_batch] = self.versions.use(op.version)
        with self.versions.saving() if op.stage in self._saved_as_views else nullcontext():
            return super()._forward(op)

    def _backward(self, op: Op) -> int:
        """The gradient enters with the scale that this stage has now: it may have changed since that came."""
        self.versions.use(op.version)
        came = Kind.RECV_GRAD, op.stage, op.micro_batch
        if self._scale.dynamic and came in self._arrived and op.stage + 1 not in self._stages:
            shape = self._parts.links.edge(op.stage + 1)
            self._arrived[came] = rescaled(self._arrived[came], shape, self._scale.value)
        self._ages.append(self.versions.updates - self._read.pop(op.micro_batch))
        return super()._backward(op)

    def _hand_on(self, op: Op, to: int, send: Kind, receive: Kind, tensor: Tensor) -> None:
        """A gradient that leaves the rank says which scale it has."""
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
        """Update by the mean over the micro-batches of the round, whose losses are parts of that of a step; none where
        fp16 overflowed on this stage, whose scale then falls."""
        parts, start = self._parts, self._scope.mark()
        parts.shared.sum()
        weight = self._windows.per_step / (op.version - self.versions.newest) / self._scale.value
        squares = parts.totals.squares() * weight**2
        self._squares = squares if not self._updates else self._squares + squares
        self._updates += 1
        clip, taken = 1.0, True
        if self._train.clip_norm is not None or self._scale.dynamic:
            norm = parts.stage_norm.of(squares)
            clip, taken = clip_factor(norm, self._train.clip_norm), self._scale.judge(norm)
            self._scope.span(Kind.NORM, LANE_COLLECTIVE, start)
        if taken:
            # Autograd is right that weights change between a forward and its backward: `versions` answers for that.
            with torch.autograd._unsafe_preserve_version_counter(self._flat.values):
                parts.optimizer.step(weight * clip)
        self.versions.updated(op.version, taken)
        self._flat.grads.zero_()
        parts.reducer.begin_step()
        return 0


def _earlier(key: Key, by: int) -> Key:
    kind, stage, micro_batch = key
    return kind, stage, micro_batch - by
