"""ZeRO-3: no replica holds more parameters than its part and the gathered layer, and the results are the same."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from parallel_core.engine import zero3
from parallel_core.engine.device import CpuDevice
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.flat import FlatParameters, Shard
from parallel_core.engine.trainer import Trainer
from parallel_core.observe.recorder import SpanRecorder
from parallel_core.observe.scope import Scope
from parallel_core.outline.splits import TensorSplit, split_dim
from parallel_core.plan import grad_buckets
from parallel_core.plan.memory import verdict
from parallel_core.plan.peak import by_stage
from parallel_core.plan.room import Room
from parallel_core.plan.strategy import label
from parallel_core.schedule import build
from parallel_core.schedule.check import check
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec, field_errors
from tests.parallel_core import parity, ranks
from tests.parallel_core.parity import MODEL, STEPS, TRAIN, Trained
from tests.spies import noting

LLAMA = {"positions": "rope", "norm": "rmsnorm", "activation": "swiglu", "kv_heads": 2, "bias": False}
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (MODEL, {"micro_batches": 2}),
    (MODEL, {"recompute": "full", "recompute_layers": (1,)}),
    (MODEL | {"tied": True}, {"micro_batches": 2, "recompute": "full"}),
    (MODEL | LLAMA | {"dropout": 0.1}, {"recompute": "selective"}),
    ({"kind": "mlp", "layers": 3, "hidden": 32}, {"micro_batches": 2}),
    ({"kind": "resnet50", "width": 2}, {}),
    ({"kind": "gnmt", "layers": 4, "hidden": 16, "seq": 8, "vocab": 64}, {"micro_batches": 2}),
]
FOURS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (MODEL | {"tied": True}, {"tp": 2, "micro_batches": 2}),
    (MODEL, {"tp": 2, "sequence": True, "recompute": "full"}),
    (MODEL, {"tp": 2, "tensor_split": "columns", "micro_batches": 2}),
]


def spec_of(model: dict[str, Any] = MODEL, train: dict[str, Any] | None = None, **parallel: Any) -> RunSpec:
    """A CNN gets a low learning rate: its batch norms amplify rounding from step to step."""
    lr = {"lr": 1e-3} if model.get("kind") == "resnet50" else {}
    return RunSpec.model_validate({"model": model, "parallel": parallel, "train": TRAIN | lr | (train or {})})


def sharded(model: dict[str, Any], split: dict[str, Any], **train: Any) -> RunSpec:
    return spec_of(model, train, **{"dp": 2, "zero": 3, **split})


def whole(model: dict[str, Any], split: dict[str, Any], **train: Any) -> RunSpec:
    return spec_of(model, train, micro_batches=split.get("micro_batches", 1))


def _observe(trainer: Trainer) -> tuple[Any, ...]:
    before, totals = _owned(trainer), [trainer.step(step) for step in range(STEPS)]
    shapes = {slot.name: tuple(slot.parameter.shape) for slot in trainer.flat}
    return trainer.place, shapes, before, _owned(trainer), totals


def _owned(trainer: Trainer) -> dict[str, tuple[int, np.ndarray]]:
    return {
        name: (first, part.float().numpy().copy() if part.itemsize < 4 else part.numpy().copy())
        for name, (first, part) in trainer.flat.owned_values().items()
    }


def _work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    return ranks.with_trainer(spec, rank, meeting, folder, _observe)


def train(specs: list[RunSpec]) -> list[Trained]:
    """Trains specs with the same world size in one launch; parameters are reassembled from what each rank owns."""
    seen = ranks.run_many(specs, _work, ranks.scratch())
    return [_together(of, spec.parallel.tensor_split) for of, spec in zip(seen, specs, strict=True)]


def _together(seen: list[Any], how: TensorSplit) -> Trained:
    totals = seen[0][-1]
    assert all(other[-1] == totals for other in seen), "ranks disagree about loss or norm"
    losses, norms = ([getattr(total, key) for total in totals] for key in ("loss", "grad_norm"))
    return Trained([], _whole(seen, 2, how), _whole(seen, 3, how), losses, norms)


def _whole(seen: list[Any], column: int, how: TensorSplit) -> dict[str, np.ndarray]:
    """Every element must be owned by at least one replica."""
    halves: dict[tuple[str, int], np.ndarray] = {}
    for place, shapes, *columns in seen:
        for name, (first, part) in columns[column - 2].items():
            key = name, place.tensor if split_dim(name, how) is not None else 0
            held = halves.setdefault(key, np.full(int(np.prod(shapes[name])), np.nan))
            held[first : first + len(part)] = part
    shaped = {key: held.reshape(seen[0][1][key[0]]) for key, held in halves.items()}
    assert not any(np.isnan(held).any() for held in shaped.values())
    others = 1 + max(tensor for _, tensor in shaped)
    return {
        name: held
        if (name, 1) not in shaped
        else np.concatenate([shaped[name, t] for t in range(others)], split_dim(name, how))
        for (name, tensor), held in shaped.items()
        if not tensor
    }


@pytest.mark.parametrize("cases", [CASES, FOURS], ids=["2 ranks", "4 ranks"])
def test_equals_one_process(cases: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """In fp64, with clipping. Batch norms share their statistics, as under any data parallelism."""
    got = train([sharded(*case) for case in cases])
    for case, ours, want in zip(cases, got, train([whole(*case) for case in cases]), strict=True):
        assert all(np.array_equal(ours.before[name], want.before[name]) for name in want.before), case
        np.testing.assert_allclose(ours.losses, want.losses, rtol=1e-9, err_msg=str(case))
        np.testing.assert_allclose(ours.norms, want.norms, rtol=1e-9, err_msg=str(case))
        if case[0].get("kind") != "resnet50":
            parity.assert_moved_alike(ours, want)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.full), "fp16"])
def test_has_the_bits_of_plain_data_parallelism(precision: str) -> None:
    """Without clipping, since the norm is added in another order; a sum of two numbers has only one order. With several
    micro-batches the reference is ZeRO-2, which also reduces over replicas first.
    """
    same = {"precision": precision, "clip_norm": None}
    splits: list[dict[str, Any]] = [{"zero": zero, "micro_batches": m} for m, zero in ((1, 3), (1, 0), (2, 3), (2, 2))]
    three, plain, three_m, two_m = train([sharded(MODEL, split, **same) for split in splits])
    for ours, want in ((three, plain), (three_m, two_m)):
        assert ours.losses == want.losses
        assert all(np.array_equal(ours.after[name], want.after[name]) for name in want.after)


@pytest.mark.parametrize("case", [pytest.param(CASES, marks=pytest.mark.full), FOURS], ids=["2 ranks", "4 ranks"])
def test_gathering_ahead_changes_no_bit(case: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA, the next layer's gather starts while one computes. The switch is set before ranks are forked."""
    cases = [(model, split) for model, split in case if model.get("kind") != "resnet50"]
    usual = train([sharded(*case) for case in cases])
    monkeypatch.setitem(grad_buckets.GATHERS_AHEAD, "cpu", True)
    for what, ahead, want in zip(cases, train([sharded(*case) for case in cases]), usual, strict=True):
        assert (ahead.losses, ahead.norms) == (want.losses, want.norms), what
        assert all(np.array_equal(ahead.after[name], want.after[name]) for name in want.after), what


