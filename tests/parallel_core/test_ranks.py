"""The ranks of engine tests: turns of one launch do not affect each other, whatever one of them does."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from parallel_core.engine import host_memory
from parallel_core.engine.device import use_deterministic_algorithms
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.norm import Totals
from parallel_core.layout import Coords
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks
from tests.parallel_core.parity import Launches, spec_of

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


@pytest.mark.full
def test_only_the_turn_fails_in_which_a_rank_raises_dies_or_hangs() -> None:
    turns: list[ranks.Turn] = [(TWO, work) for work in (_plain, _raises, _plain, _dies, _plain, _hangs, _plain)]
    found = ranks.run_each(turns, limit_s=10)
    assert [isinstance(one, str) for one in found] == [False, True, False, True, False, True, False]
    assert "as asked" in found[1] and "rank 1 of {" in found[1]
    assert "rank 1 ended without a result: " in found[3] and "rank 0" not in found[3]
    assert "rank 1 ended without a result: " in found[5]


def test_behind_too_many_turns_that_hang_no_other_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that hangs every turn would otherwise be told only after hours."""
    monkeypatch.setattr(ranks, "MOST_HUNG", 1)
    hung, *others = ranks.run_each([(TWO, work) for work in (_hangs, _plain, _plain)], limit_s=3)
    assert "rank 1 ended without a result: " in hung
    assert others == ["not run: 1 of the turns before it ended nothing in 3 s"] * 2


WHOLE, RAISES, DISAGREES, MISSHAPEN = range(4)


def _one_case(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> Any:
    """What `parity.observe` returns of a step of tensor parallelism; the seed says what is wrong with it."""
    case = spec.train.seed
    assert case != RAISES, "as asked"
    loss = float(rank if case == DISAGREES else 0)
    shard = {"norm.weight": np.ones(2 + (rank if case == MISSHAPEN else 0))}
    return Coords(0, 0, rank), [shard], shard, shard, [Totals(loss, 0.0)]


def test_a_case_that_fails_fails_alone_and_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[list[int]] = []

    def counted(turns: Sequence[ranks.Turn], limit_s: float) -> list[list[Any] | str]:
        launches.append([spec.train.seed for spec, _ in turns])
        return run_each(turns, limit_s)

    run_each = ranks.run_each
    monkeypatch.setattr(ranks, "run_each", counted)
    cases = [RAISES, DISAGREES, WHOLE, MISSHAPEN]
    found = Launches(cases, lambda case: spec_of({}, {"seed": case}, tp=2), lambda case: case != MISSHAPEN, _one_case)
    for _ in range(2):
        assert found[WHOLE].losses == [0.0]
        for case, words in ((RAISES, "as asked"), (DISAGREES, "ranks disagree"), (MISSHAPEN, "differs between")):
            with pytest.raises(AssertionError, match=words):
                found[case]
    assert launches == [[RAISES, DISAGREES, WHOLE], [MISSHAPEN]]
