"""fp16 in pipelines that never flush: every stage scales, overflows and skips by itself, as in a replay of the same
rules.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import manifest as manifests
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.norm import Totals
from parallel_core.engine.scaled_gradients import marked, rescaled
from parallel_core.engine.trainer import Trainer
from parallel_core.layout import Layout
from parallel_core.spec import RunSpec
from tests.parallel_core import delayed_updates, parity, ranks, test_checkpoint
from tests.parallel_core.delayed_updates import round_ends, version_of
from tests.parallel_core.gradients import named_grads

FIRST = {2: (2.0**18, 2.0**25), 3: (2.0**18, 2.0**21, 2.0**25)}
"""Initial loss scales of so many places: the last one's gradients overflow, and with them those of the stages before
it.
"""
TRAIN = {"precision": "fp16", "clip": "stage", "clip_norm": 0.3, "loss_scale_window": 3, "lr": 1e-3, "steps": 3}
Scales = list[list[tuple[float, int]]]
"""For each stage, after each step: its scale, and the number of updates skipped so far."""
CASES: list[dict[str, Any]] = [
    {"schedule": "1f1b-stash", "micro_batches": 4},
    {"schedule": "1f1b-naive", "micro_batches": 4},
    {"schedule": "1f1b-vertical", "micro_batches": 4},
    {"schedule": "1f1b-2bw", "micro_batches": 2},
]
MORE: list[dict[str, Any]] = [
    {"schedule": "1f1b-stash", "micro_batches": 4, "pp": 3},
    {"schedule": "1f1b-naive", "micro_batches": 4, "replicas": (2, 1)},
    {"schedule": "1f1b-vertical", "micro_batches": 4, "replicas": (1, 2)},
    {"schedule": "1f1b-2bw", "micro_batches": 4, "pp": 3},
]
"""All on three ranks."""


def spec_of(split: dict[str, Any], **train: Any) -> RunSpec:
    told = parity.TRAIN | TRAIN | train | {"warmup_steps": 1}
    rooms = {"model": parity.MODEL, "train": told, "parallel": {"pp": 2, **split}}
    return RunSpec.model_validate(rooms)


def begin(trainer: Trainer) -> None:
    """Sets each place's own initial scale."""
    trainer.loss_scale.value = FIRST[trainer.layout.stages][trainer.place.place]


def _observe(trainer: Trainer) -> Any:
    begin(trainer)
    totals = [trainer.step(step) for step in range(parity.STEPS)]
    return [total.loss for total in totals], [(total.loss_scale, total.skipped) for total in totals]


def _work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    return ranks.with_trainer(spec, rank, meeting, folder, _observe)


class _Stage(delayed_updates._Stage):
    """Its versions are master weights; an update with non-finite gradients leaves them unchanged."""

    def __init__(self, spec: RunSpec, first: parity.Tensors, scale: float) -> None:
        super().__init__(spec, first)
        self.scale, self.good, self.skipped = scale, 0, 0

    def update(self, version: int) -> float:
        scale, train = self.scale, self.train
        if not all(np.isfinite(sum_).all() for sum_ in self.gathered.values()):
            self.scale, self.good, self.skipped = scale * train.loss_scale_backoff, 0, self.skipped + 1
            self.gathered = {name: np.zeros_like(sum_) for name, sum_ in self.gathered.items()}
            self.versions[version], self.newest = self.versions[self.newest], version
            return float("inf")
        self.good += 1
        if self.good == train.loss_scale_window:
            self.scale, self.good = scale * train.loss_scale_growth, 0
        self.gathered = {name: sum_ / np.float32(scale) for name, sum_ in self.gathered.items()}
        return super().update(version)


def replayed(spec: RunSpec, trainer: Trainer) -> tuple[list[float], Scales]:
    layout, per_step, units = Layout.of(spec), spec.parallel.per_step, spec.model.units()
    before, model = parity._copy(trainer.flat.named()), trainer.chunks.stages[0]
    stages = []
    for held, scale in zip(layout.stage_units, FIRST[layout.stages], strict=True):
        names = [name for name in before if any(name.startswith(f"{units[i]}.") for i in held)]
        stages.append(_Stage(spec, {name: before[name] for name in names}, scale))
    for held, before_it, behind in zip(layout.stage_units[:-1], stages[:-1], stages[1:], strict=True):
        _join(model.layers[held[-1]], before_it, behind)
    losses, scales = [], []
    for step in range(parity.STEPS):
        model.begin_step([trainer.reader.read(step)])
        loss = 0.0
        for own in range(per_step):
            micro_batch = step * per_step + own
            trainer.flat.grads.zero_()
            _put(trainer, stages, [version_of(spec, s, micro_batch) for s in range(len(stages))])
            loss += float(model.forward(own, None))
            if spec.parallel.schedule == "1f1b-naive":
                _put(trainer, stages, [stage.newest for stage in stages])
            trainer.loss_scale.value = stages[-1].scale
            model.backward(own, None)
            for s, stage in enumerate(stages):
                stage.add({name: grad.numpy() * per_step for name, grad in named_grads(trainer.flat).items()})
                if micro_batch + 1 in round_ends(spec, s):
                    stage.update(micro_batch + 1)
        losses.append(loss)
        scales.append([(stage.scale, stage.skipped) for stage in stages])
    return losses, [list(of_stage) for of_stage in zip(*scales, strict=True)]


