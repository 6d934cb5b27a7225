"""ZeRO-1 and 2: replicas that shard the optimizer's state (and gradients) compute what one process computes, and each
holds only its part.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.trainer import Trainer
from parallel_core.layout import Layout
from parallel_core.outline.unit_cost import ALIGN
from parallel_core.plan import grad_buckets
from parallel_core.plan.grad_buckets import place
from parallel_core.plan.memory import verdict
from parallel_core.plan.peak import by_stage
from parallel_core.plan.room import Room
from parallel_core.plan.strategy import label
from parallel_core.schedule import build
from parallel_core.schedule.check import check
from parallel_core.schedule.error import ScheduleError
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec, field_errors
from tests.parallel_core import parity, ranks
from tests.parallel_core.parity import Trained, reference, spec_of, train_many

PAIRS: list[dict[str, Any]] = [{"micro_batches": 2}, {"recompute": "full"}, {"tied": True}]
FOURS: list[dict[str, Any]] = [
    {"pp": 2, "schedule": "gpipe", "micro_batches": 2},
    {"pp": 2, "schedule": "1f1b", "micro_batches": 4, "tied": True},
    {"pp": 2, "schedule": "naive", "recompute": "full", "tied": True},
    {"pp": 2, "schedule": "interleaved", "micro_batches": 2},
    {"tp": 2, "tied": True},
    {"tp": 2, "sequence": True, "micro_batches": 2},
    {"tp": 2, "tensor_split": "columns", "micro_batches": 2},
]


SPLIT: list[dict[str, Any]] = [
    {"pp": 2, "schedule": name, "micro_batches": 4, "tied": tied}
    for name, tied in (("zb-h1", False), ("zb-v", True), ("dualpipe-v", False), ("looped-bfs", True))
]
"""Schedules that defer W or run two stages per rank, so gradients arrive in no simple order."""
DEEP: list[dict[str, Any]] = [
    {"pp": pp, "schedule": name, "micro_batches": 4, "tied": True, "layers": 4}
    for pp in (3, 4)
    for name in ("interleaved", "looped-bfs", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min")
]
"""Pipelines with a rank in the middle. DualPipe-V needs more micro-batches than this global batch has for two
replicas."""
MODEL_FIELDS = ("tied", "layers")
LEAN = 2**12
"""Bytes of a bucket, small enough to give these models many."""


def model_of(case: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in case.items() if name in MODEL_FIELDS}


def specs(cases: list[dict[str, Any]], zero: int = 1, **train: Any) -> list[RunSpec]:
    splits = [{name: value for name, value in case.items() if name not in MODEL_FIELDS} for case in cases]
    return [spec_of(model_of(case), train, dp=2, zero=zero, **split) for case, split in zip(cases, splits, strict=True)]


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small buckets in the parent process, from which the ranks are forked."""
    monkeypatch.setitem(grad_buckets.LEAN_BUCKET_BYTES, "cpu", LEAN)


def _work(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    return ranks.with_trainer(spec, rank, meeting, folder, parity.observe_moves)


def assert_equal(got: Trained, want: Trained, what: str) -> None:
    np.testing.assert_allclose(got.losses, want.losses, rtol=1e-12, err_msg=what)
    np.testing.assert_allclose(got.norms, want.norms, rtol=1e-9, err_msg=what)
    parity.assert_moved_alike(got, want)


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(PAIRS, id="2 ranks"),
        pytest.param(FOURS + SPLIT, id="4 ranks"),
        pytest.param([case for case in DEEP if case["pp"] == 3], id="6 ranks", marks=pytest.mark.full),
        pytest.param([case for case in DEEP if case["pp"] == 4], id="8 ranks", marks=pytest.mark.full),
    ],
)
def test_equals_one_process(cases: list[dict[str, Any]]) -> None:
    """In fp64 with clipping, under every flushing schedule; also asserts that replicas hold the same parameters."""
    both = [(case, zero) for zero in (1, 2) for case in cases if zero > 1 or case not in SPLIT]
    trained = train_many([specs([case], zero)[0] for case, zero in both], _work)
    for (case, zero), got in zip(both, trained, strict=True):
        assert_equal(got, reference(**model_of(case)), f"ZeRO-{zero} {case}")


