"""The folder that holds the checkpoints of one run: names, order, atomic publication, and how many are kept."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from parallel_core.checkpoint.manifest import FILE, CheckpointError, Manifest, parse_stored, read

_STEP = re.compile(r"^step-(\d{8,})$")
_SAVING = ".saving-"
_DROPPED = ".dropped-"
_REPLACED = ".replaced-"
CHECKPOINTS = "checkpoints"
"""Where the command line puts them, inside the folder of a run."""
POLL_S = 0.01


def path_of(folder: Path, step: int) -> Path:
    """Where the checkpoint of `step` is, or would be."""
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
    """The newest checkpoint that is whole; None where there is none.

    Damaged ones are passed over: `passed` gets what is wrong with each, by its step. `look` is `verify.verified` where
    every byte must be as it was written.
    """
    for step in reversed(steps(folder)):
        path = path_of(folder, step)
        try:
            return path, look(path)
        except CheckpointError as error:
            if passed is not None:
                passed[step] = str(error)
    return None


def resolve(path: Path) -> Path:
    """The checkpoint a person means: the folder itself, or the newest one inside a run's folder.

    Raises CheckpointError where there is none.
    """
    if (path / FILE).exists():
        return path
    for inside in (path, path / CHECKPOINTS):
        if found := newest(inside):
            return found[0]
    raise CheckpointError(f"{path} holds no checkpoint.")


def holds_any(folder: Path) -> bool:
    """Whether `resolve` would look for a checkpoint here: whole or not, there is one."""
    return (folder / FILE).exists() or any(steps(inside) for inside in (folder, folder / CHECKPOINTS))


def put_back(folder: Path) -> None:
    """Gives a checkpoint that `publish` was about to replace its name again, where a kill left none of that name.

    For when nobody publishes there: between its two renames that is how the folder of a live run looks, too.
    """
    for aside in folder.glob(f"{_REPLACED}*"):
        target = folder / aside.name.removeprefix(_REPLACED)
        if target.exists():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            with contextlib.suppress(FileNotFoundError):
                aside.rename(target)


def tidy(folder: Path, attempt: int) -> None:
    """Removes what earlier attempts left behind when they were killed; `attempt` is the one that saves from now on."""
    put_back(folder)
    for pattern in (_SAVING, _DROPPED):
        for path in folder.glob(f"{pattern}*"):
            if not path.name.startswith(f"{_SAVING}{attempt}-"):
                shutil.rmtree(path, ignore_errors=True)


def saving(folder: Path, attempt: int, step: int) -> Path:
    """Where ranks write until the checkpoint is whole; made if it is not there."""
    path = folder / f"{_SAVING}{attempt}-{step:08}"
    path.mkdir(parents=True, exist_ok=True)
    return path


def write_part(where: Path, rank: int, part: Mapping[str, Any]) -> None:
    """What a rank has written: `tensors` as in the manifest, and the `bytes` of its file. The last thing it does."""
    _write(where / _part(rank), json.dumps(part))


def gather_parts(where: Path, world: int, give_up_s: float) -> list[dict[str, Any]]:
    """The parts of all ranks in rank order; waits for them. Raises CheckpointError after `give_up_s` seconds."""
    deadline = time.monotonic() + give_up_s
    for rank in range(world):
        while not (where / _part(rank)).exists():
            if time.monotonic() > deadline:
                raise CheckpointError(f"Rank {rank} did not write its part of {where.name} within {give_up_s:.0f} s.")
            time.sleep(POLL_S)
    return [json.loads((where / _part(rank)).read_text()) for rank in range(world)]


def merge(parts: list[dict[str, Any]], **about: Any) -> Manifest:
    """One manifest of all ranks' parts; `about` = its other fields."""
    tensors: dict[str, dict[str, Any]] = {}
    for part in parts:
        for name, entry in part["tensors"].items():
            known = tensors.setdefault(name, {**entry, "pieces": []})
            known["pieces"] += entry["pieces"]
    files = {f"rank-{rank}.bin": part["bytes"] for rank, part in enumerate(parts) if part["bytes"]}
    stored = {name: parse_stored(entry) for name, entry in sorted(tensors.items())}
    return Manifest(tensors=stored, files=files, **about)


def publish(where: Path, folder: Path, manifest: Manifest, keep: int) -> list[int]:
    """Makes the folder `where` the checkpoint of its step, then drops all but the newest `keep`; returns what is kept.

    Every file was flushed by who wrote it. A kill at any moment leaves the old checkpoints or the old and the new; one
    of the same step, which is replaced, is whole under another name until the new one has its own (see `put_back`).
    """
    for part in where.glob("rank-*.json"):
        part.unlink()
    _write(where / FILE, manifest.text())
    target = path_of(folder, manifest.step)
    aside = target.with_name(f"{_REPLACED}{target.name}")
    shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        target.rename(aside)
    where.rename(target)
    flush(folder)
    shutil.rmtree(aside, ignore_errors=True)
    return _rotate(folder, manifest.step, keep)


def _rotate(folder: Path, newest: int, keep: int) -> list[int]:
    """Drops what the checkpoint of step `newest`, just published, leaves no use for; returns the steps that are kept.

    Of the earlier ones those count that can be read: one that lacks a file must push out none that is whole. Later ones
    go: the run went on from an earlier step, since they are damaged or because somebody wanted it to, and a retry that
    takes the newest would go on with what was given up.
    """
    there = steps(folder)
    kept = [*(step for step in there if step < newest and _can_be_read(path_of(folder, step))), newest][-keep:]
    for step in there:
        if step > newest or step < kept[0]:
            drop(path_of(folder, step))
    return kept


def _can_be_read(path: Path) -> bool:
    try:
        read(path)
    except CheckpointError:
        return False
    return True


def drop(path: Path) -> None:
    """Removes a checkpoint. It is none any more from the first moment on."""
    aside = path.with_name(f"{_DROPPED}{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def flush(path: Path) -> None:
    """fsync of a file or folder."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _part(rank: int) -> str:
    return f"rank-{rank}.json"


def _write(path: Path, text: str) -> None:
    """Atomic, and flushed with its name."""
    aside = path.with_name(path.name + ".part")
    aside.write_text(text)
    flush(aside)
    aside.replace(path)
    flush(path.parent)
