"""Injected faults: each has the effect it describes, and a run without faults is unaffected."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from parallel_core import faults
from parallel_core.analysis.breakdown import breakdown
from parallel_core.engine.device import CpuDevice
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.fingerprint import ReplicasDiffer
from parallel_core.engine.injected import Injected, SlowLink
from parallel_core.engine.run import run_rank
from parallel_core.layout import Layout
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink, Frame
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import Kind, Op
from parallel_core.spec import RunSpec, field_errors
from tests.parallel_core import ranks
from tests.parallel_core.test_trainer import MODEL, frames, one, series

MIB = 1 << 20


def spec_of(*inject: str, train: dict[str, Any] | None = None, **parallel: Any) -> RunSpec:
    train = {"steps": 6, "warmup_steps": 3, "global_batch": 8} | (train or {})
    broken = [faults.parse(text) for text in inject]
    trace = {"trace_every": 1, **parallel.pop("trace", {})}
    given = {"model": MODEL, "train": train, "parallel": parallel, "trace": trace, "inject": broken}
    return RunSpec.model_validate(given)


def errors(*inject: str, **more: Any) -> dict[str, str]:
    with pytest.raises(ValidationError) as caught:
        spec_of(*inject, **more)
    return field_errors(caught.value)


def test_large_factors_are_said_without_exponents() -> None:
    asked = spec_of("high_scale:scale=1099511627776", "high_lr:factor=1e6,step=5", train={"precision": "fp16"}).inject
    assert [said.replace("\N{NO-BREAK SPACE}", " ") for said in faults.sentences(asked)] == [
        "Loss scale too high: fp16 begins with a loss scale of 1 099 511 627 776",
        "Learning rate too high: the learning rate is 1 000 000 times as high from step 5 on",
    ]


def spans(seen: list[Frame], step: int) -> np.ndarray:
    (found,) = [f for f in seen if f.kind == "spans" and f.header["step"] == step]
    return np.frombuffer(found.blob, SPAN)


def lengths(rows: np.ndarray, kind: Kind) -> list[int]:
    return [int(row["end"] - row["start"]) for row in rows[rows["kind"] == kind]]


# As data


def test_no_run_is_broken_by_default() -> None:
    assert RunSpec().inject == ()
    assert faults.broken(RunSpec()) == RunSpec()


@pytest.mark.parametrize("kind", faults.KINDS)
def test_a_fault_is_spelt_as_it_is_read_and_says_what_it_does(kind: str) -> None:
    made = faults.KINDS[kind].model_validate({})
    assert faults.parse(made.spelt)["kind"] == kind
    assert type(made).model_validate(faults.parse(made.spelt)) == made
    (sentence,) = faults.sentences([made])
    assert sentence.startswith(f"{made.title}: ") and not sentence.endswith(".")
    assert set(made.hints) == set(made.fields())


def test_faults_survive_the_way_through_json() -> None:
    spec = spec_of("straggler:rank=1,factor=3", "slow_link:ms=5", pp=2, micro_batches=2)
    assert RunSpec.model_validate(spec.model_dump(mode="json")) == spec
    assert [one.spelt for one in faults.stored(spec.model_dump(mode="json")["inject"])] == [
        "straggler:rank=1,factor=3",
        "slow_link:rank=0,peer=1,ms=5",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("strag", "straggler"),
        ("straggler:speed=2", "rank=..., factor=..."),
        ("straggler:rank", "rank=..., factor=..."),
    ],
)
def test_what_is_not_spelt_right_is_told_what_would_be(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"there is no fault|says nothing") as caught:
        faults.parse(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("inject", "more", "field", "words"),
    [
        (["straggler:rank=5"], {"pp": 2}, "inject.straggler.rank", "pp=2 has 2; use rank=0, 1."),
        (["straggler", "straggler"], {}, "inject.straggler", "straggler is there twice; leave one of them out."),
        (["slow_link:rank=0,peer=3"], {"dp": 2, "pp": 2}, "inject.slow_link.peer", "use peer=2."),
        (["slow_link"], {"dp": 2}, "inject.slow_link.peer", "pp=1 has none; use pp=2 or more"),
        (["slow_group"], {"tp": 2}, "inject.slow_group.axis", "dp=1 leaves none; use axis=tensor, or dp=2"),
        (["slow_group"], {"train": {"global_batch": 1}}, "inject.slow_group.axis", "leave this fault out"),
        (
            ["slow_group"],
            {"train": {"device": "cuda"}, "dp": 2},
            "inject.slow_group",
            "slow_group makes collectives late, which only CPU devices do, and device=cuda is none; use device=cpu.",
        ),
        (["slow_link"], {"train": {"device": "cuda"}, "pp": 2}, "inject.slow_link", "device=cuda is none"),
        (["unbalanced_cut"], {"dp": 2}, "inject.unbalanced_cut", "use pp=2 or more."),
        (["unbalanced_cut:stage=2"], {"pp": 2}, "inject.unbalanced_cut.stage", "pp=2 has 2; use stage=0, 1."),
        (["unbalanced_cut:units=5"], {"pp": 2}, "inject.unbalanced_cut.units", "at most 2, not units=5; use units=2"),
        (["unbalanced_cut"], {"pp": 2, "cuts": (5,)}, "inject.unbalanced_cut.stage", "it has one; use stage=1."),
        (["unbalanced_cut"], {"pp": 6, "micro_batches": 2}, "inject.unbalanced_cut.stage", "leave this fault out"),
        (["high_scale"], {}, "inject.high_scale", "use precision=fp16."),
        (["high_lr:step=99"], {}, "inject.high_lr.step", "steps=6, which is 5; use step=5 or less, or steps=100"),
        (["memory_hog:rank=1"], {}, "inject.memory_hog.rank", "use rank=0."),
        (["straggler:factor=1"], {}, "inject.straggler.factor", "more than 1"),
    ],
)
def test_a_fault_that_does_not_fit_the_run_names_its_field(
    inject: list[str], more: dict[str, Any], field: str, words: str
) -> None:
    found = errors(*inject, **more)
    assert list(found) == [field]
    assert words in found[field]


@pytest.mark.parametrize(
    ("inject", "more", "second", "name"),
    [
        ("slow_link", {"dp": 2}, "parallel.pp", "pp=1"),
        ("slow_link", {"pp": 2, "train": {"device": "cuda"}}, "train.device", "device=cuda"),
        ("slow_group", {"dp": 2, "train": {"device": "cuda"}}, "train.device", "device=cuda"),
        ("slow_group:axis=tensor", {"dp": 2}, "parallel.tp", "tp=1"),
        ("flipped_bit:rank=2", {"pp": 2, "replicas": (2, 1), "micro_batches": 2}, "parallel.replicas", "replicas=2-1"),
        ("flipped_bit:step=6", {"dp": 2}, "train.steps", "steps=7"),
        (
            "flipped_bit:step=3",
            {"dp": 2, "trace": {"fingerprint_every": 0}},
            "trace.fingerprint_every",
            "nothing would find flipped_bit; use fingerprint_every=20.",
        ),
    ],
)
def test_a_fault_that_does_not_fit_names_the_field_it_does_not_fit(
    inject: str, more: dict[str, Any], second: str, name: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        spec_of(inject, **more)
    (told,) = caught.value.errors()
    assert told["ctx"]["fields"][1:] == [second] and name in told["msg"]


def test_an_unknown_kind_names_the_known_ones() -> None:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({"inject": [{"kind": "gremlin"}]})
    assert "straggler" in field_errors(caught.value)["inject.0"]


@pytest.mark.parametrize(("stage", "heavier"), [(0, 0), (1, 1)])
def test_an_unbalanced_cut_moves_layers_from_the_neighbour(stage: int, heavier: int) -> None:
    spec = spec_of(f"unbalanced_cut:stage={stage},units=1", pp=2)
    healthy, cut = Layout.of(spec).stage_units, Layout.of(faults.broken(spec)).stage_units
    assert len(cut[heavier]) == len(healthy[heavier]) + 1
    assert sum(cut, ()) == sum(healthy, ())


# In the engine


def test_a_straggler_computes_as_long_as_it_says() -> None:
    spec = spec_of("straggler:rank=0,factor=4")
    matrix, taken = torch.ones(64, 64), []

    def run(op: Op) -> int:
        start = time.thread_time_ns()
        for _ in range(200):
            torch.mm(matrix, matrix)
        taken.append(time.thread_time_ns() - start)
        return 7

    start = time.thread_time_ns()
    assert Injected(spec.inject, 0, CpuDevice()).around(run)(Op(Kind.F, 0, 0)) == 7
    assert time.thread_time_ns() - start >= 4 * taken[0]
    assert Injected(spec.inject, 1, CpuDevice()).around(run) is run


def test_a_message_that_cannot_be_sent_fails_where_it_is_waited_for() -> None:
    def send() -> Any:
        raise RuntimeError("peer gone")

    with pytest.raises(RuntimeError, match="peer gone"):
        SlowLink(0.001).isend(send).wait()


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> list[list[Frame]]:
    """Two stages with five faults at once."""
    inject = ("slow_link:ms=30", "slow_data:ms=40", "memory_hog:rank=1,mib=5", "unbalanced_cut:units=1")
    spec = spec_of(*inject, "tiny_kernels:count=3", pp=2, micro_batches=2)
    return frames(spec, tmp_path_factory.mktemp("broken"))


def test_a_message_over_a_slow_link_is_late(pipeline: list[list[Frame]]) -> None:
    first, second = (spans(seen, 4) for seen in pipeline)
    for sender, receiver, send, receive in (
        (first, second, Kind.SEND_ACT, Kind.RECV_ACT),
        (second, first, Kind.SEND_GRAD, Kind.RECV_GRAD),
    ):
        for i in range(2):
            left = sender[(sender["kind"] == send) & (sender["micro_batch"] == i)]["start"]
            came = receiver[(receiver["kind"] == receive) & (receiver["micro_batch"] == i)]["end"]
            assert came - left >= 30e6


def test_slow_data_is_late_and_a_hog_is_measured(pipeline: list[list[Frame]]) -> None:
    assert all(length >= 40e6 for seen in pipeline for length in lengths(spans(seen, 4), Kind.DATA))
    buffers = [one(seen, "memory").header["peak"]["buffers"] for seen in pipeline]
    assert buffers[1] >= 5 * MIB > buffers[0]


def test_an_unbalanced_cut_is_what_is_trained(pipeline: list[list[Frame]]) -> None:
    held = [one(seen, "hello").header["units"] for seen in pipeline]
    healthy = Layout.of(spec_of(pp=2)).stage_units
    assert [len(units) for units in held] == [len(healthy[0]) + 1, len(healthy[1]) - 1]


def test_late_faults_change_no_number(pipeline: list[list[Frame]], tmp_path: Path) -> None:
    healthy = frames(spec_of(pp=2, micro_batches=2), tmp_path)
    np.testing.assert_allclose(series(pipeline[0], "loss")["value"], series(healthy[0], "loss")["value"], rtol=1e-6)


def test_a_wait_for_a_slow_sum_within_a_backward_is_no_computing(tmp_path: Path) -> None:
    spec = spec_of("slow_group:ms=80", dp=2, zero=2, micro_batches=2, train={"steps": 5})
    seen = {rank: spans(own, 4) for rank, own in enumerate(frames(spec, tmp_path))}
    for rank, found in breakdown(seen, Layout.of(spec)).items():
        waits, flown = (lengths(seen[rank], kind) for kind in (Kind.BUCKET_WAIT, Kind.BUCKET_FLIGHT))
        assert [flight + wait >= 80e6 for flight, wait in zip(flown, waits, strict=True)] == [True]
        passes = sum(lengths(seen[rank], Kind.F)) + sum(lengths(seen[rank], Kind.BW))
        assert found.compute == passes - waits[0]


def test_slow_collectives_end_late(tmp_path: Path) -> None:
    seen = frames(spec_of("slow_group:ms=25", "high_lr:step=4,factor=1e6", dp=2), tmp_path)
    assert all(length >= 25e6 for rank in seen for length in lengths(spans(rank, 4), Kind.BUCKET))
    losses = series(seen[0], "loss")["value"]
    assert not losses[5] < 100 * losses[4], "a learning rate of 300 ruins the next step"
    assert losses[4] < 10


def test_a_high_scale_skips_steps_until_it_has_fallen(tmp_path: Path) -> None:
    seen = frames(spec_of("high_scale:scale=1e12", train={"precision": "fp16"}, tp=2), tmp_path)
    assert series(seen[0], "skipped_steps")["value"][0] == 1
    assert series(seen[0], "loss_scale")["value"][0] == 1e12


def _end(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> str:
    try:
        run_rank(spec, rank, FileSink(folder, rank), meeting, Progress(folder, rank))
    except ReplicasDiffer as error:
        return str(error)
    return "done"


def test_a_flipped_bit_is_found_by_every_rank(tmp_path: Path) -> None:
    spec = spec_of("flipped_bit:rank=1,step=3", dp=2)
    first, second = ranks.run(spec, _end, tmp_path)
    assert first == second
    assert first.startswith("Replicas began to differ between steps 0 and 5: ")
    assert ".weight of rank 1 is not that of rank 0" in first or ".bias of rank 1 is not that of rank 0" in first


def test_a_flipped_bit_needs_a_replica_and_a_step() -> None:
    assert "use dp=2" in errors("flipped_bit:rank=1,step=3", pp=2)["inject.flipped_bit"]
    alone = errors("flipped_bit:rank=2,step=3", pp=2, replicas=(2, 1), micro_batches=2)
    assert alone["inject.flipped_bit.rank"] == (
        "With replicas=2-1, rank=2 has no replica that it would differ from; use rank=0, 1."
    )
    assert "use step=5 or less" in errors("flipped_bit:rank=1,step=6", dp=2)["inject.flipped_bit.step"]
