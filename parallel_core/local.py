"""Runs training on this host without dashboard: used by the command line, the calibration and the benchmarks.

    with LocalRunner() as runner:
        outcome = runner.run(spec, folder, on_frame=print)
    outcome.series("loss")     # read from the records in `folder`, as all that `Outcome` says of them

The ranks are started in the same way as by a worker (`launch.ForkServer`), and write the same files.
"""

from __future__ import annotations

import logging
import math
import queue
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from parallel_core import launch
from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint.folder import CHECKPOINTS
from parallel_core.exits import Exit
from parallel_core.launch import CheckpointOptions, Event, ForkServer, GenerationRequest, StartCommand
from parallel_core.no_progress import Watch, marked, sentence
from parallel_core.observe import host
from parallel_core.observe.event_tail import EventTail
from parallel_core.observe.record_files import Frame, decode, segments_by_rank
from parallel_core.observe.spool import Recorded, Spool, segment_bytes
from parallel_core.outcome import Outcome
from parallel_core.spec import RunSpec

log = logging.getLogger(__name__)

POLL_S = 0.1


class Interrupted(KeyboardInterrupt):
    """A run was ended by Ctrl-C, with this outcome, and none of its processes is left."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


class LocalRunner:
    """A fork server that executes one run at a time."""

    def __init__(
        self,
        command: Sequence[str] | None = None,
        *,
        save_s: float = launch.STOP_GRACE_S,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """`command` as in ForkServer. After Ctrl-C `on_stop` is called, and the ranks have `save_s` seconds to save."""
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.server = ForkServer(self._events.put, command)
        self._save_s, self._on_stop = save_s, on_stop
        self._attempt = 0
        self._ready = False
        self._corpora = tempfile.TemporaryDirectory(prefix="trainyard-corpora-")
        """Folder of built-in corpora for runs without `corpora`, shared by all of them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.server.close()
        self._corpora.cleanup()

    def wait_ready(self) -> None:
        """Waits until the engine is imported, so that a run starts at once."""
        while not self._ready:
            self._take(self._events.get(), None)

    def run(
        self,
        spec: RunSpec,
        folder: Path,
        *,
        devices: Sequence[int] | None = None,
        corpora: Path | None = None,
        resume: Path | None = None,
        on_frame: Callable[[Frame], None] | None = None,
        request: GenerationRequest | None = None,
        no_progress_s: float = math.inf,
        links: bool = False,
        spool_bytes: int | None = None,
    ) -> Outcome:
        """Trains in `folder` to the end, or with a `request` generates text from `resume`, and returns the outcome.

        `on_frame` is called with the records of rank 0 as they arrive. `corpora`: folder of uploaded texts, named by
        their sha256; `resume`: a checkpoint to start from. New checkpoints go to `folder`/checkpoints. Ctrl-C
        (KeyboardInterrupt) stops the ranks, which save first, and a second one ends them at once; Interrupted is raised
        then. A run in which no rank moves for `no_progress_s` seconds is ended. `links`: its ranks measure messages.
        `spool_bytes`: bytes of records above which the oldest spans go (observe.spool); None: all stay. Raises
        AmbiguousGpus, before a rank starts, and FileExistsError where `folder` holds the records of another run: they
        would be read as this one's.
        """
        _refuse_before_a_rank(spec, folder, resume)
        self._attempt += 1
        command = self._command(spec, folder, devices, corpora, resume)
        if spool_bytes is not None:
            command["segment"] = segment_bytes(spool_bytes, spec.parallel.world)
        outcome = self._start({**command, "request": request, "links": links}, spec, folder)
        tail, spool = Tail(folder, 0), _Spooled(folder, spec, spool_bytes)
        watch = Watch(folder, range(spec.parallel.world), no_progress_s)

        def look() -> None:
            tail.read(on_frame)
            spool.bound()
            if not outcome.stood and watch.due():
                self._end_stuck(outcome, spec, no_progress_s)

        self._follow(outcome, look)
        spool.bound(over=True)
        return outcome

    def _start(self, command: StartCommand, spec: RunSpec, folder: Path) -> Outcome:
        """Starts the ranks, once `folder` holds nothing incomplete that they would take for their own."""
        folder.mkdir(parents=True, exist_ok=True)
        outcome = Outcome(folder, time.monotonic(), spec.parallel.world)
        if command["request"] is None:  # the number of every attempt in its checkpoints is 0: no rank knows old ones
            folders.tidy(folder / CHECKPOINTS, None)
        self.server.start(command)
        return outcome

    def _follow(self, outcome: Outcome, read: Callable[[], object]) -> None:
        """Waits until the run is over, also after Ctrl-C; `read` is called repeatedly to process the ranks' records."""
        try:
            self._until_gone(outcome, read)
        except KeyboardInterrupt as error:
            self._on_stop()
            self.server.stop(self._attempt, self._save_s)
            try:
                self._until_gone(outcome, read)
            except KeyboardInterrupt:
                self.server.stop(self._attempt, 0)
                self._until_gone(outcome, lambda: None)
            raise Interrupted(outcome) from error

    def _until_gone(self, outcome: Outcome, read: Callable[[], object]) -> None:
        while not self._step(outcome):
            read()
        with suppress(KeyboardInterrupt):  # nothing is left that could be stopped
            read()
            folders.tidy(outcome.folder / CHECKPOINTS, None)  # nor any rank that could complete what it was saving

    def _end_stuck(self, outcome: Outcome, spec: RunSpec, limit_s: float) -> None:
        """Records where the ranks are while they are still there, and ends them."""
        ranks = range(spec.parallel.world)
        outcome.message = sentence(outcome.folder, ranks, limit_s)
        self.server.dump(self._attempt)
        outcome.stood = marked(outcome.folder, ranks, spec)
        self.server.stop(self._attempt)

    def _command(
        self, spec: RunSpec, folder: Path, devices: Sequence[int] | None, corpora: Path | None, resume: Path | None
    ) -> StartCommand:
        saves: CheckpointOptions = {
            "folder": str((folder / CHECKPOINTS).resolve()),
            "resume": str(resume.resolve()) if resume else "",
            "run": 0,
            "attempt": 0,
        }
        return {
            "attempt": self._attempt,
            "spec": spec.model_dump(mode="json"),
            "folder": str(folder.resolve()),
            "first_rank": 0,
            "devices": list(devices if devices is not None else range(spec.parallel.world)),
            "device_kind": spec.train.device,
            "corpus_cache": str((corpora or Path(self._corpora.name)).resolve()),
            "saves": saves,
        }

    def _step(self, outcome: Outcome) -> bool:
        """Processes an event, if one arrives soon; returns True once the run is over."""
        try:
            return self._take(self._events.get(timeout=POLL_S), outcome)
        except queue.Empty:
            return False

    def _take(self, event: Event, outcome: Outcome | None) -> bool:
        if event["event"] == "lost":
            raise launch.ServerLost("the fork server ended; its output is above")
        self._ready = self._ready or event["event"] == "ready"
        if outcome is None or event.get("attempt") != self._attempt:
            return False
        if event["event"] == "exit":
            outcome.exits.append(Exit(event["rank"], event["code"], time.monotonic()))
        elif event["event"] == "refused":
            outcome.message = event["message"]
        return event["event"] == "gone"


