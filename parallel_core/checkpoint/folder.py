"""The folder with the checkpoints of one run: names, order, atomic publication, and how many are kept."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from parallel_core.atomic_file import write_text
from parallel_core.checkpoint import parts
from parallel_core.checkpoint.manifest import FILE, CheckpointError, Manifest, read

_STEP = re.compile(r"^step-(\d{8,})$")
_SAVING = ".saving-"
_DROPPED = ".dropped-"
_REPLACED = ".replaced-"
_LATEST = ".attempt"
CHECKPOINTS = "checkpoints"
"""Subfolder of a run's folder in which the command line saves checkpoints."""


def path_of(folder: Path, step: int) -> Path:
    """The path of the checkpoint of `step`, whether it exists or not."""
    return folder / f"step-{step:08}"


def steps(folder: Path) -> list[int]:
    """Steps of the complete checkpoints, ascending."""
    if not folder.is_dir():
        return []
    named = ((_STEP.match(path.name), path) for path in folder.iterdir())
    return sorted(int(match[1]) for match, path in named if match and (path / FILE).exists())


def newest(
    folder: Path, look: Callable[[Path], Manifest] = read, passed: dict[int, str] | None = None
) -> tuple[Path, Manifest] | None:
    """The newest checkpoint that is whole; None if there is none.

    Skips damaged ones; `passed` gets the error of each by its step. `look` reads a checkpoint; `verify.verified` also
    checks every byte.
    """
    return _newest_in((folder,), look, passed)


def _newest_in(
    folders: Sequence[Path], look: Callable[[Path], Manifest], passed: dict[int, str] | None
) -> tuple[Path, Manifest] | None:
    """As `newest`, over several folders; of the same step that in the last of them."""
    there = sorted((step, place) for place, folder in enumerate(folders) for step in steps(folder))
    for step, place in reversed(there):
        path = path_of(folders[place], step)
        try:
            return path, look(path)
        except CheckpointError as error:
            if passed is not None:
                passed[step] = f"{passed[step]} {error}" if step in passed else str(error)
    return None


def resolve(path: Path, look: Callable[[Path], Manifest] = read) -> tuple[Path, Manifest, dict[int, str]]:
    """The checkpoint that a user's path refers to: the folder itself, or the newest whole one inside a run's folder;
    and the errors of the newer ones, which are damaged, by step. `look` reads those of a run's folder.

    A run from imported weights may save beside them: the newest is that of the highest step in either place. Raises
    CheckpointError if there is none, with what is wrong with each.
    """
    passed: dict[int, str] = {}
    if is_one(path):
        return path, read(path), passed
    if found := _newest_in((path, path / CHECKPOINTS), look, passed):
        return *found, passed
    raise CheckpointError(" ".join([f"{path} holds no {'whole ' if passed else ''}checkpoint.", *passed.values()]))


def is_one(folder: Path) -> bool:
    """Whether the folder itself is a checkpoint, whole or damaged."""
    return (folder / FILE).exists()


def holds_any(folder: Path) -> bool:
    """Whether there is a checkpoint, whole or damaged, where `resolve` looks for one."""
    return is_one(folder) or any(steps(inside) for inside in (folder, folder / CHECKPOINTS))


def put_back(folder: Path) -> None:
    """Renames a checkpoint back that `publish` was about to replace when it was killed; deletes it if replaced.

    Only for folders in which nothing is being published: between the two renames of `publish` a live folder looks the
    same.
    """
    for aside in folder.glob(f"{_REPLACED}*"):
        target = folder / aside.name.removeprefix(_REPLACED)
        if target.exists():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            with contextlib.suppress(FileNotFoundError):
                aside.rename(target)


def claim(folder: Path, attempt: int) -> None:
    """Makes `attempt` the one that may publish here; from then on `require_latest` refuses the earlier ones, which may
    still train on a host that cannot be told to stop. Raises CheckpointError if a later one has begun, OSError.

    What they are saving goes: one that was not refused yet, but has not published either, finds nothing to publish.
    """
    require_latest(folder, attempt)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / _LATEST, str(attempt), sync=True)
    for path in folder.glob(f"{_SAVING}*"):
        if not path.name.startswith(f"{_SAVING}{attempt}-"):
            drop(path) if path.is_dir() else _remove(path)


def require_latest(folder: Path, attempt: int) -> None:
    """Raises CheckpointError if a later attempt than `attempt` has claimed the folder."""
    try:
        latest = int((folder / _LATEST).read_text())
    except (OSError, ValueError):  # not claimed yet, or the write of it was cut off: nothing is known of a later one
        return
    if latest > attempt:
        raise CheckpointError(f"The run went on elsewhere: its later attempt {latest} has begun in {folder}.")


def tidy(folder: Path, attempt: int | None) -> None:
    """Removes incomplete folders of earlier attempts that were killed; `attempt` is the one that saves from now on,
    None where no rank saves yet."""
    put_back(folder)
    for pattern in (_SAVING, _DROPPED):
        for path in folder.glob(f"{pattern}*"):
            if attempt is None or not path.name.startswith(f"{_SAVING}{attempt}-"):
                _remove(path)


