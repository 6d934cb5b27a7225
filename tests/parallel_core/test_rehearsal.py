"""A rehearsal goes through every stage of a rank without lasting effects: subsequent steps have the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.rehearsal import rehearse
from parallel_core.engine.trainer import Trainer
from parallel_core.spec import RunSpec
from tests.parallel_core.ranks import run, scratch, with_trainer

GPT = {"layers": 4, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64, "dropout": 0.1}
PIPE = {"pp": 2, "micro_batches": 4}
CASES: dict[str, dict[str, Any]] = {
    "1F1B, tied, fp16": {"model": {**GPT, "tied": True}, "parallel": PIPE, "train": {"precision": "fp16"}},
    "batch norms": {"model": {"kind": "resnet50", "width": 4}, "parallel": {**PIPE, "schedule": "gpipe"}},
    "ZB-V": {"parallel": {**PIPE, "schedule": "zb-v"}},
    "one micro-batch, replicas": {"parallel": {"pp": 2, "micro_batches": 1, "dp": 2}},
    "ZeRO-2, split backward": {"parallel": {**PIPE, "dp": 2, "zero": 2, "schedule": "zb-h1"}},
    "ZeRO-1, interleaved": {"parallel": {**PIPE, "dp": 2, "zero": 1, "schedule": "interleaved", "chunks": 2}},
    "tensor groups, recomputed": {"parallel": {**PIPE, "tp": 2, "recompute": "full"}},
    "replicas with three micro-batches and two": {
        "parallel": {"pp": 2, "replicas": [2, 1], "micro_batches": 5, "schedule": "1f1b"},
        "train": {"global_batch": 10},
    },
    "LSTM, stash": {
        "model": {"kind": "gnmt", "layers": 4, "hidden": 16, "seq": 8, "vocab": 32},
        "parallel": {**PIPE, "schedule": "1f1b-stash"},
    },
}
QUICK = {"1F1B, tied, fp16", "ZeRO-2, split backward", "replicas with three micro-batches and two"}


def spec_of(name: str) -> RunSpec:
    case = CASES[name]
    model = case.get("model", GPT)
    clip = "stage" if case["parallel"].get("schedule", "").startswith("1f1b-") else "global"
    train = {"steps": 4, "warmup_steps": 1, "global_batch": 8, "clip": clip, "eval_every": 4, **case.get("train", {})}
    return RunSpec.model_validate({"model": model, "parallel": case["parallel"], "train": train})


def _losses(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> list[tuple[float, float]]:
    def use(trainer: Trainer) -> list[tuple[float, float]]:
        if (folder / "rehearses").exists():
            rehearse(trainer, 0)
        known = [totals for step in range(spec.train.steps) for totals in trainer.advance(step)]
        known += trainer.runner.settle()
        return [(totals.loss, totals.grad_norm) for totals in known]

    return with_trainer(spec, rank, meeting, folder, use)


@pytest.mark.parametrize(("every", "kinds"), [(0, set()), (4, {False})])
def test_forwards_without_gradients_are_rehearsed_where_they_will_run(every: int, kinds: set[bool]) -> None:
    spec = RunSpec.model_validate({"model": GPT, "train": {"steps": 4, "warmup_steps": 1, "eval_every": every}})

    def use(trainer: Trainer) -> set[bool]:
        (stage,) = trainer.chunks.stages.values()
        head, seen = stage.layers[-1], set[bool]()
        head.register_forward_pre_hook(lambda *_: seen.add(torch.is_grad_enabled()))
        rehearse(trainer, 0)
        return seen

    def work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> set[bool]:
        return with_trainer(spec, rank, meeting, folder, use)

    assert run(spec, work, scratch()) == [{True} | kinds]


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.full) for n in CASES])
def test_nothing_of_it_stays(name: str, tmp_path: Path) -> None:
    plain = run(spec_of(name), _losses, tmp_path)
    (tmp_path / "rehearses").touch()
    assert run(spec_of(name), _losses, tmp_path) == plain
    assert len(plain[0]) == 4