def _refuse_before_a_rank(spec: RunSpec, folder: Path, resume: Path | None) -> None:
    """Raises FileExistsError and AmbiguousGpus as `LocalRunner.run` says."""
    if resume is None and segments_by_rank(folder):
        raise FileExistsError(
            f"{folder} holds the records of a run already; name another folder, or read them by Outcome.read"
        )
    if spec.train.device == "cuda":
        host.cuda_devices()  # every rank would fail in the same way


class Tail:
    """Reads the growing records of a rank, each time from where it stopped before."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._events, self._at = EventTail(folder, rank), 0

    def read(self, on_frame: Callable[[Frame], None] | None) -> None:
        """Calls `on_frame` with each new complete record."""
        while on_frame is not None and (piece := self._events.read(self._at, final=False)).data:
            for frame in decode(piece.data, self._at):
                on_frame(frame)
            self._at = piece.end


class _Spooled:
    """The records of one run, bounded as a worker's are; nobody takes them, so all of them count."""

    def __init__(self, folder: Path, spec: RunSpec, limit: int | None) -> None:
        self._spool = Spool(limit) if limit is not None else None
        self._folder, self._unpublished = folder, dict.fromkeys(range(spec.parallel.world), 0)
        self._failed = False

    def bound(self, *, over: bool = False) -> None:
        """Drops spans if that is due; at the end of the run (`over`) until the rest fits."""
        if self._spool is None:
            return
        try:
            self._spool.bound([Recorded(self._folder, self._unpublished, over)], last=over)
        except OSError:
            if not self._failed:
                log.exception("spans on disk cannot be dropped; the run goes on")
            self._failed = True
