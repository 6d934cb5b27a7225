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

from parallel_core.engine import host_memory
from parallel_core.engine.distributed import Rendezvous, connect, disconnect, joined, meet, pairs
from parallel_core.engine.stop import Stopped
from parallel_core.launch import EXIT_FAULT
from parallel_core.layout import Layout
from parallel_core.schedule import build
from parallel_core.schedule.ir import SENDS
from parallel_core.schedule.stream import Windows
from parallel_core.spec import RunSpec
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
        meet(groups, rank, layout, torch.device("cpu"))
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
    assert outcome.exits[0] == (1, EXIT_FAULT) and "ValueError: a fault of the code" in outcome.failure()


@given(run_specs(in_turn=True))
def test_whoever_sends_has_met_who_takes(spec: RunSpec) -> None:
    layout = Layout.of(spec)
    met = {up: {rank: pairs(rank, layout, up) for rank in range(layout.world)} for up in (True, False)}
    for found in met.values():
        for rank, mine in found.items():
            assert mine == sorted(mine)
            assert all(rank in pair and pair in found[pair[0]] and pair in found[pair[1]] for pair in mine)
    programs = build(spec).programs if spec.parallel.flushes else Windows(spec).window(0, 3).programs
    for rank in range(layout.world):
        here = layout.pipeline_rank(rank)
        sent = {
            (op.peer, receiver)
            for op in programs[here]
            if op.kind in SENDS
            for receiver in layout.receivers(rank, op.peer)
        }
        assert all((rank, receiver) in met[peer > here][rank] for peer, receiver in sent)
