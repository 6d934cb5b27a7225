"""Publishes the files of the ranks to the EVENTS stream. The files are the spool: nothing is held in memory.

The relay follows the events and `log-<rank>.txt` of each attempt by byte offset. While the broker is unreachable, or
the controller is behind by MAX_BACKLOG entries, the offsets stay and the files grow, up to a limit (see `spool`). What
it publishes twice (after a restart, or a lost answer) is skipped by the controller's cursor.

Order: events (`tell`) are published in the order of their calls; the end of an attempt after the last byte of all its
files, with their sizes, and again from time to time until the controller says that everything has arrived.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import redis

from parallel_core.observe.spool import Recorded, Spool
from workers.contract import AttemptBody, BatchBody, Channel
from workers.folder import Folder
from workers.outage import is_away
from workers.tail import Tail, open_tail
from workers.wire import MAX_BACKLOG, Backoff, Publisher

log = logging.getLogger(__name__)

POLL_S = 0.25
GATHER_S = 0.5
"""Seconds between two publications of an attempt's files, so that each costs the yard one transaction. On a machine
whose cores are all used by ranks, whatever the yard does is taken from them."""
IDLE_S = 1.0
SAVE_S = 1.0
"""Seconds between two saves of the published offsets; what is published between them is published twice after a
restart."""
TURN = 16
"""Batches of one file in one pass, so that a long log does not delay the points of another attempt."""
REPEAT_S = (10.0, 320.0)
"""Shortest and longest wait between two repetitions of an end that nobody has settled."""
CHANNELS: tuple[Channel, ...] = ("events", "log")

FileKey = tuple[Channel, int]


@dataclass
class Followed:
    """One attempt's files. `end` is to be published after all of them; None while the ranks live."""

    folder: Folder
    tails: dict[FileKey, Tail]
    offsets: dict[FileKey, int]
    end: AttemptBody | None = None
    ended: bool = False  # the end was published, and since then nothing has asked for it again
    repeat_at: float = 0.0
    repeat_after: float = field(default_factory=lambda: REPEAT_S[0])
    dirty: bool = False
    saved_at: float = field(default_factory=time.monotonic)
    unsaved: bool = False  # the last save failed
    sent_at: float = float("-inf")

    @property
    def due(self) -> bool:
        """Whether new data may be published now: always before an end, else GATHER_S after the last publication."""
        return self.end is not None or time.monotonic() - self.sent_at >= GATHER_S

    @property
    def recorded(self) -> Recorded:
        """Its events, for the spool."""
        published = {rank: at for (channel, rank), at in self.offsets.items() if channel == "events"}
        return Recorded(self.folder.path, published, self.end is not None, self.ended)

    def save(self, force: bool = False) -> None:
        """Saves the offsets when that is due. A full disk is only logged: without them, a restart publishes bytes
        twice."""
        if not self.dirty or not (force or time.monotonic() - self.saved_at >= SAVE_S):
            return
        self.saved_at = time.monotonic()
        try:
            self.folder.save_published({f"{channel}:{rank}": at for (channel, rank), at in self.offsets.items()})
        except OSError as error:
            if not self.unsaved:
                log.error("attempt %d: how far it was published cannot be stored: %s", self.folder.attempt, error)
            self.unsaved = True
        else:
            self.dirty = self.unsaved = False


