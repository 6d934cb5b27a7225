"""SGD with momentum: the updates of torch.optim.SGD under every layout, its memory, its time, and its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import manifest as manifests
from parallel_core.checkpoint import match
from parallel_core.engine import checkpoint
from parallel_core.engine.device import open_device
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.flat import FlatParameters
from parallel_core.engine.optimizer import flat_optimizer
from parallel_core.engine.trainer import Trainer
from parallel_core.plan.alike import of_memory, of_step
from parallel_core.plan.checkpoint_size import checkpoint_bytes
from parallel_core.plan.peak import by_stage
from parallel_core.simulate.step_overheads import share_of_adamw
from parallel_core.spec import RunSpec, TrainSpec
from tests.parallel_core import ranks
from tests.parallel_core.parity import STEPS, TURN_S, assert_equal, spec_of, train, train_many
from tests.parallel_core.test_checkpoint import SAVED, alone, save

SGD: dict[str, Any] = {"optimizer": "sgd"}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_updates_are_those_of_torch(momentum: float, fused: bool) -> None:
    """Bit by bit those of the fused kernel; the one of several operations rounds between them."""
    torch.manual_seed(0)
    module = torch.nn.Linear(8, 8, dtype=torch.float64)
    theirs = torch.nn.Parameter(torch.randn(64, dtype=torch.float64))
    flat = FlatParameters([("a.weight", module, "weight")], torch.float64, open_device("cpu"))
    flat.values[:64] = theirs.detach()
    ours = flat_optimizer(flat, TrainSpec(lr=0.1, weight_decay=0.01, momentum=momentum, optimizer="sgd"))
    torchs = torch.optim.SGD([theirs], lr=0.1, weight_decay=0.01, momentum=momentum, fused=fused)
    for _ in range(5):
        theirs.grad = torch.randn(64, dtype=torch.float64)
        flat.grads[:64] = theirs.grad
        ours.step()
        torchs.step()
        close = 0.0 if fused else 1e-12
        torch.testing.assert_close(flat.values[:64], theirs.detach(), rtol=close, atol=close)


def _losses(trainer: Trainer) -> list[float]:
    return [trainer.step(step).loss for step in range(STEPS)]


def _work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> list[float]:
    return ranks.with_trainer(spec, rank, meeting, folder, _losses)


def test_every_layout_makes_the_updates_of_one_device() -> None:
    splits: list[dict[str, Any]] = [{"dp": 2}, {"tp": 2}, {"pp": 2, "micro_batches": 2}]
    want = train(spec_of({}, SGD))
    for got in train_many([spec_of({}, SGD, **split) for split in splits]):
        assert_equal(got, want)
    sharded: list[dict[str, Any]] = [{"dp": 2, "zero": zero} for zero in (1, 2, 3)]
    sharded += [{"dp": 2, "zero": 3, "zero_backend": "fully_shard"}]
    for each in ranks.run_each([(spec_of({}, SGD, **split), _work) for split in sharded], TURN_S):
        assert not isinstance(each, str), each
        np.testing.assert_allclose(each[0], want.losses, rtol=1e-12)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("momentum", "states"), [(0.9, 1), (0.0, 0)])
def test_it_holds_one_state_or_none_as_predicted(precision: str, momentum: float, states: int) -> None:
    spec = RunSpec.model_validate({"train": SGD | {"precision": precision, "momentum": momentum, "global_batch": 2}})
    held = sum(tensor.nbytes for tensor in alone(spec).optimizer.state())
    (predicted,) = by_stage(spec)
    assert held == predicted.optimizer
    per_parameter = {"fp32": 4 * states, "bf16": 4 * (1 + states)}[precision]
    assert predicted.optimizer == per_parameter * predicted.params // spec.element_bytes
    adamw = RunSpec.model_validate({"train": {"precision": precision, "global_batch": 2}})
    assert checkpoint_bytes(spec) < checkpoint_bytes(adamw)
    assert of_memory(spec) != of_memory(adamw) and of_step(spec) != of_step(adamw)


@pytest.mark.parametrize(
    ("precision", "momentum", "share"),
    [("fp32", 0.9, 5 / 7), ("fp32", 0.0, 3 / 7), ("fp16", 0.9, 26 / 34), ("fp64", 0.9, 5 / 7)],
)
def test_its_update_is_as_much_faster_as_it_moves_fewer_bytes(precision: str, momentum: float, share: float) -> None:
    spec = RunSpec.model_validate({"train": SGD | {"precision": precision, "momentum": momentum}})
    assert share_of_adamw(spec) == pytest.approx(share)
    assert share_of_adamw(RunSpec()) == 1


def test_adamw_has_no_momentum() -> None:
    with pytest.raises(ValidationError, match=r"momentum=0.5 is SGD's.*use optimizer=sgd, or momentum=0.9"):
        RunSpec.model_validate({"train": {"momentum": 0.5}})
    assert RunSpec.model_validate({"train": SGD | {"momentum": 0.5}}).train.momentum == 0.5


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ({}, SGD, {"train.optimizer": "saved with optimizer=adamw; this run has optimizer=sgd."}),
        (SGD, {}, {"train.optimizer": "saved with optimizer=sgd; this run has optimizer=adamw."}),
        (SGD | {"momentum": 0.0}, SGD, {"train.momentum": "saved with momentum=0, so without a momentum;"}),
        (SGD, SGD | {"momentum": 0.5}, {}),
        (SGD, SGD | {"momentum": 0.0}, {}),
    ],
)
def test_a_checkpoint_of_the_other_optimizer_is_refused(
    before: dict[str, Any], after: dict[str, Any], why: dict[str, str]
) -> None:
    saved = RunSpec.model_validate({"train": before}).model_dump(mode="json")
    found = match.mismatches(saved, RunSpec.model_validate({"train": after}), 1)
    assert found.keys() == why.keys()
    assert all(words in found[field] for field, words in why.items())


def test_a_checkpoint_of_before_there_was_a_choice_is_of_adamw() -> None:
    saved = RunSpec().model_dump(mode="json")
    del saved["train"]["optimizer"], saved["train"]["momentum"]
    assert not match.mismatches(saved, RunSpec(), 1)
    assert set(match.mismatches(saved, RunSpec.model_validate({"train": SGD}), 1)) == {"train.optimizer"}


def test_a_checkpoint_without_any_state_is_no_import_of_weights(tmp_path: Path) -> None:
    """Its steps go on, which those of imported weights do not."""
    spec = RunSpec.model_validate({"train": SGD | {"momentum": 0.0, "global_batch": 2}})
    trainer = alone(spec)
    trainer.step(0)
    save(trainer, tmp_path, SAVED)
    assert not manifests.read(folders.path_of(tmp_path, SAVED)).weights_only
    again = alone(spec)
    assert checkpoint.load(again, folders.path_of(tmp_path, SAVED)) == SAVED
    assert again.optimizer.scalars() == trainer.optimizer.scalars() == {"steps": 1.0}
    assert torch.equal(again.flat.values, trainer.flat.values)
