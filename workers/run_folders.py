"""Which folder of checkpoints is whose.

A run's number does not say which run it is: a database that is restored from a backup gives the same numbers again, and
several yards may share one folder of checkpoints. So the folder of a run is named by its number and its uid, and one
run never reads or deletes another's. Versions before there were uids named it by the number alone; such a folder
belongs to a run without a uid, and to one with a uid of which an attempt has saved there.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import manifest as manifests
from parallel_core.checkpoint.manifest import CheckpointError
from workers.contract import RunIdentity, checkpoint_folder

_UID = re.compile(r"[0-9a-f]{1,64}")


def of_run(checkpoints: Path, run: int, identity: RunIdentity | None) -> Path:
    """The folder of the run in the folder `checkpoints` of all, whether it exists or not. Raises as `all_of_run`."""
    own, *others = all_of_run(checkpoints, run, identity)
    return others[0] if others and not own.exists() else own


def all_of_run(checkpoints: Path, run: int, identity: RunIdentity | None) -> list[Path]:
    """The folder of the run, and after it the one of an earlier version in which it has a checkpoint, if any.

    Raises CheckpointError if the uid, which comes from elsewhere, is none: it becomes part of a path.
    """
    by_number = checkpoints / str(run)
    if identity is None:
        return [by_number]
    if not _UID.fullmatch(identity["uid"]):
        raise CheckpointError(f"The uid {identity['uid']!r} of run {run} is none.")
    own = by_number.with_name(checkpoint_folder(run, identity["uid"]))
    return [own] if attempts_in(by_number).isdisjoint(identity["attempts"]) else [own, by_number]


def attempts_in(folder: Path) -> set[int]:
    """Ids of the attempts whose checkpoints are in the folder and can be read."""
    found = set()
    for step in folders.steps(folder):
        with contextlib.suppress(CheckpointError):  # damaged
            found.add(manifests.read(folders.path_of(folder, step)).attempt)
    return found