def _join(last: nn.Module, stage: _Stage, behind: _Stage) -> None:
    """Rescales the gradient that enters a stage, at its `last` layer, to that stage's loss scale."""

    def rescale(grad: Tensor) -> Tensor:
        return grad * (stage.scale / behind.scale)

    def follow(module: nn.Module, inputs: Any, out: Tensor) -> None:
        out.register_hook(rescale)

    last.register_forward_hook(follow)


def _put(trainer: Trainer, stages: list[_Stage], versions: list[int]) -> None:
    values = {n: v for stage, version in zip(stages, versions, strict=True) for n, v in stage.versions[version].items()}
    for slot in trainer.flat:
        slot.parameter.data = torch.from_numpy(values[slot.name]).to(slot.parameter.dtype)


def _replayer(spec: RunSpec) -> ranks.Work:
    def work(alone: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
        return ranks.with_trainer(alone, rank, meeting, folder, partial(replayed, spec))

    return work


@pytest.mark.parametrize("cases", [CASES, pytest.param(MORE, marks=pytest.mark.full)], ids=["two", "three"])
def test_equals_a_replay_with_a_scale_a_stage(cases: list[dict[str, Any]]) -> None:
    """The same scales after every step and the same skipped updates; losses equal within the roundoff of fp16."""
    specs = [spec_of(case) for case in cases]
    for spec, seen in zip(specs, ranks.run_many(specs, _work, ranks.scratch()), strict=True):
        split = {"micro_batches": spec.parallel.per_step}
        train = spec.train.model_dump() | {"clip": "global"}
        alone = RunSpec.model_validate({"model": parity.MODEL, "train": train, "parallel": split})
        losses, scales = ranks.run(alone, _replayer(spec), ranks.scratch())[0]
        layout = Layout.of(spec)
        want = [scales[layout.coords(rank).place] for rank in range(layout.world)]
        assert [of_rank[1] for of_rank in seen] == want, spec.parallel.schedule
        np.testing.assert_allclose(seen[0][0], losses, rtol=2e-3, err_msg=spec.parallel.schedule)
        assert scales[-1][-1][1] > 0, "the last stage overflowed"
        assert all(of_first != of_last for of_first, of_last in zip(scales[0], scales[-1], strict=True)), (
            "each stage has its own scale"
        )


def _saved(trainer: Trainer, folder: Path) -> list[Totals]:
    begin(trainer)
    return test_checkpoint.saved_in_passing(trainer, folder)


def test_resume_keeps_the_scales_of_all_stages(tmp_path: Path) -> None:
    """Bit for bit, including Adam's update counts."""
    saved = test_checkpoint.SAVED
    spec = spec_of(CASES[0], steps=test_checkpoint.END, checkpoint_every=saved)
    first, again = tmp_path / "first", tmp_path / "again"
    want = test_checkpoint.on_ranks(spec, partial(_saved, folder=first))
    got = test_checkpoint.on_ranks(spec, partial(test_checkpoint.resumed, folder=first, again=again))
    assert got[0] == want[0][saved:]
    kept = manifests.read(folders.path_of(first, saved)).scalars
    assert kept["loss_scale.value.0"] != kept["loss_scale.value.1"]
    assert kept["loss_scale.value"] == min(kept["loss_scale.value.0"], kept["loss_scale.value.1"])
    assert manifests.read(folders.path_of(again, saved)).scalars == kept


@pytest.mark.parametrize("shape", [(2, 3), (3, 5, 7), (1,)])
def test_a_message_says_its_scale(shape: tuple[int, ...]) -> None:
    grad = torch.randn(shape).half()
    message = marked(grad, 2.0**20)
    assert message.nbytes == grad.nbytes + 4
    assert torch.equal(rescaled(message.clone(), shape, 2.0**20), grad)
    assert torch.equal(rescaled(message, shape, 2.0**18), grad * 0.25)
