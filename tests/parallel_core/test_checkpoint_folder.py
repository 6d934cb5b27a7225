"""Which checkpoints of a folder are kept when a new one is published, and what SIGKILL in the middle of that leaves."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import manifest as manifests
from parallel_core.checkpoint import parts
from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.checkpoint.manifest import CheckpointError
from parallel_core.checkpoint.verify import verified
from parallel_core.engine.checkpoint import Saver
from parallel_core.local import LocalRunner
from parallel_core.observe.record_files import FileSink, events_path
from parallel_core.spec import RunSpec
from tests.parallel_core.failing_ranks import failed
from tests.parallel_core.frames import read_file
from tests.parallel_core.test_checkpoint import alone, save, spec_of


def kept(folder: Path) -> list[int]:
    """The checkpoints that are kept according to the record of the last save."""
    told = [frame.header["kept"] for frame in read_file(events_path(folder.parent, 0)) if frame.kind == "checkpoint"]
    return list(told[-1])


def test_one_that_lacks_a_file_does_not_push_out_what_was_just_published(tmp_path: Path) -> None:
    """The run keeps one checkpoint, and resumed from step 50 because the one of step 100 is damaged. The damaged one
    must not count as the newest, or step 60 would be dropped.
    """
    folder, trainer = tmp_path / "run", alone(spec_of({}, {"keep": 1}))
    save(alone(), folder, 50, 100)
    (folders.path_of(folder, 100) / "rank-0.bin").unlink()
    save(trainer, folder, 60)
    assert folders.steps(folder) == kept(folder) == [60]


def test_later_ones_go_with_the_first_one_that_a_run_publishes_after_going_back(tmp_path: Path) -> None:
    """Otherwise a run that resumes from the newest checkpoint would continue the abandoned path."""
    folder = tmp_path / "run"
    save(alone(spec_of({}, {"keep": 3})), folder, 10, 20, 30)
    save(alone(spec_of({}, {"keep": 2})), folder, 15)
    assert folders.steps(folder) == kept(folder) == [10, 15]


def test_an_earlier_one_that_cannot_be_read_counts_for_none_and_goes_in_its_turn(tmp_path: Path) -> None:
    folder, trainer = tmp_path / "run", alone(spec_of({}, {"keep": 2}))
    save(alone(spec_of({}, {"keep": 3})), folder, 10, 20)
    (folders.path_of(folder, 20) / "rank-0.bin").unlink()
    save(trainer, folder, 30)
    assert (folders.steps(folder), kept(folder)) == ([10, 20, 30], [10, 30])
    save(trainer, folder, 40)
    assert folders.steps(folder) == kept(folder) == [30, 40]


def test_that_of_the_lowest_held_out_loss_is_kept_as_well(tmp_path: Path) -> None:
    """Of several the first; one whose steps were not evaluated, or without a finite loss, is none."""
    folder, trainer = tmp_path / "run", alone(spec_of({}, {"keep": 2}))
    losses = {10: 3.0, 20: 2.0, 30: float("nan"), 50: 2.0, 60: 1.5}
    found = []
    for step in range(10, 70, 10):
        save(trainer, folder, step, held_out=losses)
        found.append(folders.steps(folder))
        assert kept(folder) == found[-1]
    assert found == [[10], [10, 20], [20, 30], [20, 30, 40], [20, 40, 50], [50, 60]]
    told = [frame.header["held_out"] for frame in read_file(events_path(tmp_path, 0)) if frame.kind == "checkpoint"]
    assert told == [3.0, 2.0, None, None, 2.0, 1.5]
    assert manifests.read(folders.path_of(folder, 60)).held_out == 1.5


@pytest.mark.parametrize(("loss", "left"), [(1.0, [40]), (9.0, [10, 40]), (math.nan, [10, 40])])
def test_a_held_out_loss_that_comes_after_the_save_counts_from_then_on(
    loss: float, left: list[int], tmp_path: Path
) -> None:
    """Where it is the lowest, the checkpoint that was the best goes, if it is none of the newest."""
    folder = tmp_path / "run"
    saver = Saver(alone(spec_of({}, {"keep": 1})), CheckpointConfig(folder), FileSink(tmp_path, 0))
    for step in (10, 40):
        saver.save(step, 2.0 if step == 10 else None)
    saver.wait()
    assert folders.steps(folder) == [10, 40]
    saver.add_held_out(30, 1.0)  # of steps that were not saved
    saver.add_held_out(40, loss)
    assert folders.steps(folder) == kept(folder) == left
    assert verified(folders.path_of(folder, 40)).held_out == (loss if math.isfinite(loss) else None)
    told = [frame.header for frame in read_file(events_path(tmp_path, 0)) if frame.kind == "checkpoint"]
    assert [header["held_out"] for header in told] == [2.0, None, *([loss] if math.isfinite(loss) else [])]


@pytest.mark.parametrize(("killed_in", "found"), [("fsync", None), ("replace", None), ("rmtree", 1.0)])
def test_kill_9_while_a_held_out_loss_is_added_leaves_a_whole_checkpoint(
    killed_in: str, found: float | None, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    save(alone(spec_of({}, {"keep": 1})), folder, 10, 20, held_out={10: 2.0})
    pid = os.fork()
    if pid == 0:
        try:
            with pytest.MonkeyPatch.context() as patch:
                where: Any = {"fsync": os, "replace": Path, "rmtree": shutil}[killed_in]
                patch.setattr(where, killed_in, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
                folders.add_held_out(folder, 0, 20, 1.0, 1)
        finally:  # a child that went on would be a second pytest
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert verified(folders.path_of(folder, 20)).held_out == found
    assert folders.add_held_out(folder, 0, 20, 1.0, 1) == folders.steps(folder) == [20]


def test_a_checkpoint_whose_manifest_cannot_be_written_stays_without_the_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    saver = Saver(alone(), CheckpointConfig(folder), FileSink(tmp_path, 0))
    saver.save(10)
    saver.wait()
    folders.saving(folder, 0, 10).rmdir()
    (folder / f"{folders._SAVING}0-00000010").touch()
    saver.add_held_out(10, 1.0)
    assert "the checkpoint after 10 steps stays without its held-out loss" in caplog.text
    assert verified(folders.path_of(folder, 10)).held_out is None


def test_an_older_one_without_a_held_out_loss_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    save(alone(), folder, 5)
    where = folders.path_of(folder, 5) / manifests.FILE
    raw = json.loads(where.read_text())
    del raw["held_out"], raw["digest"]
    where.write_text(json.dumps({**raw, "digest": manifests._digest(raw)}))
    assert manifests.read(folders.path_of(folder, 5)).held_out is None


@pytest.mark.parametrize(("beside", "inside", "found"), [(0, 4, 4), (4, 2, 4), (3, 3, 3)])
def test_of_a_folder_with_checkpoints_beside_and_inside_the_newest_counts(
    beside: int, inside: int, found: int, tmp_path: Path
) -> None:
    """A run from imported weights that saves into their folder must not be taken for the weights that it began with."""
    save(alone(), tmp_path, beside)
    save(alone(), tmp_path / folders.CHECKPOINTS, inside)
    where = tmp_path if beside > inside else tmp_path / folders.CHECKPOINTS
    path, manifest, passed = folders.resolve(tmp_path)
    assert (path, manifest.step, passed) == (folders.path_of(where, found), found, {})


def test_damaged_ones_of_both_places_are_named(tmp_path: Path) -> None:
    save(alone(), tmp_path, 2)
    for folder in (tmp_path, tmp_path / folders.CHECKPOINTS):
        save(alone(), folder, 3)
        (folders.path_of(folder, 3) / "rank-0.bin").write_bytes(b"short")
    path, _, passed = folders.resolve(tmp_path)
    assert path == folders.path_of(tmp_path, 2)
    assert str(tmp_path / "step-00000003") in passed[3] and "checkpoints/step-00000003" in passed[3]


def test_a_part_is_done_once_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 may have seen it and published the checkpoint at that moment."""
    where, replace = folders.saving(tmp_path, 1, 5), Path.replace

    def replace_and_publish(self: Path, target: Path) -> Path:
        found = replace(self, target)
        where.rename(folders.path_of(tmp_path, 5))
        return found

    monkeypatch.setattr(Path, "replace", replace_and_publish)
    parts.write_part(where, 1, {"tensors": {}, "bytes": 0})
    assert [path.name for path in folders.path_of(tmp_path, 5).iterdir()] == ["rank-1.json"]