def test_gradients_that_come_once_have_the_bits_of_zero_1() -> None:
    """With several micro-batches, each adds its reduction over the replicas: another order, so the last bits may
    differ.

    The norm is also summed over other parts, therefore clipping is off.
    """
    cases: list[dict[str, Any]] = [{}, {"micro_batches": 2}]
    runs = [specs([case], zero, precision="fp32", clip_norm=None)[0] for case in cases for zero in (1, 2)]
    one, lean, one_m, lean_m = train_many(runs, _work)
    assert one.losses == lean.losses
    assert all(np.array_equal(one.after[name], lean.after[name]) for name in one.after)
    np.testing.assert_allclose(lean_m.losses, one_m.losses, rtol=1e-6)


def test_master_weights_are_sharded_too() -> None:
    """In bf16 the sharded master weights change like whole ones: the first loss is bit-equal to that of plain data
    parallelism, later losses and norms within 1e-6.
    """
    plain = spec_of({}, {"precision": "bf16"}, dp=2)
    sharded, whole = train_many([*specs([{}], precision="bf16"), plain], _work)
    assert sharded.losses[0] == whole.losses[0]
    np.testing.assert_allclose(sharded.losses, whole.losses, rtol=1e-6)
    np.testing.assert_allclose(sharded.norms, whole.norms, rtol=1e-6)


