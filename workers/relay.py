"""From the files of the ranks to the EVENTS stream. The files are the spool: nothing is held in memory.

The relay follows `events-<rank>.bin` and `log-<rank>.txt` of each attempt by byte offset. While the broker is away, or
the controller is behind by MAX_BACKLOG entries, the offsets stand still and the files grow; nothing is dropped. What it
publishes twice (after a restart, after a lost answer) the controller's cursor skips.

Order: what is told (`tell`) goes out in the order it was told; the end of an attempt goes out after the last byte of
all its files, with their sizes, and again from time to time until the controller says that everything arrived.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import redis

from workers.contract import AttemptBody, BatchBody, Channel
from workers.folder import Folder
from workers.outage import AWAY
from workers.tail import Tail, open_tail
from workers.wire import MAX_BACKLOG, Backoff, Publisher

log = logging.getLogger(__name__)

POLL_S = 0.25
GATHER_S = 1.0
"""What the ranks of an attempt wrote is published at most this often, all of it at once, so that it costs the yard one
transaction. On a machine whose cores are all at work for ranks, whatever the yard does is taken from them."""
IDLE_S = 1.0
SAVE_S = 1.0
"""How often the published offsets are written down: what lies between is published twice after a restart."""
TURN = 16
"""Batches of one file in one pass, so that a long log does not hold up the points of another attempt."""
REPEAT_S = (10.0, 320.0)
"""First and longest wait between two repetitions of an end that nobody has settled."""
CHANNELS: tuple[Channel, ...] = ("events", "log")

FileKey = tuple[Channel, int]


@dataclass
class Followed:
    """One attempt's files. `end` is what to publish when all of them are, None while the ranks live."""

    folder: Folder
    tails: dict[FileKey, Tail]
    offsets: dict[FileKey, int]
    end: AttemptBody | None = None
    ended: bool = False  # the end was published, and nothing since asks for it again
    repeat_at: float = 0.0
    repeat_after: float = field(default_factory=lambda: REPEAT_S[0])
    dirty: bool = False
    saved_at: float = field(default_factory=time.monotonic)
    sent_at: float = float("-inf")

    @property
    def due(self) -> bool:
        """Whether what was written since may be published: nobody waits behind an end, or for a first word."""
        return self.end is not None or time.monotonic() - self.sent_at >= GATHER_S

    def save(self, force: bool = False) -> None:
        if self.dirty and (force or time.monotonic() - self.saved_at >= SAVE_S):
            self.folder.save_published({f"{channel}:{rank}": at for (channel, rank), at in self.offsets.items()})
            self.dirty, self.saved_at = False, time.monotonic()


class Relay(threading.Thread):
    """The one thread that publishes batches and attempt events. Its public methods may be called from any thread."""

    def __init__(self, publisher: Publisher, on_ended: Callable[[int], None] = lambda _: None) -> None:
        """`on_ended(attempt)` is called (in the relay's thread) after the end of an attempt was published."""
        super().__init__(name="relay", daemon=True)
        self._publisher = publisher
        self._on_ended = on_ended
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._told: deque[tuple[str, Mapping[str, Any]]] = deque()
        self._followed: dict[int, Followed] = {}
        self._leaving = False

    # Orders

    def tell(self, kind: str, body: Mapping[str, Any]) -> None:
        """Publish an event that belongs to no file."""
        self._orders.put(lambda: self._told.append((kind, body)))

    def follow(self, folder: Folder, ranks: list[int]) -> None:
        """Publish the files of these ranks from where an earlier life of the worker had come."""
        self._orders.put(lambda: self._follow(folder, ranks))

    def finish(self, attempt: int, end: AttemptBody) -> None:
        """No process writes the attempt's files any more: publish the rest, then `end` with the sizes."""
        self._orders.put(lambda: self._finish(attempt, end))

    def rewind(self, attempt: int, channel: Channel, rank: int, offset: int) -> None:
        """Publish a file again from `offset` on (and then the end, where there is one)."""
        self._orders.put(lambda: self._rewind(attempt, (channel, rank), offset))

    def forget(self, attempt: int, then: Callable[[], None]) -> None:
        """Publish nothing more of this attempt, then do what is to be done with its folder."""
        self._orders.put(lambda: self._forget(attempt, then))

    def leave(self, timeout: float) -> bool:
        """Publish what can be published within `timeout` seconds, then end. False where something was left over."""
        self._orders.put(self._leave)
        self.join(timeout)
        return not self.is_alive()

    # The thread

    def run(self) -> None:
        backoff, wait = Backoff(), 0.0
        while not (self._leaving and self._done()):
            self._obey(wait)
            try:
                self._publish()
                backoff.reset()
                wait = POLL_S if self._waiting() else IDLE_S
            except AWAY:
                wait = backoff.step()  # told once for all threads, by the publisher
            except redis.RedisError as error:
                wait = backoff.step()
                log.warning("the broker does not take events: %s; next try in %.2f s", error, wait)
            except OSError:
                wait = IDLE_S
                log.exception("a file of an attempt cannot be read")
        for followed in self._followed.values():
            followed.save(force=True)

    def _obey(self, wait: float) -> None:
        """Carries out all orders that are there, after waiting up to `wait` seconds for a first one."""
        try:
            order = self._orders.get(timeout=wait) if wait > 0 else self._orders.get_nowait()
            while True:
                order()
                order = self._orders.get_nowait()
        except queue.Empty:
            return

    def _leave(self) -> None:
        self._leaving = True

    def _done(self) -> bool:
        """Nothing is left to be said by this life of the worker."""
        return not self._told and all(followed.ended for followed in self._followed.values() if followed.end)

    def _waiting(self) -> bool:
        """Whether files may grow, or an end is not out: poll fast."""
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
        """One pass. Raises redis.RedisError; then offsets say how far it came."""
        while self._told:
            self._publisher.add(*self._told[0])
            self._told.popleft()
        for followed in list(self._followed.values()):
            if followed.ended:
                self._repeat(followed)
                continue
            dry = followed.due and self._publish_files(followed)
            if followed.end and dry:
                self._publish_end(followed, followed.end)
            followed.save()

    def _publish_files(self, followed: Followed) -> bool:
        """Publishes some batches of every file; True when nothing more of any is there."""
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
        """One of each file of which there is more."""
        attempt = followed.folder.attempt
        for (channel, rank), tail in followed.tails.items():
            start = followed.offsets[channel, rank]
            if data := tail.read(start, followed.end is not None):
                yield BatchBody(attempt=attempt, rank=rank, channel=channel, start=start, end=start + len(data)), data

    def _publish_end(self, followed: Followed, end: AttemptBody) -> None:
        sizes = {f"{channel}:{rank}": at for (channel, rank), at in followed.offsets.items()}
        self._publisher.add("attempt", {**end, "sizes": sizes})
        followed.ended = True
        followed.repeat_at = time.monotonic() + followed.repeat_after
        followed.save(force=True)
        self._on_ended(followed.folder.attempt)

    def _repeat(self, followed: Followed) -> None:
        """The end again, where nobody has settled it: the entry, or the answer to it, may have been lost."""
        if followed.end and time.monotonic() >= followed.repeat_at and self._publisher.backlog() < MAX_BACKLOG:
            followed.repeat_after = min(REPEAT_S[1], 2 * followed.repeat_after)
            self._publish_end(followed, followed.end)
