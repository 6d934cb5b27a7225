"""Saves and loads the training state by parameter name, independent of the parallel layout.

A checkpoint holds the parameter values, the optimizer's buffers, running statistics, the scalars of optimizer and
loss scale, and the number of steps done. Nothing else is needed: the sampler and every other source of randomness are
functions of (seed, step). A tensor that several ranks hold is written by one of them.

`Saver.save` copies the state to host memory and returns; a thread writes the copy while training continues. At most
one save is in progress: the next one waits for it. A save that finds no room on the disk is left out and the next one
tried; it ends the run only where there is no next one.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from parallel_core.analysis.quantities import steps_text
from parallel_core.atomic_file import NO_SPACE
from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import manifest as manifests
from parallel_core.checkpoint import match, parts
from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.checkpoint.manifest import CheckpointError
from parallel_core.engine import llama, storage
from parallel_core.engine.checkpoint_state import Buffers, State
from parallel_core.engine.collectives import Group, all_reduce
from parallel_core.observe.record_files import Sink

if TYPE_CHECKING:
    from parallel_core.engine.trainer import Trainer

log = logging.getLogger(__name__)


REPORT_INTERVAL_S = 1.0
"""Interval in seconds at which a rank waiting for its save reports progress to the watchdog, and asks for the other
ranks: one that has ended, on another host, is noticed then."""
PARTS_S = 600.0
"""Seconds that rank 0 waits for the other ranks' parts before the save fails."""


class Saved(NamedTuple):
    """What a checkpoint after `step` steps has besides tensors. `blocked` = seconds for which training stood
    still: until the checkpoint before was written, and while the state was copied. `last`: the run ends there."""

    step: int
    held_out: float | None
    scalars: Mapping[str, float]
    blocked: float
    last: bool