class Relay(threading.Thread):
    """The only thread that publishes batches and attempt events. Its public methods may be called from any thread."""

    def __init__(
        self, publisher: Publisher, on_ended: Callable[[int], None] = lambda _: None, spool: Spool | None = None
    ) -> None:
        """`on_ended(attempt)` is called (in the relay's thread) after the end of an attempt was published. `spool`
        bounds what the followed files take on disk; None: nothing does."""
        super().__init__(name="relay", daemon=True)
        self._spool, self._unbounded = spool, False
        self._away = False  # the last pass could not reach the broker, or it took nothing
        self._publisher = publisher
        self._on_ended = on_ended
        self._actions: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._told: deque[tuple[str, Mapping[str, Any]]] = deque()
        self._followed: dict[int, Followed] = {}
        self._leaving = False

    # Orders

    def tell(self, kind: str, body: Mapping[str, Any]) -> None:
        """Publishes an event that belongs to no file."""
        self._actions.put(lambda: self._told.append((kind, body)))

    def follow(self, folder: Folder, ranks: list[int]) -> None:
        """Publishes the files of these ranks, from where an earlier life of the worker had stopped."""
        self._actions.put(lambda: self._follow(folder, ranks))

    def finish(self, attempt: int, end: AttemptBody) -> None:
        """No process writes the attempt's files any more: publishes the rest, then `end` with their sizes."""
        self._actions.put(lambda: self._finish(attempt, end))

    def rewind(self, attempt: int, channel: Channel, rank: int, offset: int) -> None:
        """Publishes a file again from `offset` on (and then the end, if there is one)."""
        self._actions.put(lambda: self._rewind(attempt, (channel, rank), offset))

    def forget(self, attempt: int, then: Callable[[], None]) -> None:
        """Publishes nothing more of this attempt, then calls `then` in the relay's thread, e.g. to empty the folder."""
        self._actions.put(lambda: self._forget(attempt, then))

    def leave(self, timeout: float) -> bool:
        """Publishes what it can within `timeout` seconds, then ends. False if something was left."""
        self._actions.put(self._leave)
        self.join(timeout)
        return not self.is_alive()

    # The thread

    def run(self) -> None:
        backoff, wait = Backoff(), 0.0
        while not (self._leaving and self._done()):
            self._obey(wait)
            self._bound()
            self._away = False
            try:
                self._publish()
                backoff.reset()
                wait = POLL_S if self._waiting() else IDLE_S
            except redis.RedisError as error:
                self._away, wait = is_away(error), backoff.step()
                if not self._away:  # else logged once for all threads, by the publisher
                    log.warning("the broker does not take events: %s; next try in %.2f s", error, wait)
            except Exception:
                wait = IDLE_S
                log.exception("the relay goes on after a fault of its own")
        for followed in self._followed.values():
            followed.save(force=True)

    def _bound(self) -> None:
        """Lets the spool drop spans where that is due, published or not. In this thread: no other reads the files.

        While the broker is away a pass takes seconds and publishes nothing, so what is over the limit goes at once."""
        while self._drop() and self._away and self._actions.empty():
            pass

    def _drop(self) -> bool:
        """Returns whether there is more to drop."""
        if self._spool is None:
            return False
        try:
            more = self._spool.bound([followed.recorded for followed in self._followed.values()])
        except Exception:
            if not self._unbounded:
                log.exception("spans on disk cannot be dropped; the relay goes on")
            self._unbounded = True
            return False
        self._unbounded = False
        return more

    def _obey(self, wait: float) -> None:
        """Carries out all waiting actions, after waiting up to `wait` seconds for a first one."""
        with contextlib.suppress(queue.Empty):
            action = self._actions.get(timeout=wait) if wait > 0 else self._actions.get_nowait()
            while True:
                try:
                    action()
                except Exception:
                    log.exception("the relay goes on after an action that failed")
                action = self._actions.get_nowait()

    def _leave(self) -> None:
        self._leaving = True

    def _done(self) -> bool:
        """Whether this life of the worker has nothing left to publish."""
        return not self._told and all(followed.ended for followed in self._followed.values() if followed.end)

    def _waiting(self) -> bool:
        """Whether files may grow, or an end is not published yet: poll fast."""
        return bool(self._told) or any(not followed.ended for followed in self._followed.values())

    def _follow(self, folder: Folder, ranks: list[int]) -> None:
        published = folder.load_published()
        keys: list[FileKey] = [(channel, rank) for rank in ranks for channel in CHANNELS]
        self._followed[folder.attempt] = Followed(
            folder,
            {key: open_tail(folder.path, *key) for key in keys},
            {key: int(published.get(f"{key[0]}:{key[1]}", 0)) for key in keys},
        )

    def _finish(self, attempt: int, end: AttemptBody) -> None:
        if followed := self._followed.get(attempt):
            followed.end, followed.ended = end, False

    def _rewind(self, attempt: int, key: FileKey, offset: int) -> None:
        followed = self._followed.get(attempt)
        if followed and key in followed.offsets:
            log.info("attempt %d: %s of rank %d again from byte %d", attempt, *key, offset)
            followed.offsets[key] = min(followed.offsets[key], max(0, offset))
            followed.ended = False

    def _forget(self, attempt: int, then: Callable[[], None]) -> None:
        self._followed.pop(attempt, None)
        then()

    # Publishing

    def _publish(self) -> None:
        """One pass. Raises redis.RedisError; the offsets then say how far it came. Raises OSError if files of an
        attempt cannot be read, after the pass over all the others."""
        while self._told:
            self._publisher.add(*self._told[0])
            self._told.popleft()
        unreadable: OSError | None = None
        for followed in list(self._followed.values()):
            try:
                self._publish_one(followed)
            except OSError as error:
                unreadable = error
        if unreadable:
            raise unreadable

    def _publish_one(self, followed: Followed) -> None:
        if followed.ended:
            self._repeat(followed)
            return
        dry = followed.due and self._publish_files(followed)
        if followed.end and dry:
            self._publish_end(followed, followed.end)
        followed.save()

    def _publish_files(self, followed: Followed) -> bool:
        """Publishes some batches of every file; True when there is nothing more in any of them."""
        for _ in range(TURN):
            batches = list(self._next_batches(followed))
            if not batches:
                return True
            if self._publisher.backlog() >= MAX_BACKLOG:
                return False
            self._publisher.add_all([("batch", body, data) for body, data in batches])
            for body, _ in batches:
                followed.offsets[body["channel"], body["rank"]] = body["end"]
            followed.dirty, followed.sent_at = True, time.monotonic()
        return False

    def _next_batches(self, followed: Followed) -> Iterator[tuple[BatchBody, bytes]]:
        """Yields the next batch of each file that has more."""
        attempt = followed.folder.attempt
        for (channel, rank), tail in followed.tails.items():
            start = followed.offsets[channel, rank]
            data, end = tail.read(start, followed.end is not None)
            if not data:
                continue
            body = BatchBody(attempt=attempt, rank=rank, channel=channel, start=start, end=end)
            if omitted := end - start - len(data):
                body["omitted"] = omitted
            yield body, data

    def _publish_end(self, followed: Followed, end: AttemptBody) -> None:
        sizes = {f"{channel}:{rank}": at for (channel, rank), at in followed.offsets.items()}
        self._publisher.add("attempt", {**end, "sizes": sizes})
        followed.ended = True
        followed.repeat_at = time.monotonic() + followed.repeat_after
        followed.save(force=True)
        self._on_ended(followed.folder.attempt)

    def _repeat(self, followed: Followed) -> None:
        """Publishes the end again if nobody has settled it: the entry, or the answer to it, may have been lost."""
        if followed.end and time.monotonic() >= followed.repeat_at and self._publisher.backlog() < MAX_BACKLOG:
            followed.repeat_after = min(REPEAT_S[1], 2 * followed.repeat_after)
            self._publish_end(followed, followed.end)
