"""Determines where an attempt begins: at a checkpoint on this host, or at step 0, and why."""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from parallel_core.analysis.quantities import count_text, listed_text, steps_text
from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import manifest as manifests
from parallel_core.checkpoint import match
from parallel_core.checkpoint.manifest import CheckpointError, Manifest
from parallel_core.generation_request import inference
from parallel_core.launch import CheckpointOptions
from parallel_core.spec import RunSpec
from workers import run_folders
from workers.contract import Begins, RunIdentity, StartMessage
from workers.periodic import Periodic
from workers.settings import Settings

log = logging.getLogger(__name__)

DROPPED = ".dropped-"


@dataclass(frozen=True)
class Beginning:
    """Where an attempt begins. `folder` = the run's own, for new checkpoints; `told` = the beginning as reported to the
    dashboard; `resume` = the checkpoint to begin from, None for step 0."""

    folder: Path
    told: Begins
    resume: Path | None = None

    @property
    def own(self) -> bool:
        """Whether it resumes from a checkpoint of the run itself."""
        return self.resume is not None and self.resume.parent == self.folder

    def saves(self, message: StartMessage) -> CheckpointOptions:
        return CheckpointOptions(
            folder=str(self.folder),
            resume=str(self.resume or ""),
            run=message["run"],
            attempt=message["attempt"],
        )


def begin(
    settings: Settings,
    message: StartMessage,
    spec: RunSpec,
    opens: bool = True,
    look: Callable[[Path], Manifest] = manifests.read,
) -> Beginning:
    """Where the attempt begins. `opens`: rank 0 is on this host, which then cleans the run's folder for all hosts.

    1. A later attempt: the run's newest checkpoint on this host that `look` reads without error. If newer ones are
       damaged, the reason names them. If it is that of the last step, the attempt only has to end.
    2. The checkpoint that the run names. Raises CheckpointError, with a message for the user, if it is not here or does
       not fit.
    3. Step 0; for a later attempt the reason states that there was no checkpoint.

    Text is always generated from the checkpoint that the run names, from the first token on.

    Checkpoints of another run with the same number are as if they were not there (see `run_folders`).

    Raises CheckpointError for a command that is older than what is in the folder, before it changes anything there.
    """
    folder = run_folders.of_run(settings.checkpoints, message["run"], message.get("identity"))
    if message.get("task") and message.get("resume"):
        return _to_generate(folder, _named(settings, message), spec)
    if opens:
        _refuse_if_outdated(folder, message)
    if message["number"] > 1:
        if opens:
            _claim(folder, message["attempt"])
        found, damaged = _newest(folder, opens, look)
        if found is not None:
            match.require_match(found[1], spec, message["run"])
            return _at(folder, *found, damaged)
        return _at_first(settings, folder, message, spec, damaged)
    if opens:
        # Saved before its row was restored from a backup; of a run without a uid, in an earlier database.
        shutil.rmtree(folder, ignore_errors=True)
    return _at_first(settings, folder, message, spec)


def _at_first(settings: Settings, folder: Path, message: StartMessage, spec: RunSpec, damaged: str = "") -> Beginning:
    """Where a run begins that has no checkpoint of its own: 2. or 3. of `begin`."""
    if not message.get("resume"):
        return _from_step_0(settings, folder, message, damaged)
    path = _named(settings, message)
    manifest = manifests.read(path)
    match.require_match(manifest, spec)
    return _at(folder, path, manifest, damaged)


def _from_step_0(settings: Settings, folder: Path, message: StartMessage, damaged: str) -> Beginning:
    nothing = f"{damaged}, and no other is" if damaged else "no checkpoint of it is"
    why = f"{nothing} on {settings.name}" if message["number"] > 1 else ""
    begins = Begins(step=0, run=message["run"], attempt=0, why=why)
    return Beginning(folder, begins)


def _refuse_if_outdated(folder: Path, message: StartMessage) -> None:
    """Raises CheckpointError if a later attempt has begun or saved here: the message was sent to a host that was
    silent, and the run went on elsewhere, with the same folder. Ids of attempts only grow, also from one database to
    the next."""
    saved = max(run_folders.attempts_in(folder), default=0)
    if saved > message["attempt"]:
        raise CheckpointError(f"The run went on elsewhere: its later attempt {saved} has checkpoints in {folder}.")
    folders.require_latest(folder, message["attempt"])