class Saver:
    """Saves the state of `trainer` into `config.folder`. Every rank has a saver and calls it at the same steps."""

    def __init__(
        self,
        trainer: Trainer,
        config: CheckpointConfig,
        sink: Sink,
        world: Group = None,
        reads: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`world` is the group of all ranks; `reads`, on rank 0, is what the run reads (`inputs.reads`)."""
        self._trainer, self._config, self._sink, self._world = trainer, config, sink, world
        self._reads = dict(reads)
        self._state = State(trainer)
        self._every, self._keep = trainer.spec.train.checkpoint_every, trainer.spec.train.keep
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._last = -1
        self._left_out: CheckpointError | None = None
        """Why the newest save has been left out; known to rank 0."""
        self._told: dict[str, Any] = {}
        """The newest `checkpoint` record; {} before the first, and on ranks other than 0."""
        self._copies = trainer.device.copies()
        self._moved = False
        """Whether the writing thread has made progress since `wait` last checked."""
        if trainer.rank == 0:
            config.folder.mkdir(parents=True, exist_ok=True)
            folders.tidy(config.folder, config.attempt)
        else:
            parts.keep_sign(self._sign(trainer.rank))

    def after_step(self, done: int, held_out: float | None = None, *, last: bool = False) -> float:
        """Saves if a checkpoint is due after `done` steps; returns the seconds for which that kept this rank from the
        next step. `held_out` and `last` as in `save`. Raises CheckpointError where an earlier save failed."""
        if self._error is not None:
            raise self._error
        return self.save(done, held_out, last=last) if self.due(done) else 0.0

    def due(self, done: int) -> bool:
        """Whether a checkpoint is due after `done` steps."""
        return self._every > 0 and (done % self._every == 0 or done == self._trainer.spec.train.steps)

    def save(self, done: int, held_out: float | None = None, *, last: bool = False) -> float:
        """Copies the state after `done` steps and starts writing it in a thread; waits for an earlier save first.
        Returns the seconds that this took. A collective. `held_out`: the held-out loss, if it was evaluated after these
        steps. `last`: whether the run ends after these, or before its next checkpoint is due."""
        trainer = self._trainer
        # What this rank, or under a flush another, has yet to do of the step is no cost of the checkpoint.
        trainer.device.synchronise()
        if trainer.spec.parallel.flushes:
            self._on_any_rank(False, False)
        began = time.perf_counter()
        trainer.progress.at(done, "saving")
        self.wait(required=done == self._last)
        if done != self._last:
            self._last, self._left_out = done, None
            copy, stats = self._copied()
            known = held_out if held_out is not None and math.isfinite(held_out) else None
            arguments = (Saved(done, known, trainer.scalars(), time.perf_counter() - began, last), copy, stats)
            self._thread = threading.Thread(target=self._write, args=arguments, name="checkpoint", daemon=True)
            self._thread.start()
        return time.perf_counter() - began

    def _copied(self) -> tuple[Buffers, dict[str, Tensor]]:
        """Returns copies of what this rank writes, of its flat buffers and of its running statistics."""
        trainer = self._trainer
        mine = self._state.mine(trainer.buffers())
        held = trainer.chunks.buffers() if not trainer.place.replica and not trainer.place.tensor else {}
        memory = [tensor for pieces in mine.values() for _, tensor in pieces]
        copies = iter(self._copies([*memory, *held.values()]))
        copy = {kind: tuple((first, next(copies)) for first, _ in pieces) for kind, pieces in mine.items()}
        return copy, dict(zip(held, copies, strict=True))

    def wait(self, *, required: bool = True) -> None:
        """Waits until no rank's save is in progress, so that the checkpoint can be resumed from, whatever becomes of
        any rank. A collective: every rank calls it.

        Raises CheckpointError where this rank could not save, and the error of a failed collective where another rank
        could not. Not `required`: a save that was left out raises nothing.
        """
        saving = True
        while saving:
            if self._thread is not None:
                self._thread.join(REPORT_INTERVAL_S)
                self._thread = self._thread if self._thread.is_alive() else None
            if self._error is not None:
                raise self._error
            if required and self._left_out is not None:
                raise self._left_out
            moved, self._moved = self._moved, False
            saving, moved = self._on_any_rank(self._thread is not None, moved)
            if saving and moved:
                self._trainer.progress.at(self._last, "saving")

    def _on_any_rank(self, saving: bool, moved: bool) -> tuple[bool, bool]:
        """Returns which of both holds on any rank. Ranks that have saved ask again and again, rather than wait in one
        collective, which has a time limit, until the slowest disk is done."""
        if self._world is None:
            return saving, moved
        either = torch.tensor([saving, moved], dtype=torch.int32, device=self._trainer.device.torch)
        all_reduce(either, self._world, ReduceOp.MAX).wait()
        first, second = either.tolist()  # on a GPU, `wait` only queues the collective
        return bool(first), bool(second)

    def _write(self, saved: Saved, copy: Buffers, stats: Mapping[str, Tensor]) -> None:
        rank, config, began = self._trainer.rank, self._config, time.perf_counter()
        try:
            folders.require_latest(config.folder, config.attempt)
            where = folders.saving_path(config.folder, config.attempt, saved.step)
            full: int | None = None
            try:
                self._write_part(where, copy, stats)
            except OSError as error:
                if not _no_room(error):
                    raise
                full = error.errno
                parts.remove_part(where, rank)
            if rank == 0:
                self._publish_or_leave_out(where, saved, began, full)
            elif full is not None:
                parts.leave_out(where, rank, full, self._sign(rank))
        except CheckpointError as error:
            self._error = error
        except BaseException as error:  # any: that a thread has ended tells nobody, and the run goes on
            self._error = _unwritten(saved.step, error)

    def _sign(self, rank: int) -> Path:
        return folders.sign_path(self._config.folder, self._config.attempt, rank)

    def _write_part(self, where: Path, copy: Buffers, stats: Mapping[str, Tensor]) -> None:
        where.mkdir(parents=True, exist_ok=True)
        rank, shares = self._trainer.rank, {**self._state.shares(copy, writing=True), **self._state.statistics(stats)}
        part = storage.write(shares, where / f"rank-{rank}.bin", lambda: setattr(self, "_moved", True))
        parts.write_part(where, rank, part)

    def _publish_or_leave_out(self, where: Path, saved: Saved, began: float, own: int | None) -> None:
        """As `_publish`; where there is no room, removes what was written and emits that (rank 0). `own` as in
        `parts.gather_parts`."""
        try:
            self._publish(where, saved, began, own)
        except (CheckpointError, OSError) as error:
            if not _no_room(error):
                raise
            parts.drop(where, [self._sign(rank) for rank in range(self._trainer.layout.world)])
            # Its frames hold the copy of the state, which would stay in memory until the next save.
            self._left_out = _unwritten(saved.step, error.with_traceback(None))
            log.warning("%s", self._left_out)
            why = error.strerror if isinstance(error, OSError) else str(error)
            self._sink.emit("left_out", step=saved.step, why=why, last=saved.last)

    def _publish(self, where: Path, saved: Saved, began: float, own: int | None) -> None:
        """Waits for the parts of all ranks, writes the manifest, renames the folder into place and emits the record
        (rank 0)."""
        config, trainer = self._config, self._trainer
        written = parts.gather_parts(where, trainer.layout.world, PARTS_S, own)
        folders.require_latest(config.folder, config.attempt)
        manifest = parts.merge(
            written,
            step=saved.step,
            held_out=saved.held_out,
            run=config.run,
            attempt=config.attempt,
            spec=trainer.spec.model_dump(mode="json"),
            scalars=dict(saved.scalars),
            reads=self._reads,
        )
        kept = folders.publish(where, config.folder, manifest, self._keep)
        self._told = {
            "step": saved.step,
            "held_out": saved.held_out,
            "bytes": manifest.bytes,
            "blocked": saved.blocked,
            "seconds": time.perf_counter() - began,
            "kept": kept,
        }
        self._sink.emit("checkpoint", **self._told)

    def add_held_out(self, done: int, held_out: float) -> None:
        """Adds the held-out loss after `done` steps to the checkpoint of these, which `wait` has waited for: evaluated
        after the save. Rank 0 also drops the checkpoints that are superseded now, and emits the record again.

        Nothing happens where these steps were not saved, or the loss is not finite. A manifest that cannot be written
        stays as it was: without the loss the checkpoint is as good.
        """
        if self._told.get("step") != done or not math.isfinite(held_out):
            return
        try:
            kept = folders.add_held_out(self._config.folder, self._config.attempt, done, held_out, self._keep)
        except (CheckpointError, OSError) as error:
            log.warning("the checkpoint after %s stays without its held-out loss: %s", steps_text(done), error)
            return
        self._told |= {"held_out": held_out, "kept": kept}
        self._sink.emit("checkpoint", **self._told)


def _no_room(error: Exception) -> bool:
    return isinstance(error, parts.NoRoom) or (isinstance(error, OSError) and error.errno in NO_SPACE)


def _unwritten(step: int, error: BaseException) -> CheckpointError:
    why = str(error) or type(error).__name__
    said = CheckpointError(f"The checkpoint after {steps_text(step)} could not be written: {why}")
    said.__cause__ = error  # with its own traceback, and for want of memory told as that
    return said


def load(trainer: Trainer, path: Path, run: int = 0) -> int:
    """Fills the trainer's state from the checkpoint at `path`; returns the number of steps done. `run` as in
    `require_match`.

    Raises CheckpointError where the checkpoint is damaged or was changed, or belongs to another model.
    """
    manifest, tell = manifests.read(path), partial(trainer.progress.at, -1, "loading")
    match.require_match(manifest, trainer.spec, run)
    state = State(trainer)
    shares = {**state.shares(trainer.loaded_buffers()), **state.statistics(trainer.chunks.buffers())}
    if manifest.weights_only:
        shares = {name: share for name, share in shares.items() if name.startswith(("value/", "main/"))}
        for kind in ("value", "main"):  # only values were saved: fp32 master weights start from them, too
            of_kind = {name.replace(f"{kind}/", "value/", 1): s for name, s in shares.items() if name.startswith(kind)}
            storage.load(of_kind, path, manifest, tell)
        return manifest.step
    storage.load(shares, path, manifest, tell)
    try:
        trainer.load_scalars(manifest.scalars)
    except KeyError as error:
        raise CheckpointError(f"The checkpoint has no {error.args[0]}.") from error
    return manifest.step


def load_weights(trainer: Trainer, path: Path) -> None:
    """Fills values and fp32 master weights from the folder of Llama weights at `path`; the optimizer starts anew.

    Raises CheckpointError where the weights are damaged, or of another model.
    """
    tell = partial(trainer.progress.at, -1, "loading")
    values = {kind: pieces for kind, pieces in trainer.loaded_buffers().items() if kind in ("value", "main")}
    for kind, pieces in values.items():
        llama.load(State(trainer).shares({kind: pieces}), path, trainer.spec.model, tell)
