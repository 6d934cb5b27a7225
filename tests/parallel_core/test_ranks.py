"""The ranks of engine tests: turns of one launch do not affect each other, whatever one of them does."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

from parallel_core.engine import host_memory
from parallel_core.engine.device import use_deterministic_algorithms
from parallel_core.engine.distributed import Rendezvous
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks

TWO = RunSpec.model_validate({"parallel": {"dp": 2}, "train": {"global_batch": 2}})


def _plain(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    return rank, os.environ.get(host_memory.NODE), torch.are_deterministic_algorithms_enabled()


def _changes(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    os.environ[host_memory.NODE] = "1"
    use_deterministic_algorithms()
    return _plain(spec, rank, meeting, folder)


def _raises(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> None:
    assert rank != 1, "as asked"


def _dies(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def _hangs(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> None:
    while rank == 1:
        time.sleep(60)


def test_a_turn_begins_with_the_environment_of_the_first() -> None:
    untouched: list[Any] = [(0, None, False), (1, None, False)]
    changed: list[Any] = [(0, "1", True), (1, "1", True)]
    assert ranks.run_each([(TWO, _plain), (TWO, _changes), (TWO, _plain)]) == [untouched, changed, untouched]


def test_only_the_turn_fails_in_which_a_rank_raises_dies_or_hangs() -> None:
    turns: list[ranks.Turn] = [(TWO, work) for work in (_plain, _raises, _plain, _dies, _plain, _hangs, _plain)]
    found = ranks.run_each(turns, limit_s=10)
    assert [isinstance(one, str) for one in found] == [False, True, False, True, False, True, False]
    assert "as asked" in found[1] and "rank 1 of {" in found[1]
    assert "rank 1 ended without a result: " in found[3] and "rank 0" not in found[3]
    assert "rank 1 ended without a result: " in found[5]
