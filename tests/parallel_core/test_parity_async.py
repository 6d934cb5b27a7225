"""Pipelines that never flush compute what one process computes with the same delayed updates (see `delayed`), and
those that flush, clipped by stage, what it computes with a clip factor for each place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parallel_core.engine.buffer_view import BufferView
from parallel_core.engine.device import open_device
from parallel_core.engine.distributed import Groups, Rendezvous
from parallel_core.engine.trainer import Trainer
from parallel_core.engine.versions import views_of_weights
from parallel_core.observe.progress import Progress
from parallel_core.schedule.traits import TRAITS
from parallel_core.spec import RunSpec
from tests.parallel_core import parity, ranks
from tests.parallel_core.delayed_updates import replay
from tests.parallel_core.parity import Launches, Trained, assert_moved_alike, spec_of, train_many

NAMES = [name for name, traits in TRAITS.items() if traits.sync != "flush"]
TRAIN = {"steps": parity.STEPS, "warmup_steps": 1, "clip": "stage", "clip_norm": 0.3}
TRAIN |= {"lr_schedule": "cosine", "lr_warmup_steps": 1}  # no two steps have the same rate
Case = dict[str, Any]


def _cases(name: str) -> dict[str, Case]:
    two = {"schedule": name, "pp": 2, "micro_batches": 4}
    return {
        f"{name}": two,
        f"{name}-recompute-cut-in-a-block": two | {"recompute": "full", "cuts": (2,)},
        f"{name}-dp": two | {"dp": 2, "micro_batches": 2},
        f"{name}-tp": two | {"tp": 2},
        f"{name}-4": two | {"pp": 4},
    }


def _round_robin(name: str) -> dict[str, Case]:
    """Stages with different numbers of replicas or tensor ranks. Three micro-batches over two replicas leave a short
    round.
    """
    turns = {"schedule": name, "global_batch": 6}
    return {
        f"{name}-2-1-short": turns | {"replicas": (2, 1), "pp": 2, "micro_batches": 3},
        f"{name}-1x2,1x1": {"schedule": name, "pp": 2, "widths": (2, 1), "micro_batches": 4},
    }


def _more(name: str) -> dict[str, Case]:
    two = {"schedule": name, "pp": 2, "micro_batches": 4}
    turns = {"schedule": name, "global_batch": 12}
    again = {"recompute": "full", "cuts": (2,)}
    return {
        f"{name}-recompute": two | {"recompute": "full"},
        f"{name}-uneven": two | {"cuts": (2,), "micro_batches": 2},
        f"{name}-few": two | {"micro_batches": 1},
        f"{name}-2-1-1": turns | {"replicas": (2, 1, 1), "pp": 3, "micro_batches": 6, "global_batch": 6},
        f"{name}-2-1": turns | {"replicas": (2, 1), "pp": 2, "micro_batches": 4},
        f"{name}-1-2-short": turns | {"replicas": (1, 2), "pp": 2, "micro_batches": 3} | again,
        f"{name}-3-1-short": turns | {"replicas": (3, 1), "pp": 2, "micro_batches": 7, "global_batch": 14},
        f"{name}-2-2": turns | {"replicas": (2, 2), "pp": 2, "micro_batches": 4},
        f"{name}-2-1-tp": turns | {"replicas": (2, 1), "pp": 2, "tp": 2, "micro_batches": 4},
    }


_FOUR = {"pp": 2, "micro_batches": 4}
FLUSHED = {
    "1f1b": {"schedule": "1f1b", **_FOUR},
    "zb-v": {"schedule": "zb-v", **_FOUR},
}
MORE_FLUSHED = {
    "interleaved": {"schedule": "interleaved", **_FOUR},
    "1f1b-dp-tp": {"schedule": "1f1b", "dp": 2, "tp": 2, "pp": 2, "micro_batches": 2},
    "zb-v-dp-tp": {"schedule": "zb-v", "dp": 2, "tp": 2, "pp": 2, "micro_batches": 4},
    "1f1b-2-1-tp": {"schedule": "1f1b", "replicas": (2, 1), "tp": 2, "global_batch": 12, **_FOUR},
}
"""Clipped by stage under a flush: one factor for each place of the pipeline."""
CASES = {key: case for name in NAMES for key, case in (_cases(name) | _round_robin(name)).items()} | FLUSHED
MORE = {key: case for name in NAMES for key, case in _more(name).items()} | MORE_FLUSHED


def _spec(case: Case) -> RunSpec:
    batch = {"global_batch": case.get("global_batch", 8)}
    return spec_of({"dropout": 0.1}, TRAIN | batch, **{key: value for key, value in case.items() if key not in batch})


def _work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    return ranks.with_trainer(spec, rank, meeting, folder, parity.observe_moves)


TRAINED = Launches(CASES | MORE, lambda key: _spec((CASES | MORE)[key]), MORE.__contains__, _work)


def _assert_replayed(got: Trained, spec: RunSpec) -> None:
    want = replay(spec)
    np.testing.assert_allclose(got.losses, want.losses, rtol=1e-12)
    np.testing.assert_allclose(got.norms, want.norms, rtol=1e-9)
    assert_moved_alike(got, want)


@pytest.mark.full
def test_an_lstm_goes_backward_through_the_weights_of_its_schedule() -> None:
    """Autograd saves views of the weights, whose memory the next update overwrites; without a stash, backward sees
    that.
    """
    model = {"kind": "gnmt", "layers": 2, "hidden": 8, "seq": 12, "vocab": 50}
    train = parity.TRAIN | TRAIN
    splits = [{"schedule": name, "pp": 2, "micro_batches": 4} for name in NAMES]
    specs = [RunSpec.model_validate({"model": model, "train": train, "parallel": split}) for split in splits]
    for spec, got in zip(specs, train_many(specs, _work), strict=True):
        _assert_replayed(got, spec)


@pytest.mark.parametrize("kind", ["gpt", "mlp", "vgg16", "resnet50", "gnmt"])
def test_it_is_known_of_which_layers_autograd_saves_views_of_weights(kind: str, tmp_path: Path) -> None:
    """Backward of such layers would not use the version that it should. In fp32 a CPU uses another LSTM kernel, without
    views.
    """
    sizes = {"mlp": {"hidden": 24}, "vgg16": {"width": 2}, "resnet50": {"width": 2}, "gnmt": {"hidden": 8, "layers": 2}}
    model = parity.MODEL if kind == "gpt" else {"kind": kind, **sizes[kind]}
    spec = RunSpec.model_validate({"model": model, "train": {"global_batch": 2, "precision": "fp64"}})
    trainer = Trainer(spec, 0, Groups(), open_device("cpu"), Progress(tmp_path, 0))
    whole = {BufferView.of(slot.parameter, trainer.flat.values) for slot in trainer.flat}
    saved: set[BufferView | None] = set()

    def look(tensor: torch.Tensor) -> torch.Tensor:
        saved.add(BufferView.of(tensor, trainer.flat.values))
        return tensor

    (stage,) = trainer.chunks.stages.values()
    stage.begin_step([trainer.reader.read(0)])
    with torch.autograd.graph.saved_tensors_hooks(look, lambda kept: kept):
        stage.forward(0, None)
    assert bool(saved - whole - {None}) is any(map(views_of_weights, stage.layers))


@pytest.mark.parametrize("key", [*CASES, *(pytest.param(key, marks=pytest.mark.full) for key in MORE)])
def test_equals_a_replay(key: str) -> None:
    _assert_replayed(TRAINED[key], _spec((CASES | MORE)[key]))


def test_sgd_equals_a_replay() -> None:
    splits = [{"schedule": name, "pp": 2, "micro_batches": 4} for name in NAMES]
    specs = [spec_of({}, TRAIN | {"optimizer": "sgd"}, **split) for split in splits]
    for spec, got in zip(specs, train_many(specs, _work), strict=True):
        _assert_replayed(got, spec)


def _apart(got: Trained, want: Trained) -> float:
    """How far the parameters' changes are apart, as a share of those of `want`."""
    changes = [(got.after[name] - got.before[name], want.after[name] - want.before[name]) for name in want.after]
    return float(np.sqrt(sum(np.square(a - b).sum() for a, b in changes) / sum(np.square(b).sum() for _, b in changes)))