def drop_saves(base: Path, attempt: int) -> None:
    """Removes what an attempt that is over left incomplete in any folder of checkpoints below `base`."""
    for path in base.glob(f"*/{_SAVING}{attempt}-*"):
        _remove(path)


def _remove(path: Path) -> None:
    """Removes a folder in which ranks wrote, or a file that stood for one of them (`parts.leave_out`)."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def saving_path(folder: Path, attempt: int, step: int) -> Path:
    """The path of the folder in which ranks write until the checkpoint is complete, whether it exists or not."""
    return folder / f"{_SAVING}{attempt}-{step:08}"


def sign_path(folder: Path, attempt: int, rank: int) -> Path:
    """The path of the empty file that a rank keeps for the case that there is no room (`parts.keep_sign`); it goes with
    what the attempt is saving."""
    return folder / f"{_SAVING}{attempt}-sign-{rank}"


def saving(folder: Path, attempt: int, step: int) -> Path:
    """The folder at `saving_path`; created if missing."""
    path = saving_path(folder, attempt, step)
    path.mkdir(parents=True, exist_ok=True)
    return path


def publish(where: Path, folder: Path, manifest: Manifest, keep: int) -> list[int]:
    """Makes the folder `where` the checkpoint of its step, and keeps the newest `keep` and that of the lowest held-out
    loss; returns the steps kept.

    Every file was flushed by its writer. A kill at any moment leaves the old checkpoints, or the old ones and the new
    one. A checkpoint of the same step stays whole under another name until it is replaced (see `put_back`). Raises
    CheckpointError where a later attempt has claimed the folder, and so dropped `where`, meanwhile.
    """
    try:
        _put(where, folder, manifest)
    except FileNotFoundError:
        require_latest(folder, manifest.attempt)
        raise
    return _rotate(folder, manifest, keep)


def _put(where: Path, folder: Path, manifest: Manifest) -> None:
    """Renames `where` to the checkpoint of its step, with its manifest. Where it is gone, that of the same step
    stays."""
    for part in where.glob(parts.PATTERN):
        part.unlink()
    write_text(where / FILE, manifest.text(), sync=True)
    flush(where)
    target = path_of(folder, manifest.step)
    aside = target.with_name(f"{_REPLACED}{target.name}")
    shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        target.rename(aside)
    try:
        where.rename(target)
    except OSError:  # gone, or no room for the name
        with contextlib.suppress(OSError):  # there was none, or it is back already
            aside.rename(target)
        raise
    flush(folder)
    shutil.rmtree(aside, ignore_errors=True)


def add_held_out(folder: Path, attempt: int, step: int, held_out: float, keep: int) -> list[int]:
    """Adds the held-out loss to the checkpoint of `step` that `attempt` published, the newest in `folder`; then drops
    and returns as `publish`.

    A kill at any moment leaves the manifest as it was, or with the loss. Raises CheckpointError where the checkpoint
    cannot be read, or a later attempt has claimed the folder; OSError where its manifest cannot be written.
    """
    path = path_of(folder, step)
    where = saving(folder, attempt, step)  # which goes with `claim`, so that nothing is left to put in place
    require_latest(folder, attempt)
    manifest = replace(read(path), held_out=held_out)
    try:
        write_text(where / FILE, manifest.text(), sync=True)
        (where / FILE).replace(path / FILE)
    except FileNotFoundError:
        require_latest(folder, attempt)
        raise
    flush(path)
    shutil.rmtree(where, ignore_errors=True)
    return _rotate(folder, manifest, keep)


def _rotate(folder: Path, newest: Manifest, keep: int) -> list[int]:
    """Drops the checkpoints that are superseded by `newest`, just published; returns the steps kept.

    Earlier ones count towards `keep` only if they can be read, so that a damaged one does not displace a whole one.
    Later ones are dropped: the run resumed from an earlier step, as they are damaged or because a user chose it, and a
    retry, which takes the newest, must not resume from them. None is dropped any more once a later attempt has claimed
    the folder: the later ones may be of that.
    """
    there = steps(folder)
    whole = {step: found for step in there if step < newest.step and (found := _readable(path_of(folder, step)))}
    whole[newest.step] = newest
    last = list(whole)[-keep:]
    kept = sorted({*last, *best(whole.values())})
    for step in there:
        if step > newest.step or (step < last[0] and step not in kept):
            if _superseded(folder, newest.attempt):
                return steps(folder)
            drop(path_of(folder, step))
    return kept


def _superseded(folder: Path, attempt: int) -> bool:
    try:
        require_latest(folder, attempt)
    except CheckpointError:
        return True
    return False


def best(manifests: Iterable[Manifest]) -> list[int]:
    """Returns the step of the checkpoint with the lowest held-out loss, of several the first; [] where none has one."""
    known = [(found.held_out, found.step) for found in manifests if found.held_out is not None]
    return [min(known)[1]] if known else []


def _readable(path: Path) -> Manifest | None:
    try:
        return read(path)
    except CheckpointError:
        return None


def drop(path: Path) -> None:
    """Removes a checkpoint. It is renamed first, so that it is never seen partly deleted."""
    aside = path.with_name(f"{_DROPPED}{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def flush(path: Path) -> None:
    """Flushes a file or folder to disk (fsync)."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
