"""Folders of checkpoints where one number means several runs: after a restored backup, or in a folder that several
yards share."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import manifest as manifests
from parallel_core.checkpoint.manifest import FILE, CheckpointError, Manifest
from parallel_core.spec import RunSpec
from tests.workers.harness import tiny
from workers import checkpoints
from workers.checkpoints import Beginning, begin, unfound
from workers.contract import RunIdentity, StartMessage
from workers.settings import Settings
from workers.worker import Worker

SPEC = RunSpec.model_validate(tiny(20))
OURS, THEIRS = "0a" * 8, "0b" * 8
RUN = 101


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings("a", "unix://x", tmp_path, tmp_path, shared_checkpoints=tmp_path / "shared")


def whose(uid: str, *attempts: int) -> RunIdentity:
    return {"uid": uid, "attempts": list(attempts)}


def message(attempt: int, number: int, identity: RunIdentity | None = None, **more: Any) -> StartMessage:
    found: Any = {"run": RUN, "attempt": attempt, "number": number, "spec": {}, "nodes": [], **more}
    return cast(StartMessage, {**found, "identity": identity} if identity else found)


def save(where: Path, step: int, attempt: int) -> Path:
    """A checkpoint without tensors, with the names that versions before this one wrote, too."""
    path = folders.path_of(where, step)
    path.mkdir(parents=True)
    spec = SPEC.model_dump(mode="json")
    (path / FILE).write_text(Manifest(step, RUN, attempt, spec, scalars={}, tensors={}).text())
    return path


def at(settings: Settings, attempt: int, number: int, identity: RunIdentity | None = None, **more: Any) -> Beginning:
    return begin(settings, message(attempt, number, identity, **more), SPEC)


def test_a_retry_does_not_begin_where_a_run_ended_that_a_restored_backup_forgot(settings: Settings) -> None:
    first = at(settings, 7, 1, whose(THEIRS, 7))
    old = save(first.folder, 20, attempt=7)
    retry = at(settings, 9, 2, whose(OURS, 8, 9))
    assert (retry.resume, retry.told["step"], retry.told["why"]) == (None, 0, "no checkpoint of it is on a")
    assert retry.folder != first.folder and old.exists()
    mine = save(retry.folder, 10, attempt=9)
    assert at(settings, 10, 3, whose(OURS, 8, 9, 10)).resume == mine


def test_a_run_whose_last_attempt_a_restored_backup_forgot_goes_on_from_what_that_saved(settings: Settings) -> None:
    path = save(at(settings, 8, 2, whose(OURS, 7, 8)).folder, 20, attempt=8)
    assert at(settings, 9, 2, whose(OURS, 7, 9)).resume == path


@pytest.mark.parametrize("identity", [None, whose(OURS, 8, 9)], ids=["older yard", "older worker"])
def test_checkpoints_of_versions_without_a_uid_are_still_their_run_s(
    settings: Settings, identity: RunIdentity | None
) -> None:
    path = save(settings.checkpoints / str(RUN), 10, attempt=8)
    retry = at(settings, 9, 2, identity)
    assert (retry.resume, retry.folder, retry.own) == (path, path.parent, True)
    named: dict[str, Any] = {"resume": {"run": RUN, "step": 10}, "run": RUN + 1}
    if identity:
        named["resume_identity"] = identity
    assert at(settings, 11, 1, **named).resume == path
    checkpoints.drop(settings, RUN, identity)
    assert not path.exists()


def test_a_checkpoint_of_another_run_without_a_uid_is_left_alone(settings: Settings) -> None:
    path = save(settings.checkpoints / str(RUN), 10, attempt=5)
    for number in (1, 2):
        assert at(settings, 7 + number, number, whose(OURS, 8, 9)).resume is None
    checkpoints.drop(settings, RUN, whose(OURS, 8, 9))
    assert path.exists()


def test_two_yards_with_one_folder_delete_nothing_of_each_other(settings: Settings) -> None:
    """The first attempt of a run cleans its folder, and the deletion of a run removes it."""
    theirs = save(at(settings, 7, 1, whose(THEIRS, 7)).folder, 20, attempt=7)
    mine = save(at(settings, 8, 1, whose(OURS, 8)).folder, 20, attempt=8)
    assert theirs.exists() and mine.exists()
    named: dict[str, Any] = {"resume": {"run": RUN, "step": 20}, "run": RUN + 1, "task": {"prompt": "a"}}
    assert at(settings, 9, 1, resume_identity=whose(THEIRS, 7), **named).resume == theirs
    checkpoints.drop(settings, RUN, whose(OURS, 8))
    assert theirs.exists() and not mine.exists()
    with pytest.raises(CheckpointError, match=f"no checkpoint of run {RUN} at step 20; it has none"):
        at(settings, 10, 1, resume_identity=whose(OURS, 8), **named)


def test_a_later_attempt_keeps_an_earlier_one_elsewhere_from_saving_before_it_chooses_where_to_begin(
    settings: Settings,
) -> None:
    folder = at(settings, 7, 1, whose(OURS, 7)).folder
    save(folder, 20, attempt=7)

    def look(path: Path) -> Manifest:
        with pytest.raises(CheckpointError, match="its later attempt 8 has begun"):
            folders.require_latest(folder, 7)
        return manifests.read(path)

    retry = begin(settings, message(8, 2, whose(OURS, 7, 8)), SPEC, True, look)
    assert retry.told["step"] == 20
    folders.require_latest(folder, 8)
    with pytest.raises(CheckpointError, match="its later attempt 8 has begun"):
        at(settings, 7, 2, whose(OURS, 7))


def test_a_full_disk_keeps_no_retry_from_its_checkpoint(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(at(settings, 7, 1, whose(OURS, 7)).folder, 20, attempt=7)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folders, "claim", full)
    assert at(settings, 8, 2, whose(OURS, 7, 8)).resume == path


def test_what_a_run_saved_before_its_row_was_restored_goes_with_its_first_attempt(settings: Settings) -> None:
    path = save(at(settings, 7, 1, whose(OURS, 7)).folder, 10, attempt=7)
    assert at(settings, 8, 1, whose(OURS, 8)).resume is None and not path.exists()


def test_a_uid_leads_to_no_other_folder(settings: Settings) -> None:
    for uid in ("", "../7", "0a/..", "0A", "0a\n"):
        with pytest.raises(CheckpointError, match="is none"):
            at(settings, 7, 1, whose(uid, 7))
        with pytest.raises(CheckpointError, match="is none"):
            checkpoints.drop(settings, RUN, whose(uid, 7))


def test_a_worker_says_which_checkpoints_no_run_finds_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its folder of checkpoints was set after it had saved some."""
    alone = Settings("a", f"unix://{tmp_path}/nobody", tmp_path, tmp_path)
    shared = replace(alone, shared_checkpoints=tmp_path / "shared")
    assert unfound(alone) == unfound(shared) == ""
    (alone.checkpoints / "7-ab").mkdir(parents=True)
    assert unfound(alone) == ""
    Worker(shared)
    assert [line.getMessage() for line in caplog.records] == [
        f"No run finds the checkpoints in {alone.checkpoints}: move them to {tmp_path}/shared (TRAINYARD_CHECKPOINTS)."
    ]
