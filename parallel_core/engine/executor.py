"""Walks one rank's program of a schedule value: one method for each kind of operation, no schedule by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from parallel_core.engine.distributed import Group
from parallel_core.engine.norm import StepTotals, Totals
from parallel_core.engine.optimizer import FlatAdamW
from parallel_core.engine.p2p import Links
from parallel_core.engine.reduction import GradientReducer
from parallel_core.engine.stage import Stage
from parallel_core.observe.progress import Progress
from parallel_core.observe.recorder import LANE_COLLECTIVE, LANE_COMPUTE, LANE_HOST, LANE_P2P
from parallel_core.observe.scope import Scope
from parallel_core.schedule.ir import COLLECTIVES, COMPUTE, P2P, Kind, Op

Batch = dict[int, Tensor]
"""Micro-batch id -> token ids (samples, seq + 1)."""


class Parts(NamedTuple):
    """What an executor drives."""

    stage: Stage
    links: Links
    reducer: GradientReducer
    totals: StepTotals
    optimizer: FlatAdamW
    tied: Group


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
        self._batch: Batch = {}
        self._arrived: dict[tuple[Kind, int], Tensor] = {}
        self._made: dict[tuple[Kind, int], Tensor] = {}
        self._loss: Tensor | None = None
        self._result = Totals(0.0, 0.0)
        self._stages = 1 + max(op.stage for op in program)
        last = [op for op in program if op.kind is Kind.BW]
        self._last_backward = last[-1] if last else None
        runs: dict[Kind, Callable[[Op], int]] = {
            Kind.F: self._forward,
            Kind.BW: self._backward,
            Kind.SEND_ACT: self._send,
            Kind.SEND_GRAD: self._send,
            Kind.RECV_ACT: self._receive,
            Kind.RECV_GRAD: self._receive,
            Kind.ALLREDUCE: self._reduce,
            Kind.OPT_STEP: self._optimise,
        }
        self._steps = [_Step(op, str(op), runs[op.kind], _lane(op.kind)) for op in program]

    def run(self, step: int, batch: Batch) -> Totals:
        """One training step on this rank's micro-batches; the totals are the same on every rank."""
        self._batch, self._loss = batch, None
        start = self._scope.mark()
        self._parts.stage.flat.grads.zero_()
        self._parts.links.begin_step()
        self._scope.micro_batch = -1
        self._scope.span(Kind.SETUP, LANE_HOST, start)
        for op, text, run, lane in self._steps:
            self._progress.at(step, text)
            self._scope.micro_batch = op.micro_batch
            start = self._scope.mark()
            moved = run(op)
            self._scope.span(op.kind, lane, start, moved)
        self._parts.links.end_step()
        return self._result

    def _forward(self, op: Op) -> int:
        tokens = self._batch[op.micro_batch]
        x = self._arrived.pop((Kind.RECV_ACT, op.micro_batch), None)
        stage = self._parts.stage
        targets = tokens[:, 1:].contiguous() if stage.is_last else None
        out = stage.forward(op.micro_batch, tokens[:, :-1] if x is None else x, targets)
        if stage.is_last:
            self._loss = out.double() if self._loss is None else self._loss + out
        else:
            self._made[Kind.SEND_ACT, op.micro_batch] = out
        return 0

    def _backward(self, op: Op) -> int:
        if op is self._last_backward:
            self._parts.reducer.arm()
        grad = self._parts.stage.backward(op.micro_batch, self._arrived.pop((Kind.RECV_GRAD, op.micro_batch), None))
        if grad is not None:
            self._made[Kind.SEND_GRAD, op.micro_batch] = grad
        return 0

    def _send(self, op: Op) -> int:
        self._parts.links.send(op, self._made.pop((op.kind, op.micro_batch)))
        return self._parts.links.bytes

    def _receive(self, op: Op) -> int:
        tensor = self._parts.links.receive(op)
        self._arrived[op.kind, op.micro_batch] = tensor
        if op.kind is Kind.RECV_ACT:
            self._scope.received(tensor)
        return self._parts.links.bytes

    def _reduce(self, op: Op) -> int:
        return self._parts.reducer.finish()

    def _optimise(self, op: Op) -> int:
        """Totals of the step (a collective, so a span of its own), clipping, update."""
        parts, start = self._parts, self._scope.mark()
        self._sum_tied()
        self._result = totals = parts.totals.gather(self._loss)
        self._scope.span(Kind.NORM, LANE_COLLECTIVE, start)
        if self._clip is not None and totals.grad_norm > self._clip:
            parts.stage.flat.grads.mul_(self._clip / (totals.grad_norm + 1e-6))
        parts.optimizer.step()
        return 0

    @torch.no_grad()
    def _sum_tied(self) -> None:
        """First and last stage each hold the embedding: both need the sum of their gradients."""
        if self._parts.tied is not None:
            dist.all_reduce(self._parts.stage.flat.named_grads()["embed.token.weight"], group=self._parts.tied)


def _lane(kind: Kind) -> int:
    if kind in COMPUTE:
        return LANE_COMPUTE
    if kind in P2P:
        return LANE_P2P
    return LANE_COLLECTIVE if kind in COLLECTIVES else LANE_HOST
