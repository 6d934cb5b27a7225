"""The held-out loss: the mean loss of the last samples of the corpus, which are never trained on, every k steps.

Only forwards run, without dropout and with the running statistics of batch norms, on the stages as they stand after the
step: nothing that training depends on changes. The samples are taken in rounds of at most a global batch, so no rank
receives more at once than in a step. It happens between steps, and its time is that of none; of a pipeline that never
flushes only where it is empty anyway (`rules.train.check_evaluations`).
"""

from __future__ import annotations

import time
from typing import NamedTuple

from torch import Tensor

from parallel_core.data.held_out import HeldOutBatches
from parallel_core.engine.exchange import Exchange
from parallel_core.engine.executor import BaseExecutor, Prepared, total_loss
from parallel_core.engine.p2p import Traffic
from parallel_core.engine.stage import Batch, Stage
from parallel_core.engine.trainer import Trainer
from parallel_core.observe.observed_steps import is_nth_or_last
from parallel_core.schedule import plain
from parallel_core.schedule.forward_only import forward_only
from parallel_core.schedule.ir import AHEAD, Op
from parallel_core.schedule.passes.replicate import replicate


class Evaluated(NamedTuple):
    """The held-out loss after `step`, the same on every rank; `seconds`: what it took on this one."""

    step: int
    loss: float
    seconds: float


class BrokenOff(Exception):
    """Some rank was asked to stop during an evaluation; raised on all of them."""


class Evaluation:
    """Evaluates the held-out loss: every rank calls `after_step` after the same steps."""

    def __init__(self, trainer: Trainer, exchange: Exchange) -> None:
        spec = trainer.spec
        self._trainer, self._exchange = trainer, exchange
        self._batches = HeldOutBatches(spec, trainer.reader.sampler.dataset)
        self._executor = _ForwardExecutor(trainer)

    def after_step(self, step: int, *, drained: bool, last: bool = False) -> Evaluated | None:
        """Evaluates after `step` if it is due, or the `last` one of a run that leaves early, and no rank is at an
        earlier step (`drained`); else returns None.

        Raises BrokenOff where a rank is asked to stop meanwhile.
        """
        spec = self._trainer.spec
        if not ((last or is_nth_or_last(spec, spec.train.eval_every, step)) and drained):
            return None
        return self._evaluated(step, to_its_end=False)

    def after_last_step(self) -> Evaluated:
        """Evaluates after the run's last step, to the end, whether or not a rank is asked to stop."""
        return self._evaluated(self._trainer.spec.train.steps - 1, to_its_end=True)

    def _evaluated(self, step: int, *, to_its_end: bool) -> Evaluated:
        self._trainer.device.synchronise()
        self._exchange.meet()  # what other ranks have yet to do of the step is no cost of the evaluation
        began = time.perf_counter()
        loss = 0.0
        for number in range(self._batches.rounds):
            mine = self._executor.run(step, self._batches, number)
            part, stops = self._exchange.totals([mine, float(self._trainer.stop.asked)])
            loss += part
            if stops and not to_its_end and number + 1 < self._batches.rounds:
                raise BrokenOff
        self._trainer.progress.at(step, "work after an evaluation")  # else a fault in a save would be said to be in it
        return Evaluated(step, loss, time.perf_counter() - began)


class _ForwardExecutor(BaseExecutor):
    """Runs the forwards of held-out micro-batches."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(trainer.parts, trainer.scope, trainer.progress, trainer.spec.train)
        self._trainer, split = trainer, trainer.spec.parallel
        self._here, self._plain = trainer.layout.pipeline_rank(trainer.rank), replicate(plain(split), split.dp)
        self._programs: dict[int, tuple[list[Prepared], Traffic]] = {}
        """By number of micro-batches."""

    def run(self, step: int, batches: HeldOutBatches, number: int) -> float:
        """Returns what this rank's forwards of a round add to the mean loss: 0 where it does not compute losses, or
        where another tensor rank counts them."""
        trainer, count = self._trainer, batches.micro_batches(number)
        program, traffic = self._program(count)
        mine = trainer.layout.micro_batches_of(trainer.place.place, trainer.place.replica)
        samples = trainer.reader.held_out(batches, number, tuple(i for i in mine if i < count))
        self._parts.chunks.begin_step([Batch(step, samples, 1.0 / batches.targets)])
        self._parts.links.begin_step(traffic)
        self._parts.links.expect(traffic)
        self._losses.clear()
        with trainer.scope.muted():  # its spans are those of no step
            self._walk(step, program)
        self._parts.links.end_step()
        loss = total_loss(self._losses) if trainer.place.tensor == 0 else None
        return 0.0 if loss is None else float(loss)

    def _program(self, count: int) -> tuple[list[Prepared], Traffic]:
        if count not in self._programs:
            program = forward_only(self._plain, count).programs[self._here]
            named = [op._replace(text=f"{op.text} of held-out samples") for op in self._prepare(program)]
            self._programs[count] = named, Traffic.of(program, {})
        return self._programs[count]

    def _pass(self, stage: Stage, micro_batch: int, x: Tensor | None) -> Tensor:
        return stage.evaluate(micro_batch, x)

    def _send(self, op: Op) -> int:
        """No message comes back that would prove that this one has arrived, so older ones are waited for. Their
        receivers need nothing that comes later here (`schedule.forward_only`)."""
        moved = super()._send(op)
        self._parts.links.wait_for_all_but(AHEAD)
        return moved