class _Gathering:
    """A device whose clock stands but for layers, 100 each, and for waits; a gather takes 30."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        self.scope = Scope(SpanRecorder())
        self.scope.mark = self.scope.recorder.mark = lambda: self.now
        monkeypatch.setattr(zero3, "all_gather", self._begin)

    def _begin(self, whole: torch.Tensor, part: torch.Tensor, group: object) -> Any:
        until = self.now + 30
        return SimpleNamespace(wait=lambda: setattr(self, "now", max(self.now, until)))

    def through(self, layers: list[nn.Linear], ahead: bool) -> list[tuple[Kind, int, int, bool]]:
        """(kind, start, end, whether bytes are counted) of the gathers of a forward through these layers."""
        named: list[tuple[str, nn.Module, str]] = [(f"{i}", layer, "weight") for i, layer in enumerate(layers)]
        keys = {name: (i,) for i, (name, _, _) in enumerate(named)}
        shard = Shard(2, 0, shard_grads=True, shard_values=True, bucket_keys=keys)
        flat = FlatParameters(named, torch.float32, CpuDevice(), shard)
        flat.fill(lambda _, whole: whole.zero_())
        unsharder = zero3.Unsharder(flat, None, self.scope, ahead=layers if ahead else ())
        for layer in layers:
            layer.register_forward_hook(lambda *_: self._compute())
        self.scope.recorder.begin_step(0)
        out = torch.ones(1, 8, requires_grad=True)
        for layer in layers:
            out = unsharder.run(layer, (out,), goes_back=layer is layers[-1])
        spans = self.scope.recorder.end_step()[1:]
        return [(Kind(row["kind"]), int(row["start"]), int(row["end"]), bool(row["bytes"])) for row in spans]

    def _compute(self) -> None:
        self.now += 100


@pytest.mark.parametrize("ahead", [False, True])
def test_a_gather_ahead_is_in_flight_until_it_is_waited_for(ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [nn.Linear(8, 8, bias=False, device="meta") for _ in range(2)]
    spans = _Gathering(monkeypatch).through(layers, ahead)
    flown = [(Kind.UNSHARD_FLIGHT, 30, 130, False), (Kind.UNSHARD, 130, 130, True)]
    assert spans == [(Kind.UNSHARD, 0, 30, True), *(flown if ahead else [(Kind.UNSHARD, 130, 160, True)])]


def test_gathering_ahead_takes_one_layer_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parameters at the peak are as predicted, to the byte, and more than without gathering ahead."""
    spec = sharded(MODEL | {"layers": 12}, {}, precision="bf16")
    usual = by_stage(spec)[0]
    monkeypatch.setitem(grad_buckets.GATHERS_AHEAD, "cpu", True)
    predicted = by_stage(spec)[0]
    assert predicted.params > usual.params
    for peak, _ in ranks.run(spec, _peak, tmp_path):
        assert peak["params"] == predicted.params
        assert sum(peak.values()) == pytest.approx(predicted.total, rel=0.03)


