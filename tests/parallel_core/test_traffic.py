"""The predicted communication of ranks, compared with the bytes in the spans of real ranks; and what ranks hold."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from parallel_core.engine.distributed import Rendezvous
from parallel_core.layout import Layout
from parallel_core.local import LocalRunner
from parallel_core.model_spec import ModelSpec
from parallel_core.models.registry import parameter_shapes
from parallel_core.outline import outline_of
from parallel_core.plan.peak import by_stage
from parallel_core.plan.rank_shards import held
from parallel_core.plan.traffic import comm_volumes, sent_bytes
from parallel_core.plan.units import unit_costs
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks
from tests.parallel_core.strategies import run_specs

MODEL = {"layers": 2, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64}
SPLITS: list[dict[str, Any]] = [
    {"tp": 2, "micro_batches": 2},
    {"tp": 2, "micro_batches": 2, "recompute": "full"},
    {"tp": 2, "micro_batches": 2, "sequence": True, "recompute": "full"},
    {"tp": 2, "sequence": True, "pp": 2, "micro_batches": 4},
    {"tp": 2, "tensor_split": "columns", "micro_batches": 2},
    {"tp": 2, "tensor_split": "columns", "pp": 2, "micro_batches": 4, "recompute": "full"},
    {"dp": 2, "zero": 1},
    {"dp": 2, "zero": 2, "micro_batches": 2},
    {"dp": 2, "zero": 3, "micro_batches": 2, "recompute": "full"},
    {"dp": 2, "zero": 3, "zero_backend": "fully_shard", "micro_batches": 2},
    {"dp": 2, "tp": 2, "zero": 3},
    {"dp": 2, "pp": 2, "zero": 2, "micro_batches": 4, "schedule": "zb-v"},
    {"dp": 2, "tp": 2},
    {"pp": 2, "micro_batches": 4, "schedule": "interleaved"},
    {"pp": 2, "micro_batches": 4, "schedule": "zb-v"},
    {"dp": 2, "pp": 2, "micro_batches": 2, "schedule": "1f1b-stash"},
    {"pp": 2, "micro_batches": 2, "schedule": "1f1b-2bw", "precision": "fp16"},
    {"pp": 2, "replicas": (2, 1), "widths": (1, 2), "micro_batches": 4},
    {"pp": 3, "widths": (1, 2, 1), "micro_batches": 4, "schedule": "gpipe"},
    {"pp": 2, "replicas": (2, 1), "widths": (2, 1), "micro_batches": 4},
]
LEFT_OUT = {Kind.NORM, Kind.BUCKET, Kind.BUCKET_WAIT, Kind.BUCKET_FLIGHT}
SAID = {
    Kind.TP_COLLECTIVE: "tensor",
    Kind.ALLREDUCE: "data",
    Kind.REDUCE_SCATTER: "data",
    Kind.GATHER: "data",
    Kind.UNSHARD: "data",
    Kind.SEND_ACT: "next",
    Kind.RECV_GRAD: "next",
    Kind.RECV_ACT: "before",
    Kind.SEND_GRAD: "before",
}


@pytest.mark.parametrize(
    "splits",
    [
        SPLITS[::3],
        pytest.param(SPLITS[1::3], marks=pytest.mark.full),
        pytest.param(SPLITS[2::3], marks=pytest.mark.full),
    ],
)
def test_the_bytes_of_every_group_are_those_of_the_spans(
    splits: list[dict[str, Any]], runner: LocalRunner, tmp_path: Path
) -> None:
    for i, split in enumerate(splits):
        train = {"steps": 6, "warmup_steps": 2, "global_batch": 8, "clip_norm": None}
        train |= {"precision": split.get("precision", "fp32")}
        parallel = {name: value for name, value in split.items() if name != "precision"}
        spec = RunSpec.model_validate({"model": MODEL, "parallel": parallel, "train": train})
        outcome = runner.run(spec, tmp_path / str(i))
        assert outcome.ok, outcome.failure()
        assert set(outcome.traced()) == set(range(spec.parallel.world))
        for rank, rows in outcome.traced().items():
            assert _measured(spec, rows) == _predicted(spec, rank), (split, rank)


def _measured(spec: RunSpec, rows: Any) -> Counter[str]:
    """Bytes by group, without the loss over a split vocabulary: its messages are shorter than any activation."""
    whole = spec.micro_batch_size * spec.model.seq * spec.model.hidden * spec.element_bytes
    out: Counter[str] = Counter()
    for row in rows:
        kind, size = Kind(int(row["kind"])), int(row["bytes"])
        if kind in SAID and size and not (kind is Kind.TP_COLLECTIVE and size < whole):
            out[SAID[kind]] += size
    return out


def _predicted(spec: RunSpec, rank: int) -> Counter[str]:
    out: Counter[str] = Counter()
    for talk in comm_volumes(spec, rank):
        out[talk.kind] += 0 if "vectors" in talk.what else talk.bytes
    return out


@pytest.mark.full
@given(run_specs())
def test_what_one_end_sends_the_other_receives(spec: RunSpec) -> None:
    """Also: every rank is in the group that it names."""
    said: Counter[tuple[int, int]] = Counter()
    for rank in range(Layout.of(spec).world):
        for talk in comm_volumes(spec, rank):
            assert talk.calls and talk.bytes
            if talk.kind in ("tensor", "data", "ends"):
                assert rank in talk.ranks
                continue
            (peer,) = talk.ranks
            way = 1 if talk.what.startswith("sends") else -1
            said[min(rank, peer), max(rank, peer)] += way * talk.bytes
    assert not any(said.values())


@given(run_specs())
def test_ranks_hold_what_memory_is_predicted_for(spec: RunSpec) -> None:
    costs, units = unit_costs(spec), spec.model.units()
    for memory in by_stage(spec):
        for layer in held(spec, memory.rank):
            sizes = [math.prod(matrix.shape) // matrix.parts for matrix in layer.matrices]
            assert sizes == list(costs[units.index(layer.unit)].parameters)


@pytest.mark.parametrize(
    "model",
    [
        ModelSpec(layers=1, hidden=32, heads=4, kv_heads=2),
        ModelSpec(layers=1, hidden=32, activation="swiglu", norm="rmsnorm", positions="rope", bias=False),
    ],
)
def test_matrices_are_those_that_are_built(model: ModelSpec) -> None:
    spec = RunSpec.model_validate({"model": model.model_dump()})
    named = {f"{layer.unit}.{matrix.name}": matrix.shape for layer in held(spec, 0) for matrix in layer.matrices}
    assert named == parameter_shapes(model)


def test_on_a_ring_an_all_reduce_goes_round_twice() -> None:
    (plain,) = comm_volumes(RunSpec.model_validate({"parallel": {"tp": 4}}), 0)
    assert plain.wire == 2 * plain.bytes * 3 // 4
    rows, _ = comm_volumes(RunSpec.model_validate({"parallel": {"tp": 4, "sequence": True}}), 0)
    assert plain.wire < rows.wire < 1.5 * plain.wire, "one more gather in each backward"
    sent, _ = comm_volumes(RunSpec.model_validate({"parallel": {"pp": 2, "micro_batches": 4}}), 0)
    assert sent.wire == sent.bytes


def test_a_rank_sends_what_leaves_it_and_not_what_comes_in() -> None:
    """Else a pipeline's messages counted twice beside collectives, of which a rank receives as much as it sends."""
    pipelined = RunSpec.model_validate({"parallel": {"pp": 3, "micro_batches": 4}, "train": {"global_batch": 16}})
    edge = 16 * pipelined.model.seq * pipelined.model.hidden * pipelined.element_bytes
    assert [sent_bytes(comm_volumes(pipelined, rank)) for rank in range(3)] == [edge, 2 * edge, edge]
    replicas = comm_volumes(RunSpec.model_validate({"parallel": {"dp": 2}}), 0)
    assert sent_bytes(replicas) == replicas[0].bytes, "a ring of two passes half of the gradients twice"