def test_a_run_on_this_host_publishes_nothing_of_a_killed_one(runner: LocalRunner, tmp_path: Path) -> None:
    """Both save under one number of an attempt, so rank 0 would take a part that is left for a new one."""
    saved = tmp_path / folders.CHECKPOINTS
    for step in (1, 99):
        left = folders.saving(saved, 0, step)
        (left / "rank-7.bin").write_bytes(b"of more ranks")
        parts.write_part(left, 0, {"tensors": {}, "bytes": 0})
    spec = RunSpec.model_validate(
        {"model": {"kind": "mlp"}, "train": {"steps": 1, "warmup_steps": 0, "checkpoint_every": 1}}
    )
    assert runner.run(spec, tmp_path).ok
    assert [path.name for path in saved.iterdir()] == ["step-00000001"]
    assert {path.name for path in folders.path_of(saved, 1).iterdir()} == {"rank-0.bin", manifests.FILE}


@pytest.mark.full
def test_a_run_on_this_host_that_fails_in_a_save_leaves_no_part_of_it(tmp_path: Path) -> None:
    outcome = failed(tmp_path, "cpu", checkpoint_every=2)
    assert "Rank 1 failed" in outcome.failure() and "a fault of the code" in outcome.failure()
    assert list((tmp_path / folders.CHECKPOINTS).iterdir()) == []