@pytest.mark.parametrize("precision", ["bf16", pytest.param("fp16", marks=pytest.mark.full)])
def test_in_16_bits_each_equals_its_own_replay_but_for_rounding(precision: str) -> None:
    """Those of schedules that keep other versions are much farther away. With SGD, as the first updates of AdamW are
    little more than the signs of gradients.
    """
    train = TRAIN | {"optimizer": "sgd", "lr": 0.15, "clip_norm": None, "loss_scale": 1.0, "precision": precision}
    splits = {name: {"schedule": name, "pp": 2, "micro_batches": 4} for name in NAMES}
    specs = {name: spec_of({"dropout": 0.1}, train, **split) for name, split in splits.items()}
    replays = {name: replay(spec) for name, spec in specs.items()}
    for name, got in zip(NAMES, train_many(list(specs.values()), _work), strict=True):
        assert got.losses == pytest.approx(replays[name].losses, rel=1e-3), name
        assert got.norms == pytest.approx(replays[name].norms, rel=1e-2), name
        apart = {other: _apart(got, made) for other, made in replays.items()}
        like = {"1f1b-naive", "1f1b-stash"} if name in ("1f1b-naive", "1f1b-stash") else {name}
        assert apart[name] < 0.02 and all(apart[other] > 0.1 for other in NAMES if other not in like), (name, apart)


@pytest.mark.parametrize("key", FLUSHED)
def test_each_place_is_clipped_by_a_factor_of_its_own(key: str) -> None:
    """The norms of both places are over the limit, and differ: one factor for all would give other parameters."""
    spec = _spec(FLUSHED[key])
    alike = replay(spec.model_copy(update={"parallel": spec.parallel.model_copy(update={"pp": 1, "chunks": None})}))
    with pytest.raises(AssertionError, match="change of parameter"):
        assert_moved_alike(TRAINED[key], alike)
