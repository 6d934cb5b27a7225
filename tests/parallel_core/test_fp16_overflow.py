"""Whether fp16 overflows depends on the size of the micro-batch, and on nothing else in the layout but `fully_shard`.

The weight gradient of one micro-batch is a 16-bit number (its sum over micro-batches has 32 bits). It grows with the
number of samples, so at the same loss scale a large micro-batch overflows where small ones do not. A run that is
resumed with another micro-batch size may therefore skip other steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from parallel_core.engine.device import open_device
from parallel_core.engine.distributed import Groups, Rendezvous
from parallel_core.engine.trainer import Trainer
from parallel_core.observe.progress import Progress
from parallel_core.spec import RunSpec
from parallel_core.tensor.weights import WeightGradient
from tests.parallel_core import ranks

MODEL = {"layers": 4, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64}
TRAIN = {"global_batch": 16, "steps": 7, "precision": "fp16", "lr": 1e-3}
LARGEST = torch.finfo(torch.float16).max
STEPS = 6


def spec_of(scale: float, **parallel: Any) -> RunSpec:
    return RunSpec.model_validate({"model": MODEL, "parallel": parallel, "train": TRAIN | {"loss_scale": scale}})


def alone(spec: RunSpec, folder: Path) -> Trainer:
    return Trainer(spec, 0, Groups(), open_device("cpu"), Progress(folder, 0))


def products(trainer: Trainer) -> list[torch.Tensor]:
    """A list to which a step appends, in fp32, what each micro-batch contributes to the gradient of the head's
    weight.
    """
    found: list[torch.Tensor] = []
    weights, (stage,) = trainer.chunks.weights, trainer.chunks.stages.values()
    weight, add = stage.layers[-1].get_parameter("output.weight"), weights.add

    def seen(given: WeightGradient) -> None:
        if given.weight is weight:
            found.append(given.grad.flatten(0, -2).float().t() @ given.x.flatten(0, -2).float())
        add(given)

    weights.add = seen  # type: ignore[method-assign]
    return found


def test_a_large_micro_batch_overflows_where_small_ones_do_not(tmp_path: Path) -> None:
    """Only the range of the dtype matters: in fp32, the small micro-batches add up to the large one."""
    whole, parts = (alone(spec_of(2.0**19, micro_batches=m), tmp_path) for m in (1, 8))
    one, several = products(whole), products(parts)
    assert whole.step(1).skipped == 1 and parts.step(1).skipped == 0
    assert len(one) == 1 and len(several) == 8
    assert one[0].abs().max() > LARGEST, "in 16 bits it is infinite"
    assert all(part.abs().max() < LARGEST for part in several)
    total = torch.stack(several).sum(0)
    torch.testing.assert_close(total, one[0], rtol=2e-2, atol=2e-2 * LARGEST)
    assert total.abs().max() > LARGEST, "their sum is kept in 32 bits, so it may exceed the limit"


@pytest.mark.full
def test_micro_batches_of_one_size_overflow_at_the_same_steps(tmp_path: Path) -> None:
    """Two samples per micro-batch in every layout; with a scale of 2^20, several steps are skipped."""
    splits: list[dict[str, Any]] = [
        {"dp": 2, "micro_batches": 4},
        {"dp": 2, "micro_batches": 4, "zero": 2},
        {"dp": 2, "micro_batches": 4, "zero": 3},
        {"pp": 2, "micro_batches": 8},
        {"tp": 2, "micro_batches": 8},
    ]
    want = _scales(alone(spec_of(2.0**20, micro_batches=8), tmp_path))
    other = _scales(alone(spec_of(2.0**20, micro_batches=1), tmp_path))
    assert want[-1] < want[0] and want != other
    every = ranks.run_many([spec_of(2.0**20, **split) for split in splits], _work, tmp_path)
    for split, got in zip(splits, every, strict=True):
        assert got == [want, want], split


def _scales(trainer: Trainer) -> list[float]:
    return [trainer.step(step).loss_scale for step in range(STEPS)]


def _work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    return ranks.with_trainer(spec, rank, meeting, folder, _scales)