def _claim(folder: Path, attempt: int) -> None:
    """Keeps an earlier attempt that still trains, on a host that is cut off, from saving, before this one chooses where
    it begins: what that saved next could replace the checkpoint which is then read. Raises CheckpointError."""
    try:
        folders.claim(folder, attempt)
    except OSError as error:  # as of a full disk, with which a run that only reads its checkpoint can do
        log.warning("Attempt %d could not claim %s from earlier ones: %s", attempt, folder, error)


def _newest(folder: Path, opens: bool, look: Callable[[Path], Manifest]) -> tuple[tuple[Path, Manifest] | None, str]:
    """(the newest whole checkpoint of a retried run or None, which newer ones are damaged as text or '')."""
    if opens:
        folders.put_back(folder)
    passed: dict[int, str] = {}
    found = folders.newest(folder, look, passed)
    for why in passed.values():
        log.warning("%s A retry passes it over.", why)
    return found, _damaged(sorted(passed))


def _damaged(steps: list[int]) -> str:
    if not steps:
        return ""
    *others, last = steps
    every = listed_text([*map(count_text, others), steps_text(last)])
    return f"the checkpoint{'s' if others else ''} after {every} {'are' if others else 'is'} damaged"


def drop(settings: Settings, run: int, identity: RunIdentity | None = None) -> None:
    """Removes the checkpoints of a deleted run: renames its folders at once, so that no attempt finds them, and leaves
    the rest to `Dropped`. Raises OSError if a folder cannot be renamed, CheckpointError as `run_folders.all_of_run`."""
    for folder in run_folders.all_of_run(settings.checkpoints, run, identity):
        with contextlib.suppress(FileNotFoundError):
            folder.rename(folder.with_name(f"{DROPPED}{folder.name}-{time.time_ns()}"))


def unfound(settings: Settings) -> str:
    """Which checkpoints of this worker no run finds any more, as a sentence: those saved before it was given a
    folder for them; '' if there are none."""
    earlier = settings.home / "checkpoints"
    if earlier == settings.checkpoints or not any(earlier.glob("[0-9]*")):
        return ""
    return f"No run finds the checkpoints in {earlier}: move them to {settings.checkpoints} (TRAINYARD_CHECKPOINTS)."


class Dropped(Periodic):
    """Deletes the folders that `drop` renamed, also in an earlier life of the worker: one after another, in a thread of
    its own, as that may take long."""

    def __init__(self, folder: Path) -> None:
        """`folder` = that of all checkpoints."""
        super().__init__("dropped")
        self._folder = folder

    def look(self) -> None:
        """Deletes those that are there now; what cannot be deleted is tried again."""
        with contextlib.suppress(OSError):
            for path in self._folder.glob(f"{DROPPED}*"):
                shutil.rmtree(path, ignore_errors=True)


def _to_generate(folder: Path, path: Path, spec: RunSpec) -> Beginning:
    manifest = manifests.read(path)
    fits = inference(manifest.spec, spec.parallel.tp, spec.parallel.pp)
    if (fits.model, fits.train.precision) != (spec.model, spec.train.precision):
        raise CheckpointError("The checkpoint is of another model, or another precision, than the run.")
    return _at(folder, path, manifest)


def _at(folder: Path, path: Path, manifest: Manifest, damaged: str = "") -> Beginning:
    begins = Begins(step=manifest.step, run=manifest.run, attempt=manifest.attempt, why=damaged)
    return Beginning(folder, begins, path)


def _named(settings: Settings, message: StartMessage) -> Path:
    """The checkpoint that the message names. Raises CheckpointError if it is not here."""
    named = message.get("resume")
    assert named
    run, step = named["run"], named["step"]
    folder = run_folders.of_run(settings.checkpoints, run, message.get("resume_identity"))
    here = folders.steps(folder)
    if step not in here:
        has = f"it has steps {', '.join(map(str, here))}" if here else "it has none of that run"
        raise CheckpointError(f"Worker {settings.name} has no checkpoint of run {run} at step {step}; {has}.")
    return folders.path_of(folder, step)
