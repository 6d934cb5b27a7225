"""The controller's loop: reads worker events, stores them, answers; then checks leases, cancels and the queue.

A turn: read (at most 200 ms) -> one transaction -> acknowledge, send messages, announce -> sweeps, if there may be
something to find; one that fails stops no other -> what nobody waits for. Whatever fails is tried again from what the
broker still holds and what the database says; apart from the clocks, the controller keeps no state that it could not
lose. Those begin with the workers that the controller before this one had heard.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import redis
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from kombu.exceptions import OperationalError as BrokerError

from dashboard.control import placing, sweeps, wire
from dashboard.control.changes import Changes
from dashboard.control.claim import Claim
from dashboard.control.clocks import Clocks
from dashboard.control.dead_letters import stored
from dashboard.control.dispatch import Asked, ControlMessage, send_messages, send_start
from dashboard.control.durability import Durability
from dashboard.control.guard import Guard, one_line
from dashboard.control.ingest import Ingest
from dashboard.control.leisure import Leisure
from dashboard.control.lock import lock_of_database
from dashboard.control.restoring import store_asked
from dashboard.control.starter import Starter
from dashboard.control.summary import store_summary, unsummarised
from dashboard.control.suspects import UNREACHABLE, Suspects
from dashboard.control.wire import Entry, Reader
from dashboard.deadlocks import is_deadlock
from dashboard.disk_full import is_disk_full
from dashboard.fleet.listening import STAMP_EVERY_S, note_deaf, note_full, note_reading, stamp
from dashboard.fleet.selectors import RETURNS_S, reporting
from dashboard.live.announce import publish
from dashboard.runs.models import Attempt
from dashboard.studies.fitting import fit_runs
from dashboard.webhook.sender import Sender
from workers.contract import HEARTBEAT_S, LEASE_S
from workers.wire import connect

log = logging.getLogger(__name__)

RETRY_S = 0.3
LOCK_POLL_S = 0.25
UNSETTLED_EVERY_S = 5.0
STARTER_EVERY_S = 1.0
CLOCKS_EVERY_S = 1.0
SWEEP_EVERY_S = 5.0
"""Interval of sweeps while nobody wrote to the database and workers sent only data and unchanged heartbeats: then a
sweep can find hardly anything that the clocks do not show."""
FRESH_S = 1.5 * HEARTBEAT_S
"""Age of a worker's last heartbeat up to which runs are placed on it: one that is late may be dead. Until its lease is
over, runs that belong there wait for it."""
SYNC_EVERY_S = 1.0
"""Interval at which commits are synced to the disk: what a loss of power costs at most."""
FAILURES = (redis.RedisError, BrokerError, DatabaseError, InterfaceError, OSError)


class Controller:
    """The controller of one process. `lease` in seconds. `stop()` may be called from a signal handler."""

    def __init__(self, lease: float = LEASE_S) -> None:
        self._lease = lease
        self._stopping = threading.Event()
        self._redis = connect(settings.REDIS_URL, wire.ANSWER_LIMIT_S)
        self._reader = Reader(self._redis)
        self._claim = Claim(self._redis)
        self._clocks = Clocks()
        self._changes = Changes()
        self._news = True
        self._guard = Guard()
        self._suspects = Suspects()
        self._alive: set[str] = set()
        self._fresh: set[str] = set()
        self._starter = Starter()
        self._resends: dict[int, int] = {}
        self._unsent: dict[int, Attempt] = {}
        self._fences: list[ControlMessage] = []  # of attempts that a sweep ended, which finds them only once
        self._to_summarise: set[int] = set()
        self._unsummarised_known = False
        self._succeeded = False
        self._listened_at: float | None = None
        self._last: dict[str, float] = {}
        self._asked = Asked()
        self._away = ""
        self._durability = Durability()
        self._leisure = Leisure(self._guard, self._changes)
        self._sender = Sender(self._stopping)

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        """Works until stopped. Waits while another controller has the lock. Raises Claimed if the broker is another
        yard's."""
        lock, waiting = lock_of_database(), False
        while not self._stopping.is_set():
            try:
                if lock.hold():
                    waiting = False
                    self._sender.go()
                    self.turn()
                    continue
                if not waiting:
                    log.info("another controller is active; waiting for it to end")
                    waiting = True
                    self._end_term()
                self._stopping.wait(LOCK_POLL_S)
            except FAILURES as error:
                self._recover(error)
        lock.release()

    def turn(self) -> None:
        """One turn of the loop. Raises one of FAILURES if the broker or the database is unreachable, Claimed if the
        broker is another yard's."""
        self._claim.hold()
        read = self._reader.read()
        self._succeed()
        self._news |= self._changes.any()
        done = self._store(read.entries)
        self._news |= any(ingest.news for ingest in done)
        for ingest in done:
            self._note_ended(ingest.ended)
        stamps = read.caught_up and self._every("stamp", STAMP_EVERY_S, lambda: stamp(self._guard.failing))
        if read.entries or stamps:
            self._changes.skip_own()
        self._reader.acknowledge(read.ids)
        self._hear(done, read.at)
        self._tell(done)
        self._every("sync", SYNC_EVERY_S, self._durability.sync)
        self._durability.release(partial(send_messages, self._redis))
        if read.caught_up:
            self._look_after()
            self._news |= self._leisure.turn()
        else:
            self._listened_at = None  # a backlog: silence does not count until it is read
            self._every("reading", STAMP_EVERY_S, note_reading)
        if self._away:
            log.warning("the broker and the database answer again")
            self._away = ""

    def _end_term(self) -> None:
        """Forgets what another controller, which has the lock now, goes on with: whom it hears, which runs it leaves
        without a summary, and what it has to send, is known from the database when its term is over."""
        self._sender.pause()
        self._clocks, self._succeeded, self._unsummarised_known = Clocks(), False, False
        self._unsent.clear()
        self._claim.forget()

    def _succeed(self) -> None:
        """Expects, once a term, the workers that the controller before this one had heard, so that runs that belong
        there wait for their next heartbeat. Comes before the first stamp, which would make them silent."""
        if not self._succeeded:
            self._clocks.expect(reporting().values_list("name", flat=True))
            self._succeeded = True

    def _recover(self, error: Exception) -> None:
        if is_deadlock(error):
            log.info("a transaction met another one and is tried again: %s", error)
        elif str(error) != self._away:  # retried all the time: logged once
            log.warning("the broker or the database is away: %s", error)
            self._away = str(error)
        self._listened_at, self._unsummarised_known = None, False
        self._changes.forget()
        self._reader.start_over()
        self._claim.forget()
        self._every("sync", SYNC_EVERY_S, self._durability.sync)  # turns that fail do not get that far
        if isinstance(error, redis.RedisError | BrokerError):
            with suppress(DatabaseError, InterfaceError):
                self._every("deaf", STAMP_EVERY_S, lambda: note_deaf(one_line(error)))
        else:
            connection.close()
        if is_disk_full(error):
            with suppress(redis.RedisError):
                self._every("full", STAMP_EVERY_S, lambda: note_full(self._redis))
        self._stopping.wait(RETRY_S)

    def _store(self, entries: list[Entry]) -> list[Ingest]:
        return stored(entries, self._suspects)

    def _hear(self, done: list[Ingest], at: float) -> None:
        """Notes the heartbeats, read `at` by the broker's clock. They are acknowledged and not read again, so nothing
        that may fail comes before."""
        for ingest in done:
            for beat in ingest.heard:
                self._clocks.heard(beat.worker, beat.attempts, at - beat.at, beat.still)

    def _tell(self, done: list[Ingest]) -> None:
        """Does what has to happen after the commit. If a crash prevents it, the answer to the next heartbeat makes up
        for it. Orders of the kind `settled` wait for the sync."""
        messages = [message for ingest in done for message in ingest.messages]
        self._durability.hold([one for one in messages if one[1]["kind"] == "settled"])
        for ingest in done:
            for (run, study), what in ingest.topics.items():
                publish(run, study, what)
        send_messages(self._redis, self._asked.without_repeats(one for one in messages if one[1]["kind"] != "settled"))

    def _look_after(self) -> None:
        """Lets the clocks advance, then sweeps and does the periodic work that is due."""
        now = time.monotonic()
        self._clocks.advance(now - (self._listened_at or now))
        self._listened_at = now
        self._news |= self._hosts_changed()
        if self._news:
            self._last.pop("sweep", None)
        self._every("sweep", SWEEP_EVERY_S, self._sweep)
        self._every("clocks", CLOCKS_EVERY_S, self._look_at_clocks)
        self._send_unsent()
        self._summarise_one()
        self._every("unsettled", UNSETTLED_EVERY_S, self._ask_for_the_rest)
        starter = partial(self._guard.run, "queue the starter study", self._starter.consider)
        self._every("starter", STARTER_EVERY_S, starter)

    def _hosts_changed(self) -> bool:
        """Notes which workers are alive and fresh; returns whether runs may have to be placed because of that. A late
        heartbeat alone is no reason: it takes devices away for a moment."""
        alive, fresh = self._alive, self._fresh
        self._alive = self._clocks.alive(self._lease)
        self._fresh = self._alive & self._clocks.fresh(FRESH_S)
        return alive != self._alive or not self._fresh <= fresh

    def _sweep(self) -> None:
        """Looks for cancels, expired leases and queued runs to place. What it writes is news for the next turn."""
        self._news, self._leisure.remains = False, True
        self._guard.run("handle cancels", lambda: send_messages(self._redis, sweeps.sweep_cancels()))
        self._look_at_clocks()
        self._guard.run("place queued runs", self._place)
        self._guard.run("queue the next runs of fit studies", fit_runs.advance)
        self._guard.run("store again what was set aside", self._store_asked)

    def _place(self) -> None:
        for attempt in placing.place_queued(self._alive, self._fresh, self._clocks.alive(RETURNS_S)):
            self._clocks.placed(attempt.pk)
            self._unsent[attempt.pk] = attempt

    def _store_asked(self) -> None:
        """Some at a time: what that writes brings the next sweep."""
        done = store_asked()
        for ingest in done:
            self._note_ended(ingest.ended)
        self._tell(done)

    def _look_at_clocks(self) -> None:
        """Looks for what comes with time even if nobody writes: silent workers, and the step that somebody asked to
        trace."""
        self._last["clocks"] = time.monotonic()
        self._guard.run("choose steps to trace", lambda: send_messages(self._redis, sweeps.sweep_traces()))
        self._guard.run("end runs that stand still", self._end_standstills)
        self._guard.run("check leases", self._check_leases)

    def _end_standstills(self) -> None:
        send_messages(self._redis, sweeps.sweep_standstills(self._clocks, self._lease))

    def _check_leases(self) -> None:
        try:
            for attempt, verdict, messages in sweeps.sweep_leases(self._clocks, self._lease, self._resends):
                self._fences += messages
                if verdict == "again":
                    self._unsent[attempt.pk] = attempt
                else:
                    self._news = True
                    self._note_ended({attempt.run_id})
        finally:  # a sweep that fails at one attempt each time must not keep back the fences of others
            send_messages(self._redis, self._fences)
            self._fences.clear()

    def _send_unsent(self) -> None:
        for pk, attempt in list(self._unsent.items()):
            # What is not sent for another reason than the broker is sent again when its worker does not list it.
            self._guard.run("send start messages", partial(send_start, attempt))
            del self._unsent[pk]

    def _note_ended(self, runs: set[int]) -> None:
        self._to_summarise |= runs

    def _summarise_one(self) -> None:
        """Summarises one run a turn, so that events never wait long for analysis."""
        if not self._unsummarised_known:
            self._to_summarise |= unsummarised()
            self._unsummarised_known = True
        if self._to_summarise:
            pk = self._to_summarise.pop()
            try:
                store_summary(pk)
            except UNREACHABLE:  # any other error would recur
                self._to_summarise.add(pk)
                raise
            except Exception:
                log.exception("could not summarise run %s", pk)

    def _ask_for_the_rest(self) -> None:
        alive = self._clocks.alive(self._lease)
        ask = "ask workers for missing data"
        self._guard.run(ask, lambda: send_messages(self._redis, sweeps.sweep_unsettled(alive)))

    def _every(self, name: str, seconds: float, action: Callable[[], object]) -> bool:
        """Does it if the last time was so many seconds ago; returns whether it did."""
        now = time.monotonic()
        if now - self._last.get(name, float("-inf")) < seconds:
            return False
        self._last[name] = now
        action()
        return True
