"""Walks one rank's program of a schedule value: one method for each kind of operation, no schedule by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from parallel_core.engine.chunks import Chunks
from parallel_core.engine.injected import Injected
from parallel_core.engine.norm import StepTotals, Totals
from parallel_core.engine.optimizer import FlatAdamW
from parallel_core.engine.p2p import Links
from parallel_core.engine.precision import LossScale
from parallel_core.engine.reduction import GradientReducer
from parallel_core.engine.shared import SharedGradients
from parallel_core.engine.stage import Batch
from parallel_core.observe.progress import Progress
from parallel_core.observe.recorder import LANE_COLLECTIVE, LANE_COMPUTE, LANE_HOST, LANE_P2P
from parallel_core.observe.scope import Scope
from parallel_core.schedule.ir import COLLECTIVES, COMPUTE, P2P, Kind, Op


class Parts(NamedTuple):
    """What an executor drives."""

    chunks: Chunks
    links: Links
    reducer: GradientReducer
    totals: StepTotals
    optimizer: FlatAdamW
    shared: SharedGradients
    loss_scale: LossScale
    faults: Injected


class _Step(NamedTuple):
    """An operation made ready: its text for a heartbeat, what runs it, and the lane of its span."""

    op: Op
    text: str
    run: Callable[[Op], int]
    lane: int


class Executor:
    """Runs `program` once a step. `clip` is the largest global gradient norm (None = as it comes)."""

    def __init__(
        self, program: Sequence[Op], parts: Parts, scope: Scope, progress: Progress, clip: float | None
    ) -> None:
        self._parts, self._scope, self._progress, self._clip = parts, scope, progress, clip
        self._stages, self._flat = parts.chunks.stages, parts.chunks.flat
        self._arrived: dict[tuple[Kind, int, int], Tensor] = {}
        self._made: dict[tuple[Kind, int, int], Tensor] = {}
        self._loss: Tensor | None = None
        self._result = Totals(0.0, 0.0)
        self._last = {op.kind: op for op in program}
        self._runs: dict[Kind, Callable[[Op], int]] = {
            Kind.F: self._forward,
            Kind.BW: self._backward,
            Kind.B: self._backward,
            Kind.W: self._weights,
            Kind.PAIR: self._pair,
            Kind.SEND_ACT: self._send,
            Kind.SEND_GRAD: self._send,
            Kind.RECV_ACT: self._receive,
            Kind.RECV_GRAD: self._receive,
            Kind.ALLREDUCE: self._reduce,
            Kind.REDUCE_SCATTER: self._reduce,
            Kind.GATHER: self._gather,
            Kind.OPT_STEP: self._optimise,
        }
        for kind in (Kind.F, Kind.BW, Kind.B, Kind.W):  # a pair is made of these
            self._runs[kind] = parts.faults.around(self._runs[kind])
        self._steps = [_Step(op, str(op), self._runs[op.kind], _lane(op.kind)) for op in program]

    def run(self, batch: Batch) -> Totals:
        """One training step on this rank's micro-batches; the totals are the same on every rank."""
        self._loss = None
        start = self._scope.mark()
        self._flat.grads.zero_()
        self._parts.chunks.begin_step(batch)
        self._parts.reducer.begin_step()
        self._parts.links.begin_step()
        self._scope.micro_batch = -1
        self._scope.span(Kind.SETUP, LANE_HOST, start)
        for op, text, run, lane in self._steps:
            self._progress.at(batch.step, text)
            self._do(op, run, lane)
        self._parts.links.end_step()
        return self._result

    def _do(self, op: Op, run: Callable[[Op], int], lane: int) -> None:
        """Runs it at its place, and records its span."""
        scope = self._scope
        scope.stage, scope.micro_batch = op.stage, op.micro_batch
        start = scope.mark()
        moved = run(op)
        scope.stage, scope.micro_batch = op.stage, op.micro_batch
        scope.span(op.kind, lane, start, moved)

    def _pair(self, op: Op) -> int:
        """Its forward, then its backward, each with a span inside that of the pair."""
        for part in op.parts():
            self._do(part, self._runs[part.kind], LANE_COMPUTE)
        return 0

    def _forward(self, op: Op) -> int:
        stage, x = self._stages[op.stage], self._arrived.pop((Kind.RECV_ACT, op.stage, op.micro_batch), None)
        out = stage.forward(op.micro_batch, x)
        if stage.is_last:
            self._loss = out.double() if self._loss is None else self._loss + out
        else:
            self._hand_on(op, op.stage + 1, Kind.SEND_ACT, Kind.RECV_ACT, out)
        return 0

    def _backward(self, op: Op) -> int:
        stage, grad = self._stages[op.stage], self._arrived.pop((Kind.RECV_GRAD, op.stage, op.micro_batch), None)
        walk = stage.backward if op.kind is Kind.BW else stage.backward_input
        out = walk(op.micro_batch, grad)
        if out is not None:
            self._hand_on(op, op.stage - 1, Kind.SEND_GRAD, Kind.RECV_GRAD, out)
        return 0

    def _weights(self, op: Op) -> int:
        self._stages[op.stage].backward_weights(op.micro_batch)
        return 0

    def _hand_on(self, op: Op, to: int, send: Kind, receive: Kind, tensor: Tensor) -> None:
        """To stage `to`: at once where it is on this rank, else when the program sends it."""
        if to in self._stages:
            self._arrived[receive, to, op.micro_batch] = tensor
        else:
            self._made[send, op.stage, op.micro_batch] = tensor

    def _send(self, op: Op) -> int:
        tensor = self._made.pop((op.kind, op.stage, op.micro_batch))
        self._parts.links.send(op, tensor)
        return tensor.nbytes

    def _receive(self, op: Op) -> int:
        tensor = self._parts.links.receive(op)
        self._arrived[op.kind, op.stage, op.micro_batch] = tensor
        if op.kind is Kind.RECV_ACT:
            self._scope.kept(tensor)
        return tensor.nbytes

    def _reduce(self, op: Op) -> int:
        """Of the first stage of a rank it waits for the buckets of all: every backward is behind it."""
        return self._parts.reducer.finish()

    def _gather(self, op: Op) -> int:
        """Parameters that other replicas have updated: of all stages with the last."""
        return self._parts.reducer.gather() if op is self._last[op.kind] else 0

    def _optimise(self, op: Op) -> int:
        """Totals of the step (a collective, so a span of its own), clipping, update: of all stages with the last.

        No update where fp16 overflowed, on any rank.
        """
        if op is not self._last[op.kind]:
            return 0
        parts, start = self._parts, self._scope.mark()
        parts.shared.sum()
        totals, scale = parts.totals.gather(self._loss), parts.loss_scale.value
        self._scope.span(Kind.NORM, LANE_COLLECTIVE, start)
        norm, taken = totals.grad_norm / scale, parts.loss_scale.judge(totals.grad_norm)
        self._result = Totals(totals.loss, norm, scale, parts.loss_scale.skipped, totals.stop)
        if taken:
            clip = 1.0 if self._clip is None or not norm > self._clip else self._clip / (norm + 1e-6)
            parts.optimizer.step(clip / scale)
        return 0


def _lane(kind: Kind) -> int:
    if kind in COMPUTE:
        return LANE_COMPUTE
    if kind in P2P:
        return LANE_P2P
    return LANE_COLLECTIVE if kind in COLLECTIVES else LANE_HOST
