"""Ranks that share a GPU communicate through the host; tested here with CPU tensors that are copied in the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from parallel_core.engine import collectives, host_staging
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.trainer import Trainer
from parallel_core.spec import RunSpec
from tests.parallel_core.ranks import run, with_trainer

SPLITS: dict[str, dict[str, Any]] = {
    "DDP": {"dp": 2},
    "ZeRO-2": {"dp": 2, "zero": 2},
    "ZeRO-3": {"dp": 2, "zero": 3},
    "tensor, sequence": {"tp": 2, "sequence": True},
    "tensor by columns": {"tp": 2, "tensor_split": "columns"},
    "1F1B, tied": {"pp": 2, "schedule": "1f1b", "micro_batches": 4},
    "ZB-V": {"pp": 2, "schedule": "zb-v", "micro_batches": 4},
    "stash": {"pp": 2, "schedule": "1f1b-stash", "micro_batches": 4},
}


def spec_of(name: str) -> RunSpec:
    model = {"layers": 4, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64, "tied": "tied" in name}
    train = {"global_batch": 8, "clip": "stage" if name == "stash" else "global"}
    return RunSpec.model_validate({"model": model, "parallel": SPLITS[name], "train": train})


def _train(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    def steps(trainer: Trainer) -> Any:
        losses = [trainer.step(number).loss for number in range(3)]
        return losses, [buffer.clone() for buffer in trainer.flat.stores], copies[0]

    copies = [0]
    original = host_staging.out_of

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        copies[0] += 1
        return original(tensor)

    host_staging.out_of = counted
    try:
        return with_trainer(spec, rank, meeting, folder, steps)
    finally:
        host_staging.out_of = original


def _train_staged(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    collectives.host_staging.is_staged = lambda tensor, group: True
    return _train(spec, rank, meeting, folder)


@pytest.mark.parametrize("name", SPLITS)
def test_what_goes_through_the_host_trains_the_same_bits(name: str, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "staged").mkdir()
    plain = run(spec_of(name), _train, tmp_path / "plain")
    through = run(spec_of(name), _train_staged, tmp_path / "staged")
    for (losses, weights, none), (other, others, copies) in zip(plain, through, strict=True):
        assert losses == other and none == 0 < copies
        assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))


def test_a_second_wait_keeps_what_was_done_since() -> None:
    class Over:
        def wait(self) -> bool:
            return True

    target = torch.zeros(3)
    work = host_staging.Staged(Over(), torch.ones(3), target)
    assert work.wait() and target.sum() == 3
    target.mul_(2)
    assert work.wait() and target.sum() == 6
