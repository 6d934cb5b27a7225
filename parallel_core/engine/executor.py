"""Executes one rank's program of a schedule, with one method for each kind of operation; knows no schedule by name.

`Executor` is for schedules that flush, `stream.StreamExecutor` for those that do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from parallel_core.engine.chunks import Chunks
from parallel_core.engine.injected import Injected
from parallel_core.engine.norm import Gathering, StageNorm, StepTotals, Totals, clip_factor
from parallel_core.engine.optimizer import FlatOptimizer
from parallel_core.engine.p2p import Links, Traffic
from parallel_core.engine.precision import LossScale
from parallel_core.engine.reduction import Reducer
from parallel_core.engine.shared_gradients import SharedGradients
from parallel_core.engine.stage import Batch, Stage
from parallel_core.observe.progress import Progress
from parallel_core.observe.recorder import LANE_COLLECTIVE, LANE_COMPUTE, LANE_HOST, LANE_P2P, lane_of
from parallel_core.observe.scope import Scope
from parallel_core.schedule.ir import Kind, Op
from parallel_core.spec import TrainSpec


class Parts(NamedTuple):
    """The components that an executor drives."""

    chunks: Chunks
    links: Links
    reducer: Reducer
    totals: StepTotals
    stage_norm: StageNorm
    optimizer: FlatOptimizer
    shared: SharedGradients
    loss_scale: LossScale
    faults: Injected


class Prepared(NamedTuple):
    """An operation ready to run: its text (for heartbeats and profiler annotations), its method, and the lane of its
    span."""

    op: Op
    text: str
    run: Callable[[Op], int]
    lane: int


class BaseExecutor:
    """Executes operations in program order; subclasses define what a training step is."""

    def __init__(self, parts: Parts, scope: Scope, progress: Progress, train: TrainSpec) -> None:
        self._parts, self._scope, self._progress, self._train = parts, scope, progress, train
        self._stages, self._flat = parts.chunks.stages, parts.chunks.flat
        self._arrived: dict[tuple[Kind, int, int], Tensor] = {}
        self._made: dict[tuple[Kind, int, int], Tensor] = {}
        self._losses: dict[int, Tensor] = {}
        """Micro-batch -> its loss, where this rank computes it."""
        self._inside: dict[Op, list[Op]] = {}
        """PAIR -> the sends of its forward's output."""
        self._base = 0
        """What the weight versions of the program are relative to; spans record absolute numbers."""
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
        for kind in (Kind.F, Kind.BW, Kind.B, Kind.W):  # a PAIR runs these, so faults apply to it, too
            self._runs[kind] = parts.faults.around(self._runs[kind])

    def _prepare(self, program: Sequence[Op]) -> list[Prepared]:
        """Prepares a program. The output of a PAIR's forward is sent within the PAIR (`_pair`), so those sends are left
        out."""
        self._inside |= _sent_inside(program)
        early = {send for sends in self._inside.values() for send in sends}
        return [Prepared(op, str(op), self._runs[op.kind], lane_of(op.kind)) for op in program if op not in early]

    def _walk(self, step: int, prepared: Sequence[Prepared]) -> None:
        for op, text, run, lane in prepared:
            self._progress.at(step, text)
            with self._scope.named(text):
                self._do(op, run, lane)
        self._progress.at(step, "work after the step")  # else a later fault would be said to be in the last operation

    def _do(self, op: Op, run: Callable[[Op], int], lane: int) -> None:
        """Runs the operation with its stage, micro-batch and version set in the scope, and records its span."""
        scope = self._scope
        scope.stage, scope.micro_batch, scope.version = op.stage, op.micro_batch, self._base + op.version
        start = scope.mark()
        moved = run(op)
        scope.stage, scope.micro_batch = op.stage, op.micro_batch
        scope.span(op.kind, lane, start, moved)

    def _pair(self, op: Op) -> int:
        """Runs the forward, then the backward of a PAIR, each with its own span inside that of the pair.

        The forward's output is sent while the backward computes (DeepSeek-AI 2024, section 3.2.1), and the inputs of
        the next pair arrive meanwhile, as receives are posted ahead. The two halves run one after the other: a device
        has one compute stream here.
        """
        forward, backward = op.parts()
        self._do(forward, self._runs[forward.kind], LANE_COMPUTE)
        for send in self._inside.get(op, ()):
            self._do(send, self._send, LANE_P2P)
        self._do(backward, self._runs[backward.kind], LANE_COMPUTE)
        return 0

    def _forward(self, op: Op) -> int:
        stage, x = self._stages[op.stage], self._arrived.pop((Kind.RECV_ACT, op.stage, op.micro_batch), None)
        out = self._pass(stage, op.micro_batch, x)
        if stage.is_last:
            self._losses[op.micro_batch] = out
        else:
            self._hand_on(op, op.stage + 1, Kind.SEND_ACT, Kind.RECV_ACT, out)
        return 0

    def _pass(self, stage: Stage, micro_batch: int, x: Tensor | None) -> Tensor:
        """Runs the forward of a stage."""
        return stage.forward(micro_batch, x)

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
        """Passes the tensor to stage `to`: directly where that is on this rank, otherwise it is kept until the program
        sends it."""
        if to in self._stages:
            self._arrived[receive, to, op.micro_batch] = tensor
        else:
            self._made[send, op.stage, op.micro_batch] = tensor

    def _send(self, op: Op) -> int:
        tensor = self._made.pop((op.kind, op.stage, op.micro_batch))
        return self._parts.links.send(op, tensor)

    def _receive(self, op: Op) -> int:
        tensor = self._parts.links.receive(op)
        self._arrived[op.kind, op.stage, op.micro_batch] = tensor
        if op.kind is Kind.RECV_ACT:
            self._scope.kept(tensor)
        return tensor.nbytes

    def _reduce(self, op: Op) -> int:
        """Finishes gradient reduction. The first such operation of a rank waits for the buckets of all its stages,
        since all its backwards come before it."""
        return self._parts.reducer.finish()

    def _gather(self, op: Op) -> int:
        raise NotImplementedError

    def _optimise(self, op: Op) -> int:
        raise NotImplementedError