@pytest.mark.parametrize(("activation", "ffn"), [("gelu", None), ("swiglu", None), ("gelu", 256)])
def test_by_columns_a_block_sends_as_much_more_as_its_mlp_is_wide(activation: str, ffn: int | None) -> None:
    """In units of bsh: 5 + 3 + 2 f/h instead of 4 + 4; layers outside of blocks are unchanged."""
    model = {"layers": 3, "activation": activation, "ffn": ffn}
    pairs, columns = (
        sum(
            talk.wire
            for talk in comm_volumes(RunSpec.model_validate({"model": model, "parallel": {"tp": 4, **how}}), 0)
        )
        for how in ({}, {"tensor_split": "columns"})
    )
    spec = RunSpec.model_validate({"model": model})
    pass_once = 4 * 16 * spec.model.seq * spec.model.hidden * 3 // 4
    wide = outline_of(spec.model).matrices()[2]["fc2.weight"][1]
    assert pairs == (3 * 8 + 4) * pass_once
    assert columns - pairs == 3 * 2 * wide * pass_once // spec.model.hidden


def test_a_rank_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"rank 2 is outside 0 \.\. 1"):
        comm_volumes(RunSpec.model_validate({"parallel": {"dp": 2}}), 2)


@pytest.mark.parametrize(
    "split",
    [
        {"pp": 2, "schedule": "1f1b-stash"},
        {"dp": 2},
        {"dp": 2, "zero": 1},
        {"dp": 2, "zero": 3},
        {"dp": 2, "zero": 3, "zero_backend": "fully_shard"},
        {"tp": 4, "dp": 2},
    ],
)
def test_under_sequence_parallelism_the_gradients_of_vectors_are_summed(split: dict[str, Any]) -> None:
    """With ZeRO what a replica owns of them; of more than two ranks of each replica they are gathered."""
    parallel = {"tp": 2, "sequence": True, "micro_batches": 2, **split}
    train = {"global_batch": 8, "precision": "bf16", "clip_norm": None}
    spec = RunSpec.model_validate({"model": MODEL, "parallel": parallel, "train": train})
    said = [
        [talk for talk in comm_volumes(spec, rank) if "vectors" in talk.what] for rank in range(spec.parallel.world)
    ]
    summed = ranks.run(spec, _by_rows, ranks.scratch())
    gathered = parallel["tp"] if parallel["tp"] > 2 else 1
    assert [sum(talk.bytes // talk.calls for talk in talks) for talks in said] == [gathered * size for size in summed]
    assert sum(summed) > 0 and {talk.passes for talks in said for talk in talks} == {1 if gathered > 1 else 2}
    assert {talk.calls for talks in said for talk in talks} == {2 if "schedule" in split else 1}


def _by_rows(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    return ranks.with_trainer(
        spec, rank, meeting, folder, lambda trainer: sum(part.nbytes for part in trainer.parts.shared._by_rows)
    )


TIED = {**MODEL, "tied": True, "vocab": 72}


@pytest.mark.parametrize("split", [{"pp": 2}, {"pp": 2, "dp": 2, "zero": 2}])
def test_of_a_tied_matrix_both_ends_sum_the_gradient(split: dict[str, Any]) -> None:
    """With ZeRO what a replica owns of it, of which the last one has less."""
    train = {"global_batch": 8, "precision": "bf16"}
    spec = RunSpec.model_validate({"model": TIED, "parallel": {"micro_batches": 2, **split}, "train": train})
    said = [[talk for talk in comm_volumes(spec, rank) if talk.kind == "ends"] for rank in range(spec.parallel.world)]
    summed = [0 if shared is None else shared.nbytes for shared in ranks.run(spec, _shared, ranks.scratch())]
    assert [sum(talk.bytes for talk in talks) for talks in said] == summed
    assert [sum(talk.wire for talk in talks) for talks in said] == summed, "a ring of two passes half of it twice"
    assert sum(summed) == 2 * 4 * 72 * spec.model.hidden


def _shared(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    return ranks.with_trainer(spec, rank, meeting, folder, lambda trainer: trainer.parts.shared._embedding)


@pytest.mark.parametrize(
    ("tied", "split"), [(False, {"pp": 2}), (True, {"pp": 2, "schedule": "zb-v"}), (True, {"dp": 2})]
)
def test_nothing_is_summed_over_ends_that_share_no_matrix_or_are_one_rank(tied: bool, split: dict[str, Any]) -> None:
    model = {**MODEL, "tied": tied}
    spec = RunSpec.model_validate({"model": model, "parallel": {"micro_batches": 2, **split}})
    assert not [talk for rank in range(2) for talk in comm_volumes(spec, rank) if talk.kind == "ends"]
