"""The end of a run beside its last checkpoint: what fails, stops or kills it there loses nothing that was trained."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import manifest as manifests
from parallel_core.checkpoint import match
from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.checkpoint.manifest import CheckpointError
from parallel_core.engine import storage
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.run import run_rank
from parallel_core.engine.shares import Share
from parallel_core.observe.memory import MemoryCapExceeded
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink, events_path
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks
from tests.parallel_core.frames import read_file
from tests.parallel_core.test_checkpoint import END, spec_of

SLOW_S = 0.5
"""What rank 0 takes longer to write: its peer is far into the metered step by then, if it does not wait."""


def _capped(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> list[int]:
    """The checkpoints that are there when the metered step, behind the last one, fails."""
    write = storage.write

    def slow(shares: Mapping[str, Share], file: Path, tell: Any) -> dict[str, Any]:
        time.sleep(SLOW_S)
        return write(shares, file, tell)

    with pytest.MonkeyPatch.context() as patch:
        if rank == 0:
            patch.setattr(storage, "write", slow)
        with pytest.raises(MemoryCapExceeded):
            order = CheckpointConfig(folder / "run")
            run_rank(spec, rank, FileSink(folder, rank), meeting, Progress(folder, rank), saves=order)
        return folders.steps(folder / "run")


def test_the_last_checkpoint_is_there_before_the_metered_step_can_fail(tmp_path: Path) -> None:
    """On every rank: the first one that fails ends the others, also that which publishes."""
    spec = RunSpec.model_validate(
        spec_of({}, {"checkpoint_every": END, "warmup_steps": 0}, dp=2).model_dump() | {"trace": {"memory_cap": 1000}}
    )
    assert ranks.run(spec, _capped, tmp_path) == [[END], [END]]


class _TermIn(Progress):
    """Rank 1 is sent SIGTERM while it works on `step`."""

    def __init__(self, folder: Path, rank: int, step: int) -> None:
        self._due = step if rank == 1 and step >= 0 else None
        super().__init__(folder, rank)

    def at(self, step: int, op: str) -> None:
        super().at(step, op)
        if step == self._due:
            self._due = None
            os.kill(os.getpid(), signal.SIGTERM)


def _run(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path, term: int = -1, **order: Any) -> None:
    """With `order` of CheckpointConfig."""
    saves = CheckpointConfig(folder / "run", **order)
    run_rank(spec, rank, FileSink(folder, rank), meeting, _TermIn(folder, rank, term), saves=saves)


def told(folder: Path, rank: int) -> dict[str, list[dict[str, Any]]]:
    """Kind of record -> headers."""
    found: dict[str, list[dict[str, Any]]] = {}
    for frame in read_file(events_path(folder, rank)):
        found.setdefault(frame.kind, []).append(frame.header)
    return found


@pytest.mark.parametrize(
    ("split", "every"),
    [({"dp": 2}, 4), ({"dp": 2}, 0), ({"pp": 2, "schedule": "1f1b-stash", "micro_batches": 4}, 4)],
    ids=["saving", "not saving", "never drained"],
)
def test_a_stop_in_the_last_step_ends_a_run_that_is_done(split: dict[str, Any], every: int, tmp_path: Path) -> None:
    """Nothing is left to a later attempt: it saves, since a kill may follow, and goes on to its end."""
    spec = spec_of({}, {"checkpoint_every": every, "clip": "stage"}, **split)
    ranks.run(spec, partial(_run, term=END - 1), tmp_path)
    assert folders.steps(tmp_path / "run")[-1] == END
    for rank in (0, 1):
        records = told(tmp_path, rank)
        assert records["phase"][-1]["phase"] == "done" and len(records["summary"]) == 1


def test_what_a_run_saved_behind_its_last_step_it_only_ends_from(tmp_path: Path) -> None:
    """Its worker was killed behind that. Whoever begins another run from there is told that no step is left."""
    spec = spec_of({}, {"checkpoint_every": END}, dp=2)
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    ranks.run(spec, partial(_run, run=7), first)
    saved = folders.path_of(first / "run", END)
    ranks.run(spec, partial(_run, resume=saved, run=7), second)
    for rank in (0, 1):
        records = told(second, rank)
        assert [record["phase"] for record in records["phase"]] == ["building", "done"]
        assert "points" not in records and records["memory"][0]["peak_total"] > 0
    for run in (0, 8):
        with pytest.raises(CheckpointError, match=f"{END} steps done; steps={END} leaves none to train"):
            match.require_match(manifests.read(saved), spec, run)
