"""A run that is stopped, or whose disk is full, says that it saved only what is whole on every rank."""

from __future__ import annotations

import errno
import gc
import os
import signal
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import manifest as manifests
from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.checkpoint.manifest import CheckpointError
from parallel_core.engine import checkpoint, storage
from parallel_core.engine.distributed import Rendezvous
from parallel_core.engine.run import run_rank
from parallel_core.engine.stop import Stopped
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink, events_path
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks
from tests.parallel_core.frames import read_file
from tests.parallel_core.test_checkpoint import alone, spec_of


class _TermAt(FileSink):
    """A sink that sends SIGTERM to its own process once rank 1 has written the points of some step."""

    def emit(self, kind: str, blob: bytes = b"", **header: Any) -> None:
        super().emit(kind, blob, **header)
        if kind == "points" and self.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def run_until_stopped(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> int:
    try:
        run_rank(
            spec, rank, _TermAt(folder, rank), meeting, Progress(folder, rank), saves=CheckpointConfig(folder / "run")
        )
    except Stopped as stopped:
        return stopped.step
    return -1


def test_sigterm_of_one_rank_saves_behind_the_same_step_everywhere(tmp_path: Path) -> None:
    spec = spec_of({}, {"steps": 100_000}, dp=2)
    steps = ranks.run(spec, run_until_stopped, tmp_path)
    assert steps[0] == steps[1] > 0
    assert folders.steps(tmp_path / "run") == [steps[0]]
    assert manifests.read(folders.path_of(tmp_path / "run", steps[0])).scalars["steps"] == steps[0]


def _run_unpublished(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> str:
    """How the rank ends if rank 0 cannot publish the checkpoint."""
    with pytest.MonkeyPatch.context() as patch:
        if rank == 0:
            patch.setattr(folders, "publish", _no_space)
        try:
            run_until_stopped(spec, rank, meeting, folder)
        except CheckpointError as error:
            return str(error)
        except Exception as error:
            return type(error).__name__
    return "said that it had saved"


def _no_space(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_no_rank_says_that_it_saved_before_the_checkpoint_is_whole(tmp_path: Path) -> None:
    """After SIGTERM, an exit code that reports a saved state makes the yard queue the run again from that
    checkpoint.
    """
    spec = spec_of({}, {"steps": 100_000}, dp=2)
    ends = ranks.run(spec, _run_unpublished, tmp_path)
    assert "No space left" in ends[0]
    assert ends[1] != "said that it had saved"
    assert folders.steps(tmp_path / "run") == []
    told = [f.header["last"] for f in read_file(events_path(tmp_path, 0)) if f.kind == "left_out"]
    assert told == [True], "no next one is tried"


def _run_short_of_room(
    spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path, short: int, at: Sequence[int]
) -> str:
    """How the run ends for a rank if there is no room for what rank `short` writes after the steps `at`."""
    append = storage._append

    def full(out: BinaryIO, *more: Any) -> str:
        if rank == short and any(out.name.endswith(f"{step:08}/rank-{rank}.bin") for step in at):
            _no_space()
        return append(out, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "_append", full)
        try:
            _run_whole(spec, rank, meeting, folder)
        except CheckpointError as error:
            return str(error)
        except Exception as error:
            return type(error).__name__
    return "done"


@pytest.mark.parametrize("short", [0, 1])
def test_a_checkpoint_that_finds_no_room_is_left_out_and_the_next_one_tried(tmp_path: Path, short: int) -> None:
    spec = spec_of({}, {"checkpoint_every": 4, "keep": 9}, pp=2)
    ends = ranks.run(spec, partial(_run_short_of_room, short=short, at=(4,)), tmp_path)
    assert ends == ["done", "done"]
    assert folders.steps(tmp_path / "run") == [8, 9]
    left = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert left == [".saving-0-sign-1", "step-00000008", "step-00000009"]
    told = [f.header for f in read_file(events_path(tmp_path, 0)) if f.kind == "left_out"]
    assert [(said["step"], said["why"][:23]) for said in told] == [(4, "No space left on device")]


def _run_without_files(
    spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path, short: Sequence[int], number: int
) -> str:
    """How the run ends for a rank if the ranks `short` can make neither a folder nor a file after 4 and 5 steps."""
    usual = {name: getattr(Path, name) for name in ("mkdir", "touch", "open")}

    def full(name: str, path: Path, *more: Any, **named: Any) -> Any:
        if rank in short and any(f"{step:08}" in str(path) for step in (4, 5)) and not path.exists():
            raise OSError(number, os.strerror(number))
        return usual[name](path, *more, **named)

    with pytest.MonkeyPatch.context() as patch:
        for name in usual:
            patch.setattr(Path, name, lambda path, *more, made=name, **named: full(made, path, *more, **named))
        try:
            _run_whole(spec, rank, meeting, folder)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "done"


@pytest.mark.parametrize(("short", "number"), [((0,), errno.ENOSPC), ((1,), errno.EDQUOT), ((0, 1), errno.ENOSPC)])
def test_a_disk_that_takes_no_file_at_all_leaves_out_checkpoints_too(
    tmp_path: Path, short: tuple[int, ...], number: int
) -> None:
    """As one without inodes, or that something else has filled to the last byte."""
    spec = spec_of({}, {"steps": 6, "checkpoint_every": 1, "keep": 9}, pp=2)
    ends = ranks.run(spec, partial(_run_without_files, short=short, number=number), tmp_path)
    assert ends == ["done", "done"]
    assert folders.steps(tmp_path / "run") == [1, 2, 3, 6]
    told = [f.header for f in read_file(events_path(tmp_path, 0)) if f.kind == "left_out"]
    why = f"{os.strerror(number)} for the part of rank {short[0]}"
    assert [(said["step"], said["why"], said["last"]) for said in told] == [(4, why, False), (5, why, False)]


def test_the_copy_of_a_checkpoint_that_is_left_out_is_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only by the next save: until then it is as much memory again as the state."""
    saver = checkpoint.Saver(alone(), CheckpointConfig(tmp_path / "run"), FileSink(tmp_path, 0))
    copied, copies = saver._copied, list[weakref.ref[Any]]()

    def watched() -> Any:
        made, stats = copied()
        copies.extend(weakref.ref(memory) for pieces in made.values() for _, memory in pieces)
        return made, stats

    monkeypatch.setattr(saver, "_copied", watched)
    monkeypatch.setattr(storage, "_append", _no_space)
    saver.save(1)
    saver.wait(required=False)
    gc.collect()
    assert saver._left_out is not None and copies
    assert not any(memory() is not None for memory in copies)


@pytest.mark.parametrize(("blocks", "saved"), [(0, True), (100, False)])
def test_a_mount_that_says_no_size_is_no_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, saved: bool
) -> None:
    told = os.statvfs_result((4096, 4096, blocks, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "fstatvfs", lambda _: told)
    saver = checkpoint.Saver(alone(), CheckpointConfig(tmp_path / "run"), FileSink(tmp_path, 0))
    saver.save(1)
    saver.wait(required=False)
    assert folders.steps(tmp_path / "run") == ([1] if saved else [])


@pytest.mark.parametrize("short", [0, 1])
def test_a_run_whose_last_checkpoint_finds_no_room_says_that_it_is_lost(tmp_path: Path, short: int) -> None:
    spec = spec_of({}, {"checkpoint_every": 4, "keep": 9}, pp=2)
    ends = ranks.run(spec, partial(_run_short_of_room, short=short, at=(8, 9)), tmp_path)
    assert "The checkpoint after 9 steps could not be written" in ends[0] and "No space left on device" in ends[0]
    assert ends[1] != "done"
    assert folders.steps(tmp_path / "run") == [4]


def _run_whole(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path, resume: Path | None = None) -> None:
    order = CheckpointConfig(folder / "run", resume)
    run_rank(spec, rank, FileSink(folder, rank), meeting, Progress(folder, rank), saves=order)


def test_a_run_saves_every_k_steps_and_at_its_end_and_resumes_its_steps(tmp_path: Path) -> None:
    spec = spec_of({}, {"checkpoint_every": 4, "keep": 9}, pp=2)
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    ranks.run(spec, _run_whole, first)
    assert folders.steps(first / "run") == [4, 8, 9]
    ranks.run(spec, partial(_run_whole, resume=folders.path_of(first / "run", 4)), second)
    assert folders.steps(second / "run") == [8, 9]
    phases = [(f.header["phase"], f.header["step"]) for f in read_file(events_path(second, 0)) if f.kind == "phase"]
    assert phases == [("building", 0), ("warmup", 4), ("timed", 7), ("done", 9)]
    assert tensors_of(first / "run", 9) == tensors_of(second / "run", 9)


def tensors_of(folder: Path, step: int) -> dict[str, list[str]]:
    """The sha256 of every piece, by tensor."""
    read = manifests.read(folders.path_of(folder, step))
    return {name: [piece.sha256 for piece in stored.pieces] for name, stored in read.tensors.items()}
