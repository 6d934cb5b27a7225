"""Reference for pipelines that never flush, and for clipping by stage: the same updates, applied by one process.

The replay walks the micro-batches in order on one rank that holds all layers. For each micro-batch it sets every
stage's weights to the version that the schedule's rule requires, computes the gradient, and lets each stage's own
optimizer (in NumPy) apply it to the newest weights. It uses no program, operation or rank of the engine under test.

A stage here is all that one place of the pipeline holds: under a schedule that flushes that may be several stages,
which are clipped by one factor and updated once a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.segments import Segment
from parallel_core.engine.trainer import Trainer
from parallel_core.layout import Layout
from parallel_core.learning_rate import rate_at
from parallel_core.spec import RunSpec
from tests.parallel_core import parity, ranks
from tests.parallel_core.gradients import named_grads
from tests.parallel_core.parity import Tensors, Trained


class _Stage:
    """One stage's optimizer, and the versions of its weights, keyed by the number of micro-batches applied so far."""

    def __init__(self, spec: RunSpec, first: Tensors) -> None:
        self.train, self.versions, self.newest = spec.train, {0: first}, 0
        self.per_step = spec.parallel.per_step
        self.mean = {name: np.zeros_like(value) for name, value in first.items()}
        self.square = {name: np.zeros_like(value) for name, value in first.items()}
        self.updates = 0
        self.gathered = {name: np.zeros_like(value) for name, value in first.items()}

    def add(self, grads: Tensors) -> None:
        """Accumulates the gradients of a micro-batch; `grads` may hold other layers, too."""
        for name, sum_ in self.gathered.items():
            sum_ += grads[name]

    def update(self, version: int) -> float:
        """The optimizer's update with the clipped mean gradient since the last one; returns the squared norm."""
        train, before = self.train, self.versions[self.newest]
        rate = rate_at(train, (version - 1) // self.per_step)
        grads = {name: sum_ / (version - self.newest) for name, sum_ in self.gathered.items()}
        self.gathered = {name: np.zeros_like(value) for name, value in before.items()}
        squared = sum(float(np.square(grads[name]).sum()) for name in before)
        norm, limit = np.sqrt(squared), train.clip_norm or np.inf
        clip = limit / (norm + 1e-6) if norm > limit else 1.0
        self.updates += 1
        of = self._sgd if train.optimizer == "sgd" else self._adamw
        self.versions[version] = {name: of(name, value, grads[name] * clip, rate) for name, value in before.items()}
        self.newest = version
        return squared

    def _sgd(self, name: str, value: np.ndarray, grad: np.ndarray, rate: float) -> np.ndarray:
        """As documented for torch.optim.SGD: the decay is part of the gradient; `mean` is the momentum."""
        train = self.train
        self.mean[name] = train.momentum * self.mean[name] + grad + train.weight_decay * value
        return np.asarray(value - rate * self.mean[name])

    def _adamw(self, name: str, value: np.ndarray, grad: np.ndarray, rate: float) -> np.ndarray:
        """Loshchilov and Hutter 2019."""
        train = self.train
        self.mean[name] = train.beta1 * self.mean[name] + (1 - train.beta1) * grad
        self.square[name] = train.beta2 * self.square[name] + (1 - train.beta2) * grad**2
        mean = self.mean[name] / (1 - train.beta1**self.updates)
        square = self.square[name] / (1 - train.beta2**self.updates)
        decayed = value * (1 - rate * train.weight_decay)
        return np.asarray(decayed - rate * mean / (np.sqrt(square) + train.eps))


def round_ends(spec: RunSpec, stage: int) -> list[int]:
    """The versions that a stage creates, starting with 0: one update per round of its replicas, and one at the end of
    each step. Under 2BW and schedules that flush there are only the latter.
    """
    split, replicas = spec.parallel, spec.parallel.copies[stage]
    size = split.per_step if split.flushes or split.schedule == "1f1b-2bw" else replicas
    total = split.per_step * parity.STEPS
    return [0, *(i for i in range(1, total + 1) if not i % split.per_step or not i % split.per_step % size)]


def version_of(spec: RunSpec, stage: int, micro_batch: int) -> int:
    """The version that a stage uses for the forward of a micro-batch, by the rules in the papers. Where a checkpoint is
    saved after every step, each step begins with an empty pipeline and the newest weights.
    """
    split = spec.parallel
    if spec.train.checkpoint_every == 1 and micro_batch >= split.per_step:
        begin = micro_batch // split.per_step * split.per_step
        return begin + version_of(spec, stage, micro_batch - begin)
    if split.flushes:
        return micro_batch // split.per_step * split.per_step
    if split.schedule == "1f1b-2bw":
        return max(0, micro_batch // split.per_step - 1) * split.per_step
    if split.schedule != "1f1b-vertical":
        return _present(spec, stage, micro_batch)
    of_all = set.intersection(*(set(round_ends(spec, s)) for s in range(split.pp)))
    return max(version for version in of_all if version <= _present(spec, 0, micro_batch))


def _present(spec: RunSpec, stage: int, micro_batch: int) -> int:
    """The newest version at a replica when it forwards `micro_batch`. As many micro-batches are in flight as there are
    devices from this stage on; those before them are done. The replica updates with the last of its own micro-batches
    in a round.
    """
    replicas, per_step = spec.parallel.copies[stage], spec.parallel.per_step
    mine = [i for i in range(micro_batch) if i % per_step % replicas == micro_batch % per_step % replicas]
    left = [i for i in mine if i > micro_batch - sum(spec.parallel.copies[stage:])]
    return max(end for end in round_ends(spec, stage) if end <= min([*left, micro_batch]))


def replay(
    spec: RunSpec, begin: Callable[[Trainer], object] = lambda trainer: None, corpora: Path | None = None
) -> Trained:
    """Runs the same steps in one process. `begin` is called with the trainer before the first."""
    alone = RunSpec.model_validate(
        spec.model_dump()
        | {
            "parallel": {
                "micro_batches": spec.parallel.per_step,
                # without a stash, activations are recomputed from other weights than those of the forward
                **(_recomputed(spec) if spec.parallel.schedule == "1f1b-naive" else {}),
            },
            "train": spec.train.model_dump() | {"clip": "global", "deterministic": False},
        }
    )
    return ranks.run(alone, _replayer(spec, begin, corpora), ranks.scratch())[0]


def _recomputed(spec: RunSpec) -> dict[str, Any]:
    return {name: getattr(spec.parallel, name) for name in ("recompute", "recompute_layers")}


def _replayer(spec: RunSpec, begin: Callable[[Trainer], object], corpora: Path | None) -> ranks.Work:
    def use(trainer: Trainer) -> Trained:
        begin(trainer)
        return _replayed(spec, trainer)

    def work(alone: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Trained:
        return ranks.with_trainer(alone, rank, meeting, folder, use, corpora)

    return work


def _replayed(spec: RunSpec, trainer: Trainer) -> Trained:
    layout, per_step = Layout.of(spec), spec.parallel.per_step
    before = parity._copy(trainer.flat.named())
    stages = [_Stage(spec, _held(spec, layout, place, before)) for place in range(layout.pp)]
    ends = [round_ends(spec, s) for s in range(len(stages))]
    losses, norms = [], []
    model = trainer.chunks.stages[0]
    model.segments = _cut(model.segments, [len(held) for held in layout.stage_units])
    for step in range(parity.STEPS):
        model.begin_step([trainer.reader.read(step)])
        loss, squares = 0.0, [list[float]() for _ in stages]
        for own in range(per_step):
            micro_batch = step * per_step + own
            trainer.flat.grads.zero_()
            _put(trainer, stages, partial(version_of, spec, micro_batch=micro_batch))
            loss += float(model.forward(own, None))
            if spec.parallel.schedule == "1f1b-naive":
                _put(trainer, stages, lambda s: stages[s].newest)
            model.backward(own, None)
            for s, stage in enumerate(stages):
                stage.add({name: grad.numpy() * per_step for name, grad in named_grads(trainer.flat).items()})
                if micro_batch + 1 in ends[s]:
                    squares[s].append(stage.update(micro_batch + 1))
        losses.append(loss)
        norms.append(float(np.sqrt(sum(map(np.mean, squares)))))
    after = {name: value for stage in stages for name, value in stage.versions[stage.newest].items()}
    return Trained([], before, after, losses, norms)


def _held(spec: RunSpec, layout: Layout, place: int, tensors: Tensors) -> Tensors:
    """Those of `tensors` that are parameters of the layers of a place."""
    units = spec.model.units()
    here = tuple(f"{units[i]}." for stage in layout.stages_of(place) for i in layout.stage_units[stage])
    return {name: value for name, value in tensors.items() if name.startswith(here)}


def _cut(segments: Sequence[Segment], lengths: Sequence[int]) -> tuple[Segment, ...]:
    """The segments, split at the borders between stages of `lengths` layers: a stage recomputes from the input it
    received in the forward, whatever has become of the previous stage's weights since.
    """
    stage_of = [stage for stage, length in enumerate(lengths) for _ in range(length)]
    units = zip(stage_of, ((unit, i) for i, segment in enumerate(segments) for unit in segment.units), strict=True)
    return tuple(
        Segment(tuple(unit for _, (unit, _) in group), segments[number].recompute)
        for (_, number), group in groupby(units, key=lambda held: (held[0], held[1][1]))
    )


def _put(trainer: Trainer, stages: list[_Stage], version: Callable[[int], int]) -> None:
    """Copies into the parameters the version that each stage is to use. The memory stays the same, so a backward whose
    saved tensors are views of parameters sees the values at the time of the backward.
    """
    values = {n: v for s, stage in enumerate(stages) for n, v in stage.versions[version(s)].items()}
    for slot in trainer.flat:
        slot.parameter.data.copy_(torch.from_numpy(values[slot.name]))
