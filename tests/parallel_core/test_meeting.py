"""Before the first step, every group and every pair of ranks communicates once, as NCCL needs, without a deadlock."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from pydantic import ValidationError

from parallel_core.engine import host_memory
from parallel_core.engine.distributed import Rendezvous, connect, disconnect, joined, pairs, warm_up
from parallel_core.engine.stop import Stopped
from parallel_core.launch import EXIT_FAULT
from parallel_core.layout import Layout
from parallel_core.rules.communicators import communicators
from parallel_core.schedule import build
from parallel_core.schedule.ir import SENDS, Kind
from parallel_core.schedule.stream import Windows
from parallel_core.schedule.traits import ScheduleName
from parallel_core.schedule.ways import BACK
from parallel_core.spec import ParallelSpec, RunSpec, field_errors
from tests.parallel_core.failing_ranks import failed
from tests.parallel_core.ranks import run
from tests.parallel_core.strategies import run_specs

SPLITS: dict[str, dict[str, Any]] = {
    "line": {"pp": 3, "schedule": "1f1b", "micro_batches": 4},
    "loop": {"pp": 3, "schedule": "interleaved", "chunks": 2, "micro_batches": 3},
    "V of pairs": {"pp": 2, "dp": 2, "schedule": "zb-v", "micro_batches": 4},
    "replicas in turn": {"pp": 2, "replicas": (2, 1), "schedule": "1f1b", "micro_batches": 4},
    "one, then two tensor ranks": {"pp": 2, "widths": (1, 2), "schedule": "1f1b", "micro_batches": 4},
    "box": {"pp": 2, "tp": 2, "schedule": "1f1b-stash", "micro_batches": 2},
}


def spec_of(split: dict[str, Any]) -> RunSpec:
    model = {"layers": 6, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64}
    return RunSpec.model_validate({"model": model, "parallel": split, "train": {"global_batch": 24, "clip": "stage"}})


def _meet(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> bool:
    # without shared memory: gloo's send blocks until it is received, like opening a NCCL communicator
    os.environ[host_memory.SWITCH] = "0"
    layout = Layout.of(spec)
    groups = connect(meeting, rank, layout, "gloo")
    try:
        warm_up(groups, rank, layout, torch.device("cpu"))
        return True
    finally:
        disconnect()


@pytest.mark.parametrize("name", SPLITS)
def test_ranks_meet(name: str, tmp_path: Path) -> None:
    spec = spec_of(SPLITS[name])
    assert run(spec, _meet, tmp_path) == [True] * spec.parallel.world


class Broken(Exception):
    pass


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("error", [None, Broken(), Stopped(3)])
def test_a_rank_that_fails_does_not_wait_for_messages_on_a_gpu(
    error: Exception | None, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    monkeypatch.setattr(dist, "get_backend", lambda: backend)
    try:
        with pytest.raises(type(error)) if error else nullcontext(), joined():
            if error is not None:
                raise error
        assert dist.is_initialized() == (isinstance(error, Broken) and backend == "nccl")
    finally:
        disconnect()


def test_a_rank_that_fails_with_messages_under_way_ends_the_run(tmp_path: Path) -> None:
    outcome = failed(tmp_path, "cpu")
    first = outcome.exits[0]
    assert (first.rank, first.code) == (1, EXIT_FAULT) and "ValueError: a fault of the code" in outcome.failure()


@given(run_specs(in_turn=True))
def test_those_meet_who_exchange_messages(spec: RunSpec) -> None:
    layout = Layout.of(spec)
    met = {kind: {rank: pairs(rank, layout, kind) for rank in range(layout.world)} for kind in layout.ways}
    for found in met.values():
        for rank, mine in found.items():
            assert mine == sorted(mine)
            assert all(rank in pair and pair in found[pair[0]] and pair in found[pair[1]] for pair in mine)
    programs = build(spec).programs if spec.parallel.flushes else Windows(spec).window(0, 3).programs
    sent = {
        (op.peer > here, op.kind is Kind.SEND_ACT, rank, receiver)
        for rank in range(layout.world)
        for here in (layout.pipeline_rank(rank),)
        for op in programs[here]
        if op.kind in SENDS
        for receiver in layout.receivers(rank, op.peer)
    }
    assert sent == {(*kind, *pair) for kind, found in met.items() for mine in found.values() for pair in mine}


@given(run_specs(in_turn=True))
def test_communicators_are_those_of_its_groups_and_pairs(spec: RunSpec) -> None:
    layout = Layout.of(spec)
    sets = [*layout.tensor_groups(), *layout.data_groups(), *(layout.end_groups() if spec.model.tied else ())]

    def opened(rank: int) -> int:
        met = sum(len(pairs(rank, layout, kind)) for kind in layout.ways)
        return 1 + met + sum(rank in members and len(members) > 1 for members in sets)

    assert communicators(spec.parallel, spec.model.tied) == max(map(opened, range(layout.world)))


@pytest.mark.parametrize("pp", [12, 24])
def test_a_rank_of_a_long_pipeline_has_few_communicators(pp: int) -> None:
    """A stream each: PyTorch has 32 (`rules.communicators`)."""
    known: dict[ScheduleName, int] = {"1f1b": 4, "interleaved": 4, "zb-v": 8}
    for schedule, most in known.items():
        split = ParallelSpec(pp=pp, schedule=schedule, micro_batches=2 * pp, chunks=None if schedule == "1f1b" else 2)
        assert communicators(split, tied=False) == 1 + most


def test_who_generates_sends_tokens_to_all_stages() -> None:
    spec = RunSpec.model_validate({"model": {"layers": 4}, "parallel": {"pp": 4, "tp": 2, "micro_batches": 4}})
    layout = Layout.of(spec)
    back = {pair for rank in range(layout.world) for pair in pairs(rank, layout, BACK, generates=True)}
    assert {(6, 0), (6, 2), (6, 4), (7, 1), (7, 3), (7, 5)} <= back
    assert (6, 0) not in pairs(6, layout, BACK)


CUDA = {"device": "cuda", "global_batch": 480, "clip": "stage"}


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (
            {"pp": 2, "replicas": (19, 1), "micro_batches": 240, "schedule": "1f1b-stash"},
            "replicas=19-1 makes a rank exchange messages with so many others that it has 39 communicators, and "
            "PyTorch has 32 streams for them on device=cuda; use replicas=15,1, or dp=2 in place of replicas.",
        ),
        (
            {"pp": 2, "widths": (1, 32), "micro_batches": 4},
            "widths=1-32 makes a rank exchange messages with so many others that it has 34 communicators, and "
            "PyTorch has 32 streams for them on device=cuda; use widths=1,16, or tp=2 in place of widths.",
        ),
    ],
)
def test_more_communicators_than_streams_are_refused(split: dict[str, Any], message: str) -> None:
    raw = {"model": {"layers": 4, "hidden": 256, "heads": 64}, "parallel": split, "train": CUDA}
    with pytest.raises(ValidationError) as error:
        RunSpec.model_validate(raw)
    assert field_errors(error.value) == {f"parallel.{'replicas' if 'replicas' in split else 'widths'}": message}
    RunSpec.model_validate({**raw, "train": {**CUDA, "device": "cpu"}})


def test_the_split_of_the_pipedream_paper_fits() -> None:
    """15-1 for VGG-16 (Narayanan et al. 2019, table 1)."""
    split = {"pp": 2, "replicas": (15, 1), "micro_batches": 30, "schedule": "1f1b-stash"}
    RunSpec.model_validate({"model": {"layers": 4}, "parallel": split, "train": CUDA})