class Executor(BaseExecutor):
    """Runs `program` once per step, with a flush: the optimizer steps when all gradients of the step are complete."""

    def __init__(
        self,
        program: Sequence[Op],
        traffic: Traffic,
        parts: Parts,
        scope: Scope,
        progress: Progress,
        train: TrainSpec,
    ) -> None:
        super().__init__(parts, scope, progress, train)
        self._program, self._traffic = self._prepare(program), traffic
        self._last = {op.kind: op for op in program}
        self._step = -1
        self._begun: Gathering | None = None
        """The totals of the step, from its last OPT_STEP on."""

    def run(self, batch: Batch) -> Totals:
        """Runs one training step on this rank's micro-batches; the totals are the same on every rank."""
        self._step = batch.step
        self._losses.clear()
        start = self._scope.mark()
        with self._scope.named(Kind.SETUP.name):
            self._flat.grads.zero_()
            self._parts.chunks.begin_step([batch])
            self._parts.reducer.begin_step()
            self._parts.links.begin_step(self._traffic)
            self._parts.links.expect(self._traffic)
        self._scope.micro_batch = -1
        self._scope.span(Kind.SETUP, LANE_HOST, start)
        self._walk(batch.step, self._program)
        self._parts.links.end_step()
        return self._totals()

    def _totals(self) -> Totals:
        """Returns the totals of the step, for which the host waits, and adapts the loss scale to them."""
        assert self._begun is not None
        scale, total = self._parts.loss_scale, self._parts.totals.result(self._begun)
        self._begun, norm, value = None, total.grad_norm / scale.value, scale.value
        scale.judge(total.grad_norm)
        return total._replace(grad_norm=norm, loss_scale=value, skipped=scale.skipped)

    def _gather(self, op: Op) -> int:
        """Gathers the parameters updated by other replicas: those of all stages, at the last such operation of the
        step."""
        return self._parts.reducer.gather() if op is self._last[op.kind] else 0

    def _optimise(self, op: Op) -> int:
        """Computes the step's norm (a collective, so with its own span), clips, and updates: all stages at the last
        operation.

        Skips the update where fp16 gradients overflowed on any rank. On a GPU the host waits for none of this.
        """
        if op is not self._last[op.kind]:
            return 0
        parts, start = self._parts, self._scope.mark()
        with self._scope.named(Kind.NORM.name):
            parts.shared.sum()
            squares, scale = parts.totals.squares(), parts.loss_scale.value
            self._begun = parts.totals.begin(self._step, total_loss(self._losses), squares)
            norm = parts.totals.norm(self._begun)
            bounded = norm if self._train.clip == "global" else parts.stage_norm.of(squares)
        self._scope.span(Kind.NORM, LANE_COLLECTIVE, start)
        factor = clip_factor(bounded / scale, self._train.clip_norm) / scale
        parts.optimizer.step(factor, parts.loss_scale.overflowed(norm))
        return 0


def total_loss(losses: Mapping[int, Tensor]) -> Tensor | None:
    """Returns the sum of the losses, added in order of arrival; None where there is none."""
    total = None
    for loss in losses.values():
        total = loss.double() if total is None else total + loss
    return total


def _sent_inside(program: Sequence[Op]) -> dict[Op, list[Op]]:
    """Returns PAIR -> the sends of its forward's output, which follow it in the program."""
    found: dict[Op, list[Op]] = {}
    made: dict[tuple[int, int], Op] = {}
    for op in program:
        if op.kind is Kind.PAIR:
            made[op.stage, op.micro_batch], found[op] = op, []
        elif op.kind is Kind.SEND_ACT and (pair := made.get((op.stage, op.micro_batch))) is not None:
            found[pair].append(op)
    return found
