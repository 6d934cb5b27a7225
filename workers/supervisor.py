"""The life of every attempt on this host: a single thread changes their state.

Other threads (Celery tasks, the control reader, the fork server's client) and signal handlers only put actions on its
queue. The steps of an attempt:

    1. accept   the folder is made (the claim), the message is checked, `starting` is published.
    2. hold     until a profile under way is over, ranks of an earlier attempt have left its devices, the corpus is
                here, a retry's checkpoint has been read through and, on a later host, the store is known; the
                controller limits this time, because it knows what the other hosts still have to fetch and read.
    3. launch   the fork server starts the ranks; once all have a process, `running` is published.
    4. stop     by cancel, fence, shut-down or watchdog: stored first, then TERM, grace, KILL.
    5. conclude when the fork server says that nothing is left: /proc is checked too, the end is stored, and the relay
                publishes it after the last byte of the ranks' files.
    6. settle   the controller has everything: the folder is emptied, the claim stays.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from parallel_core.exits import Exit
from parallel_core.launch import STOP_GRACE_S, Event, Store
from parallel_core.observe.suspension import SuspensionDetector
from parallel_core.observe.trace_request import TraceRequest, ask, read_how
from workers import deletions, ending, no_progress, preparation
from workers.attempt import Attempt, end_processes
from workers.calibration import Calibration
from workers.conclusion import Ends
from workers.contract import AttemptBody, ControlEntry, Device
from workers.ending import Ending
from workers.folder import Folder, Meta, Stop, unsettled
from workers.forking import Forking
from workers.idle_measurements import IdleMeasurements
from workers.intake import take
from workers.live_attempts import LiveAttempts
from workers.recovery import recover
from workers.relay import Relay
from workers.run_commands import Refused, RunCommand
from workers.settings import Settings

log = logging.getLogger(__name__)

TICK_S = 0.2
_STOPS: dict[str, tuple[Stop, Ending]] = {
    "cancel": ("cancelled", ending.CANCELLED),
    "end": ("ended", ending.OTHERS_ENDED),
    "fence": ("fenced", ending.CANCELLED),
}
LATE_S = 1.5
"""Seconds beyond the grace that the fork server may take before the worker kills the ranks itself."""


class Supervisor(threading.Thread):
    """Public methods may be called from any thread; those that only put an action on the queue also from a signal
    handler."""

    def __init__(
        self,
        settings: Settings,
        relay: Relay,
        devices: Callable[[], list[Device]],
        calibration: Calibration,
        gpus: Callable[[], list[tuple[str, str]]] = list,
    ) -> None:
        """`devices`: those that can be used; `gpus`: as `Devices.gpus`."""
        super().__init__(name="supervisor", daemon=True)
        self._settings, self._relay, self._devices, self._gpus = settings, relay, devices, gpus
        self.between = IdleMeasurements(calibration, relay.tell)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._server = Forking(lambda event: self._inbox.put(lambda: self._on_event(event)))
        self._live: dict[int, Attempt] = {}
        self.roll = LiveAttempts()
        self._ends = Ends(settings, relay, self.roll)
        self.on_running: Callable[[], None] = lambda: None
        self._leaving, self._suspensions = False, SuspensionDetector()
        self.idle = threading.Event()
        """Set once, after `leave`, when no attempt is alive any more."""
        settings.attempts.mkdir(parents=True, exist_ok=True)
        self._left_over = unsettled(settings.attempts)  # before any task can claim a new one

    # From other threads

    def accept(self, raw: Any) -> bool:
        """Takes a StartMessage. False if it is ignored: the attempt is known, or has no id."""
        taken = take(raw, self._settings, self._devices())
        if taken is None:
            return False
        folder, what = taken
        if isinstance(what, RunCommand):
            self._inbox.put(lambda: self._accepted(folder, what))
        else:
            self._inbox.put(lambda: self._ends.end_unstarted(folder, what))
        return True

    def control(self, entry: ControlEntry) -> None:
        self._inbox.put(lambda: self._control(entry))

    def leave(self) -> None:
        """Stops all attempts as interrupted, including those that arrive later. Safe in a signal handler."""
        self._inbox.put(self._leave)

    def close(self) -> None:
        """Ends the fork server; to be called when `idle` is set."""
        self._server.close()

    # The thread

    def run(self) -> None:
        recover(self._left_over, self._relay, self.roll)
        while True:
            for step in (self._next_action, self._tick):
                try:
                    step()
                except Exception:
                    log.exception("the supervisor goes on after a fault of its own")

    def _next_action(self) -> None:
        try:
            action = self._inbox.get(timeout=TICK_S)
        except queue.Empty:
            return
        action()

    def _tick(self) -> None:
        """Does what is due by the clock."""
        watched = self._suspensions.watched()
        if not self._leaving:
            self._server.keep_up()
        self._measure()
        for attempt in list(self._live.values()):
            if attempt.launched is None:
                self._succeed(attempt)
                self._launch_if_ready(attempt)
            elif attempt.kill_at is None:
                self._watch_progress(attempt, watched)
            elif time.monotonic() >= attempt.kill_at:
                log.warning("attempt %d: the fork server did not end it in time", attempt.number)
                self._conclude(attempt)
        if self._leaving and not self._live:
            self.between.stop()
            self.idle.set()

    # Accepting

    def _accepted(self, folder: Folder, command: RunCommand) -> None:
        attempt = Attempt(folder, Meta(message=command.message, ranks=command.ranks), command)
        folder.try_save(attempt.meta)
        self._live[attempt.number] = attempt
        self.between.make_way()
        self.roll.add(folder, command.ranks)
        self._relay.tell("attempt", AttemptBody(attempt=attempt.number, state="starting"))
        if self._leaving:
            self._stop(attempt, "interrupted", ending.INTERRUPTED)
            return
        earlier = [other for other in self._live.values() if attempt.outdates(other)]
        attempt.after = frozenset(other.number for other in earlier)
        for other in earlier:  # the worker was silent, and the order to end it may come after this one
            self._stop(other, "ended", ending.OUTDATED)
        if attempt.after:
            self._succeed(attempt)
        elif preparation.is_due(self._settings, command):
            self._prepare(attempt)
        self._launch_if_ready(attempt)

    def _succeed(self, attempt: Attempt) -> None:
        """Prepares an attempt once those that it outdates are gone."""
        if attempt.after and attempt.after.isdisjoint(self._live):
            attempt.after = frozenset()
            self._prepare(attempt)

    def _prepare(self, attempt: Attempt) -> None:
        attempt.preparing = True
        preparation.prepare_aside(self._settings, attempt.command, lambda found: self._prepared(attempt, found))

    def _prepared(self, attempt: Attempt, found: RunCommand | Refused) -> None:
        """From the thread that prepared it: the command as it can be carried out, or why it cannot."""
        if isinstance(found, Refused):
            self._inbox.put(lambda: self._stop(attempt, "refused", ending.refused(str(found))))
        else:
            self._inbox.put(lambda: attempt.prepared(found))

    def _launch_if_ready(self, attempt: Attempt) -> None:
        if attempt.launched is not None or attempt.number not in self._live:
            return
        if not attempt.ready() or not self._server.up or self.between.running or self._holds_devices_of(attempt):
            return
        self._relay.follow(attempt.folder, attempt.command.ranks)
        attempt.launched = time.monotonic()
        if not self._server.start(attempt.start_command(self._settings, self._gpus())):
            attempt.launched = None  # the event `lost` will follow; the next server gets the command

    def _holds_devices_of(self, attempt: Attempt) -> bool:
        """Whether ranks of another attempt are on one of its devices: the controller gives devices away as soon as an
        attempt is over for it, while its ranks here may still have to be stopped."""
        return any(other.launched is not None and other.uses(attempt) for other in self._live.values())

    # The fork server

    def _on_event(self, event: Event) -> None:
        kind = event["event"]
        if kind == "ready":
            self._server.ready = True
        elif kind == "lost":
            self._server_lost(event.get("code"))
        elif attempt := self._live.get(event["attempt"]):
            self._on_attempt_event(attempt, event)

    def _on_attempt_event(self, attempt: Attempt, event: Event) -> None:
        kind = event["event"]
        if kind == "started":
            attempt.record(event["rank"], (event["pid"], event["start_ticks"]))
            if attempt.started:
                self._relay.tell("attempt", attempt.running())
                self.on_running()
        elif kind == "store" and not attempt.command.alone:
            store = {"attempt": attempt.number, "host": event["host"], "port": event["port"]}
            self._relay.tell("store", store)
        elif kind == "refused":
            attempt.refusal = event["message"]
        elif kind == "exit":
            attempt.exits.append(Exit(event["rank"], event["code"], time.monotonic()))
        elif kind == "gone":
            self._conclude(attempt)

    def _server_lost(self, code: int | None) -> None:
        """The server's ranks died with it. Attempts that were launched fail; the others wait for the next server."""
        if not self._leaving:
            log.error("the fork server has ended (%s)", code)
        self._server.lost()
        for attempt in list(self._live.values()):
            if attempt.launched is not None:
                lost = ending.of_server_loss(attempt.folder.path, attempt.command.ranks, code)
                attempt.ended_by = attempt.ended_by or lost
                self._conclude(attempt)

    def _measure(self) -> None:
        """Measures while nothing else uses the devices, and the fork server has finished loading the engine."""
        if self.between.ended():
            for attempt in list(self._live.values()):
                self._launch_if_ready(attempt)
        if self._server.ready and not self._live and not self._leaving:
            self.between.begin()

    # Stopping

    def _control(self, entry: ControlEntry) -> None:
        number, kind = int(entry["attempt"]), entry["kind"]
        attempt = self._live.get(number)
        if kind == "profile":
            self.between.ask(number, entry["spec"])
        elif kind == "cancel_profile":
            self.between.cancel(number)
        elif kind == "drop":
            live, whose = self._live.values(), entry.get("identity")
            deletions.drop_checkpoints(self._settings, self._relay, live, number, whose)
        elif kind == "drop_text":
            deletions.drop_text(self._settings, self._live.values(), entry["sha256"])
        elif kind in _STOPS:
            self._stop_or_forestall(number, *_STOPS[kind])
        elif kind == "rewind":
            self._relay.rewind(number, entry["channel"], int(entry["rank"]), int(entry["offset"]))
        elif kind == "settled" and attempt is None:
            self._ends.settle(number)
        elif kind == "trace" and attempt is not None:
            ask(attempt.folder.path, TraceRequest(int(entry["step"]), read_how(entry["how"])))
        elif kind == "up" and attempt is not None and attempt.started:
            self._relay.tell("attempt", attempt.running())
        elif kind == "stuck" and attempt is not None and attempt.kill_at is None:
            self._end_standstill(attempt)
        elif kind == "store" and attempt is not None:
            attempt.store = Store(host=entry["host"], port=int(entry["port"]))

    def _stop_or_forestall(self, number: int, reason: Stop, how: Ending) -> None:
        """Stops the attempt; one that never arrived is claimed, so that its late message starts nothing."""
        if attempt := self._live.get(number):
            if reason == "ended" and attempt.failed_by_itself():
                return  # the fork server ends its other ranks, and the others ended because of this one: it tells why
            self._stop(attempt, reason, how)
        elif folder := Folder.claim(self._settings.attempts, number):
            if reason == "fenced":
                folder.settle()
            else:
                self._ends.end_unstarted(folder, how)
        elif reason == "fenced":
            self._ends.settle(number)

    def _stop(self, attempt: Attempt, reason: Stop, how: Ending, grace: float = STOP_GRACE_S) -> None:
        """Stops the attempt. The first reason stays, but a fence overrides it: then nothing more is reported."""
        if attempt.number not in self._live or (attempt.meta.stop and reason != "fenced"):
            return
        attempt.mark_stop(reason, how, time.monotonic() + grace + LATE_S)
        if attempt.launched is None or not self._server.stop(attempt.number, grace):
            self._conclude(attempt)

    def _watch_progress(self, attempt: Attempt, watched: float) -> None:
        """Ends an attempt of which no rank moves. Ranks that wait for another host do not move either: of an attempt
        over several hosts the controller learns it from all of them."""
        still = attempt.started and min(watched, attempt.still_for()) > self._settings.no_progress_s
        if not attempt.command.alone:
            self.roll.stands(attempt.number, still)
        elif still:
            self._end_standstill(attempt)

    def _end_standstill(self, attempt: Attempt) -> None:
        limit = self._settings.no_progress_s
        self._server.dump(attempt.number)  # first, as the report may take seconds
        how = no_progress.report(attempt.folder.path, attempt.command.ranks, limit, attempt.command.spec)
        self._stop(attempt, "no_progress", how)

    def _leave(self) -> None:
        self._leaving = True
        for attempt in list(self._live.values()):
            self._stop(attempt, "interrupted", ending.INTERRUPTED, self._settings.save_s)

    def _conclude(self, attempt: Attempt) -> None:
        none_left = end_processes(list(attempt.meta.processes.values()))
        del self._live[attempt.number]
        self._ends.conclude(attempt, none_left)