def test_each_replica_holds_its_part(tmp_path: Path) -> None:
    (spec,) = specs([{}], precision="fp16")
    for held, whole, peak in ranks.run(spec, _sizes, tmp_path):
        assert held == [whole // 2] * 3
        predicted = by_stage(spec)[0]
        assert {name: peak[name] for name in ("params", "grads", "optimizer")} == {
            name: predicted.as_dict()[name] for name in ("params", "grads", "optimizer")
        }
        assert sum(peak.values()) == pytest.approx(predicted.total, rel=0.05)


@pytest.mark.parametrize("split", [{}, {"pp": 2, "micro_batches": 4}], ids=str)
def test_gradients_are_let_go(split: dict[str, Any], tmp_path: Path) -> None:
    """At the peak, a replica has its part of the gradients and one or two buckets, as predicted."""
    deep, train = {"layers": 12}, {"precision": "fp32"}
    lean, whole = (spec_of(deep, train, dp=2, zero=zero, **split) for zero in (2, 1))
    memories = [memory for memory in by_stage(lean) for _ in range(2)]
    for got, predicted, before in zip(
        ranks.run(lean, _sizes, tmp_path), memories, [m for m in by_stage(whole) for _ in range(2)], strict=True
    ):
        held, size, peak = got
        assert held == [size // 2] * 3
        assert peak["grads"] < 0.65 * before.grads
        assert sum(peak.values()) == pytest.approx(predicted.total, rel=0.03)


def _sizes(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    def use(trainer: Trainer) -> Any:
        _, meter = trainer.metered_step(0)
        held = [*trainer.optimizer.state(), *([trainer.flat.grads] if trainer.flat.shard_grads else [])]
        return [len(buffer) for buffer in held], len(trainer.flat.values), meter.peak

    return ranks.with_trainer(spec, rank, meeting, folder, use)


def test_the_schedule_shows_it() -> None:
    (spec,) = specs([{"pp": 2, "micro_batches": 2}])
    made = build(spec)
    check(made)
    for program in made.programs:
        assert [op.kind for op in program[-3:]] == [Kind.REDUCE_SCATTER, Kind.OPT_STEP, Kind.GATHER]
    assert Kind.ALLREDUCE not in {op.kind for program in made.programs for op in program}


def test_a_stage_that_never_gathers_is_refused() -> None:
    (spec,) = specs([{}])
    made = build(spec)
    damaged = type(made)(
        made.name, made.stages, made.micro_batches, made.placement, (made.programs[0][:-1], *made.programs[1:])
    )
    with pytest.raises(ScheduleError, match="stage 0 must end with REDUCE_SCATTER then OPT_STEP then GATHER"):
        check(damaged)


def test_one_replica_has_nothing_to_share() -> None:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({"parallel": {"zero": 1}})
    assert field_errors(caught.value) == {
        "parallel.zero": "zero=1 shards over data-parallel replicas, and dp=1 leaves nothing to shard over; "
        "use zero=0, or dp=2, 4, 8."
    }


def test_it_has_a_name_and_is_proposed_where_memory_lacks() -> None:
    assert label(specs([{}])[0]) == "DP + ZeRO-1"
    assert label(specs([{"tp": 2, "recompute": "full"}])[0]) == "DP 2 x TP 2 + ZeRO-1 + AR"
    wide = {"hidden": 1024, "heads": 16, "layers": 12, "seq": 32}
    spec = RunSpec.model_validate({"model": wide, "parallel": {"dp": 8}, "train": {"global_batch": 8}})
    fixes = verdict(spec, Room(by_stage(spec)[0].total * 2 // 3)).fixes
    assert fixes[0].text == "shard the optimizer state (ZeRO-1)"
    sharded = RunSpec.model_validate({"model": wide, "parallel": {"dp": 8, "zero": 1}, "train": {"global_batch": 8}})
    (first, *_) = verdict(sharded, Room(by_stage(sharded)[0].total * 3 // 4)).fixes
    assert first.text == "shard gradients and optimizer state (ZeRO-2)"
    assert label(specs([{}], zero=2)[0]) == "DP + ZeRO-2"


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=30), st.integers(1, 20_000), st.integers(1, 7), st.data())
def test_places_tile_the_buffers(sizes: list[int], bucket: int, shards: int, data: st.DataObject) -> None:
    """No overlaps, every bucket is divisible, parts tile their bucket, and parameters that need a bucket of their own
    get one.
    """
    named = {f"p{i}": size for i, size in enumerate(sizes)}
    alone = data.draw(st.sets(st.sampled_from(list(named)), max_size=2))
    made = place(named, bucket, shards, alone)
    assert [name for part in made.buckets for name in part.names] == list(reversed(named)) == list(made.starts)
    at = 0
    for part in made.buckets:
        assert part.start == at and (part.stop - part.start) % (shards * ALIGN) == 0
        parts = [part.part(i, shards) for i in range(shards)]
        assert [piece.start for piece in parts] == [part.start, *(piece.stop for piece in parts[:-1])]
        assert parts[-1].stop == part.stop
        inside = [(made.starts[name], made.starts[name] + named[name]) for name in part.names]
        assert part.start == inside[0][0] and inside[-1][1] <= part.stop
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(inside))
        assert len(part.names) == 1 or not alone & set(part.names)
        at = part.stop
    assert made.size == at


def test_parts_of_a_tied_matrix_are_the_same_on_both_stages() -> None:
    """Replica r owns the same elements of it on the first and the last stage, whatever its offset there."""
    (spec,) = specs([{"pp": 2, "tied": True}])
    assert Layout.of(spec).stages == 2
    owned = ranks.run(spec, _owned, ranks.scratch())
    assert owned[0] == owned[2] and owned[1] == owned[3] and owned[0] != owned[1]


def _owned(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    def use(trainer: Trainer) -> Any:
        flat = trainer.chunks.flat
        slot = next(slot for slot in flat if slot.name == "embed.token.weight")
        mine = flat.owned_grads()[slot.name]
        first = mine.storage_offset() - slot.start
        return first, first + len(mine)

    return ranks.with_trainer(spec, rank, meeting, folder, use)