@pytest.mark.parametrize("tied", [False, True])
def test_memory_is_what_is_predicted(tied: bool, tmp_path: Path) -> None:
    """Exact to the byte: the replica's own part, and what is gathered or being reduced at the peak. With a tied matrix,
    which stays during a whole backward, several moments are nearly as high, so only the optimizer state is compared
    exactly.
    """
    deep, train = MODEL | {"layers": 12, "tied": tied}, {"precision": "bf16"}
    splits: list[dict[str, Any]] = [{}, {"recompute": "full", "micro_batches": 2}]
    specs = [sharded(deep, split, **train) for split in splits]
    plain = by_stage(spec_of(deep, train, dp=2))[0]
    for spec, seen in zip(specs, ranks.run_many(specs, _peak, tmp_path), strict=True):
        predicted = by_stage(spec)[0]
        for peak, sizes in seen:
            for name in ("optimizer",) if tied else ("params", "grads", "optimizer"):
                assert peak[name] == getattr(predicted, name), (name, spec.parallel)
            assert sum(peak.values()) == pytest.approx(predicted.total, rel=0.03)
            assert peak["params"] < 0.62 * plain.params and peak["grads"] < 0.62 * plain.grads
            assert sizes == {predicted.optimizer // 12}, "2 moments and a master weight in fp32"


def _peak(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    def use(trainer: Trainer) -> Any:
        _, meter = trainer.metered_step(0)
        return meter.peak, {len(trainer.flat.values), len(trainer.flat.grads)}

    return ranks.with_trainer(spec, rank, meeting, folder, use)


def test_what_a_replica_owns_is_found_once_for_all_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, found, owned = nn.Linear(7, 5, device="meta"), list[FlatParameters](), FlatParameters.owned_values
    monkeypatch.setattr(FlatParameters, "owned_values", noting(owned, found, lambda flat: flat))
    named: list[tuple[str, nn.Module, str]] = [(name, layer, name) for name in ("weight", "bias")]
    flat = FlatParameters(named, torch.float64, CpuDevice(), Shard(2, 1, shard_grads=True, shard_values=True))
    flat.fill(lambda name, whole: whole.copy_(torch.arange(whole.numel()).view(whole.shape)))
    assert len(found) == 1
    for first, elements in owned(flat).values():
        assert elements.tolist() == list(range(first, first + len(elements)))


def test_the_schedule_gathers_nothing_behind_the_update() -> None:
    made = build(sharded(MODEL, {"micro_batches": 2}))
    check(made)
    for program in made.programs:
        assert [op.kind for op in program[-2:]] == [Kind.REDUCE_SCATTER, Kind.OPT_STEP]


def test_a_pipeline_is_refused_with_what_would_do() -> None:
    with pytest.raises(ValidationError) as caught:
        spec_of(dp=2, pp=2, zero=3)
    ((field, said),) = field_errors(caught.value).items()
    assert field == "parallel.zero" and "as pp=2 does; use zero=0, 1, 2, or pp=1" in said
    with pytest.raises(ValidationError, match=r"zero=3 leaves no second copy .* flipped_bit .*; use zero=2 or less"):
        RunSpec.model_validate({"parallel": {"dp": 2, "zero": 3}, "inject": [{"kind": "flipped_bit"}]})


def test_it_is_proposed_where_gradients_and_state_do_not_suffice() -> None:
    wide = {"hidden": 1024, "heads": 16, "layers": 12, "seq": 32}
    spec = RunSpec.model_validate({"model": wide, "parallel": {"dp": 8, "zero": 2}, "train": {"global_batch": 8}})
    (first, *_) = verdict(spec, Room(by_stage(spec)[0].total * 3 // 4)).fixes
    assert first.text == "shard parameters, gradients and optimizer state (ZeRO-3)"
    assert label(sharded(MODEL, {})) == "DP + ZeRO-3"