@pytest.mark.parametrize("renames", [1, 2, 3])
def test_kill_9_while_one_is_replaced_leaves_the_old_or_the_new(renames: int, tmp_path: Path) -> None:
    """Kills the process before the old checkpoint is renamed, between the two renames, and after them."""
    folder, rename = tmp_path / "run", Path.rename
    save(alone(), folder, 5, attempt=1)
    pid = os.fork()
    if pid == 0:
        left = [renames]

        def killed(self: Path, target: Path) -> Path:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return rename(self, target)

        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Path, "rename", killed)
                save(alone(), folder, 5, 6, attempt=2)
        finally:  # a child that went on would be a second pytest
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    folders.tidy(folder, 3)
    assert [path.name for path in folder.iterdir()] == ["step-00000005"]
    assert manifests.read(folders.path_of(folder, 5)).attempt == (1 if renames < 3 else 2)


def test_an_attempt_that_a_later_one_has_superseded_publishes_and_drops_nothing(tmp_path: Path) -> None:
    """It trains on a host that is cut off from the yard, but not from the folder that both share."""
    folder = tmp_path / "run"
    save(alone(), folder, 5, 6, attempt=1)
    earlier = Saver(alone(), CheckpointConfig(folder, None, 1, 1), FileSink(tmp_path, 0))
    folders.claim(folder, 2)
    earlier.save(7)
    with pytest.raises(CheckpointError, match="its later attempt 2 has begun in"):
        earlier.wait()
    assert folders.steps(folder) == [5, 6]
    with pytest.raises(CheckpointError, match="its later attempt 2"):
        folders.claim(folder, 1)
    save(alone(), folder, 7, attempt=2)
    assert folders.steps(folder) == [6, 7]


def supersede_after(late: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begins attempt 2 as soon as the next call of this function of `folders`, or of `parts`, has returned."""
    place = folders if hasattr(folders, late) else parts
    usual = getattr(place, late)

    def claimed(*arguments: Any, **about: Any) -> Any:
        found = usual(*arguments, **about)
        monkeypatch.setattr(place, late, usual)
        folders.claim(folder, 2)
        return found

    monkeypatch.setattr(place, late, claimed)


@pytest.mark.parametrize("late", ["merge", "flush"])
def test_between_its_last_look_and_the_rename_an_attempt_is_superseded_too(
    late: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It published then, and dropped what the later one was about to read: before its manifest is written, or after."""
    folder = tmp_path / "run"
    save(alone(), folder, 5, 6, attempt=1)
    supersede_after(late, folder, monkeypatch)
    with pytest.raises(CheckpointError, match="its later attempt 2"):
        save(alone(spec_of({}, {"keep": 1})), folder, 6, attempt=1)
    assert sorted(path.name for path in folder.iterdir()) == [".attempt", "step-00000005", "step-00000006"]


@pytest.mark.parametrize("late", ["read", "write_text"])
def test_a_superseded_attempt_adds_no_held_out_loss_to_what_a_later_one_may_read(
    late: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later one begins once the earlier one has read the manifest, or written the new one beside it."""
    folder = tmp_path / "run"
    save(alone(), folder, 5, 6, attempt=1)
    supersede_after(late, folder, monkeypatch)
    with pytest.raises(CheckpointError, match="its later attempt 2"):
        folders.add_held_out(folder, 1, 6, 1.0, 1)
    assert verified(folders.path_of(folder, 6)).held_out is None
    assert sorted(path.name for path in folder.iterdir()) == [".attempt", "step-00000005", "step-00000006"]


def test_an_attempt_that_has_published_does_not_drop_what_a_later_one_publishes_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host was frozen between its last rename and the look for what is superseded."""
    folder, usual = tmp_path / "run", folders.steps
    save(alone(), folder, 5, attempt=1)

    def frozen(where: Path) -> list[int]:
        monkeypatch.setattr(folders, "steps", usual)
        folders.claim(folder, 2)
        save(alone(), folder, 7, attempt=2)
        return usual(where)

    monkeypatch.setattr(folders, "steps", frozen)
    save(alone(spec_of({}, {"keep": 1})), folder, 6, attempt=1)
    assert folders.steps(folder) == [6, 7]


def test_what_a_superseded_attempt_was_about_to_publish_stays_unpublished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later one begins while the earlier one waits for the parts of its other ranks."""
    folder, gathered = tmp_path / "run", parts.gather_parts

    def late(*arguments: Any) -> list[dict[str, Any]]:
        written = gathered(*arguments)
        folders.claim(folder, 2)
        return written

    monkeypatch.setattr(parts, "gather_parts", late)
    with pytest.raises(CheckpointError, match="its later attempt 2"):
        save(alone(), folder, 5, attempt=1)
    assert folders.steps(folder) == []
