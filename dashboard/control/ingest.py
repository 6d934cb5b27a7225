"""Applies the stream entries of one transaction, in order.

`apply` writes only to the database. What has to happen outside of it (messages to workers, announcements, clocks,
summaries) is collected for the controller, which does it after the commit.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from dashboard.control import multi_host, standstill
from dashboard.control.arrival import is_complete, rewind, sizes_of
from dashboard.control.batches import Batch
from dashboard.control.dispatch import ControlMessage
from dashboard.control.frames import decode_batch
from dashboard.control.heartbeats import Heard, answers, keep_beat, unsaid
from dashboard.control.store import FileKey, Store
from dashboard.control.summary import outdate
from dashboard.control.wire import Entry
from dashboard.fleet.models import Leftover
from dashboard.json_values import clean, storable_text
from dashboard.ledger import services as ledger
from dashboard.runs import states
from dashboard.runs.models import Attempt, OpenWaits, State
from dashboard.runs.tracing import host_clocks
from workers.contract import LEASE_S, ControlEntry

log = logging.getLogger(__name__)


@dataclass
class Ingest:
    """Applies entries inside the caller's transaction; discarded together with it if it fails."""

    store: Store = field(default_factory=Store)
    attempts: dict[int, Attempt | None] = field(default_factory=dict)
    messages: list[ControlMessage] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
    topics: dict[tuple[int | None, int | None], set[str]] = field(default_factory=lambda: defaultdict(set))
    ended: set[int] = field(default_factory=set)
    """Runs whose summary is to be computed (again)."""
    touched: set[int] = field(default_factory=set)
    """Attempts that may have become settled."""
    news: bool = False
    """Whether a sweep may find something new; stays False after data, or a heartbeat that changes nothing for
    placement."""

    def apply(self, entry: Entry) -> None:
        """Applies one entry. Raises KeyError, TypeError or ValueError if it does not follow the contract."""
        handler = {
            "heartbeat": self._heartbeat,
            "attempt": self._attempt,
            "batch": self._batch,
            "store": self._store_address,
            "profile": self._profile,
            "dropped": self._dropped,
        }.get(entry.kind)
        if handler is None:
            raise ValueError(f"unknown kind {entry.kind!r}")
        handler(entry)

    def finish(self) -> None:
        """Stores what was gathered, then settles the attempts whose files have arrived whole."""
        self.store.flush(self.attempts)
        for pk in self.touched:
            attempt = self.attempts[pk]
            if attempt is not None and attempt.over and is_complete(attempt):
                Attempt.objects.filter(pk=pk).update(settled=True)
                OpenWaits.objects.filter(attempt=pk).delete()  # what they wait for will not come any more
                self.messages += [(node["worker"], {"kind": "settled", "attempt": pk}) for node in attempt.devices]
                outdate(attempt.run_id)
                self.ended.add(attempt.run_id)

    def load(self, pk: int) -> Attempt | None:
        """The attempt with its run, read once; None if it was deleted."""
        if pk not in self.attempts:
            self.attempts[pk] = Attempt.objects.select_related("run").filter(pk=pk).first()
        return self.attempts[pk]

    def _placed(self, entry: Entry, rank: int | None = None) -> Attempt | None:
        """The entry's attempt, if it (and the rank) was placed on the entry's worker; else None, and the worker is
        fenced."""
        pk = int(entry.body["attempt"])
        attempt = self.load(pk)
        shares = [node for node in attempt.devices if node["worker"] == entry.worker] if attempt else []
        if rank is not None:
            shares = [node for node in shares if 0 <= rank - node["first_rank"] < len(node["devices"])]
        if shares:
            return attempt
        log.warning("dropped %s of attempt %s: it was not placed on %s", entry.kind, pk, entry.worker)
        self.messages.append((entry.worker, {"kind": "fence", "attempt": pk}))
        if attempt is None:
            # Nobody will ever want its data: the worker may delete it.
            self.messages.append((entry.worker, {"kind": "settled", "attempt": pk}))
        return None

    def _announce(self, attempt: Attempt, *what: str) -> None:
        self.topics[attempt.run_id, attempt.run.study_id].update(what)

    # Heartbeats

    def _heartbeat(self, entry: Entry) -> None:
        body = clean(entry.body, storable_text)
        worker, new = keep_beat(entry, body)
        self.news |= new
        self.topics[None, None].add("fleet")
        self.messages += answers(worker, body)
        live = {int(pk): progress for pk, progress in body["attempts"].items()}
        for pk, progress in live.items():
            self._progress(entry, pk, progress)
        still = frozenset(map(int, body.get("still") or ()))
        self.heard.append(Heard(entry.worker, set(live), entry.at, still))

    def _progress(self, entry: Entry, pk: int, progress: dict[str, Any]) -> None:
        """Stops an attempt that should not be alive there; else notes where its ranks are, and repeats messages that
        still hold."""
        attempt, worker = self.load(pk), entry.worker
        if attempt is None or all(node["worker"] != worker for node in attempt.devices):
            self.messages.append((worker, {"kind": "fence", "attempt": pk}))
            return
        if attempt.over:
            # No fence: what it recorded while nobody heard of it is sent all the same. The run's next attempt may begin
            # at a checkpoint that was saved in that time, and repeats none of the steps before it.
            if not _has_ended(attempt, worker):
                self.messages.append((worker, {"kind": "end", "attempt": pk}))
            return
        attempt.progress = {**attempt.progress, **progress}
        attempt.lease_until = timezone.now() + timedelta(seconds=LEASE_S)
        attempt.save(update_fields=("progress", "lease_until"))
        host_clocks.note(attempt, worker, entry.body.get("time"), entry.at)
        self._announce(attempt, "progress")
        if multi_host.waits_for_store(attempt.report, attempt.devices, worker):
            self.messages.append((worker, store_at(attempt)))
        if multi_host.failing(attempt.report):
            self.messages.append((worker, {"kind": "end", "attempt": pk}))
        if progress and unsaid(attempt, worker):
            self.messages.append((worker, {"kind": "up", "attempt": pk}))
        if attempt.run.cancel_requested_at:
            self.messages.append((worker, {"kind": "cancel", "attempt": pk}))

    def _profile(self, entry: Entry) -> None:
        self.news = True
        ledger.answer_profile(entry.worker, clean(entry.body, storable_text))

    def _dropped(self, entry: Entry) -> None:
        Leftover.objects.filter(worker=entry.worker, run=int(entry.body["run"])).delete()

    # States and ends of attempts

    def _attempt(self, entry: Entry) -> None:
        attempt = self._placed(entry)
        if attempt is None:
            return
        self.news = True
        self.store.flush(self.attempts)
        body = clean(entry.body, storable_text)
        try:
            if body["state"] == "running":
                self._up(attempt, entry.worker, body.get("begins") or {})
            elif body["state"] == "ended":
                self._end(attempt, entry.worker, body)
        except states.IllegalTransition as error:
            log.info("%s says %s of attempt %s: %s", entry.worker, body["state"], attempt.pk, error)
        self.touched.add(attempt.pk)

    def _up(self, attempt: Attempt, worker: str, begins: dict[str, Any]) -> None:
        """Notes that all ranks of one host have processes; the run is running once that is so on all its hosts."""
        report, everywhere = multi_host.is_up(attempt.report, attempt.devices, worker)
        if worker == attempt.devices[0]["worker"]:
            attempt.begins = begins
        if everywhere:
            attempt.run = states.running(attempt, attempt.begins)
        attempt.report = report
        attempt.save(update_fields=("report", "begins"))

    def _end(self, attempt: Attempt, worker: str, body: dict[str, Any]) -> None:
        """Ends the attempt once every host has reported its end; one that is already over keeps its outcome but learns
        its sizes.

        If the ranks of one host have failed, those on the other hosts are ordered to end.
        """
        report = multi_host.ended(attempt.report, attempt.devices, worker, body)
        waits_for = multi_host.silent(report, attempt.devices)
        if attempt.over:
            report = {**report, **attempt.report, **{name: report[name] for name in multi_host.KEPT if name in report}}
        if attempt.over or waits_for:
            attempt.report = report
            attempt.save(update_fields=("report",))
            if multi_host.failing(report) and not attempt.over:
                self.messages += [(name, {"kind": "end", "attempt": attempt.pk}) for name in waits_for]
            return
        whole = standstill.explained(attempt, multi_host.verdict(report, attempt.devices))
        run = states.finish(attempt, whole["outcome"], whole.get("cause", ""), whole.get("detail", ""), whole)
        attempt.refresh_from_db()
        attempt.run = run
        if run.state != State.QUEUED:
            self.ended.add(run.pk)

    # Data

    def _batch(self, entry: Entry) -> None:
        """Stores bytes [start, end) of a file: ignores what is below the cursor, asks for the file again if there is a
        gap."""
        batch = Batch.of(entry)
        attempt = self._placed(entry, batch.rank)
        if attempt is None:
            return
        key = batch.key
        offset = self.store.offset(key)
        self.touched.add(attempt.pk)
        if batch.start > offset:
            self.messages.append((entry.worker, rewind(key, offset)))
        elif batch.end > offset:
            self._take(attempt, key, entry, offset)

    def _take(self, attempt: Attempt, key: FileKey, entry: Entry, offset: int) -> None:
        """Stores what the entry has from `offset` on."""
        _, rank, channel = key
        start, end = int(entry.body["start"]), int(entry.body["end"])
        if channel == "log":
            self.store.add_log(attempt.pk, rank, offset, entry.data[offset - start :])
            topics = {"log"}
        else:
            try:
                records = decode_batch(entry.data, start, offset)
            except ValueError as error:
                # Asking again would bring the same bytes: continue after them, and record what is missing.
                log.error("attempt %s rank %s: bytes %s to %s are unreadable: %s", attempt.pk, rank, start, end, error)
                text = f"Bytes {start} to {end} of rank {rank}'s records could not be read: {error}"
                states.record(attempt.run, "unreadable", text, attempt)
                self.store.advance(key, end)
                return
            topics = self.store.add_records(attempt, rank, records)
            if records.dropped:
                record_omitted(attempt, entry.worker)
            # A killed rank leaves an incomplete frame at the very end of its file: nothing will complete it.
            end = end if end == sizes_of(attempt).get(f"events:{rank}") else records.end
        self.store.advance(key, end)
        self._announce(attempt, *topics)

    def _store_address(self, entry: Entry) -> None:
        """Keeps the address of the first node's rendezvous store, and passes it on to the other nodes.

        A node that has not taken the start message yet ignores it, so heartbeats are answered with it as well.
        """
        attempt = self._placed(entry)
        if attempt is None or attempt.over:
            return
        address = {"host": str(entry.body["host"]), "port": int(entry.body["port"])}
        attempt.report = {**attempt.report, "store": address}
        attempt.save(update_fields=("report",))
        self.messages += [(node["worker"], store_at(attempt)) for node in attempt.devices[1:]]


@transaction.atomic
def applied(entries: Iterable[Entry]) -> Ingest:
    """Applies the entries in one transaction. Raises as `Ingest.apply`, and what the database raises."""
    ingest = Ingest()
    for entry in entries:
        ingest.apply(entry)
    ingest.finish()
    return ingest


def _has_ended(attempt: Attempt, worker: str) -> bool:
    """Whether the worker has reported the end of its ranks."""
    return worker not in multi_host.silent(attempt.report, attempt.devices)


def record_omitted(attempt: Attempt, worker: str) -> None:
    """Says among the attempt's events, once for each worker, that it has dropped spans or `waits` records."""
    rest = (
        "the oldest records of steps (spans, what steps consisted of) before the yard had stored them: "
        "TRAINYARD_SPOOL_BYTES was reached."
    )
    states.record_once(attempt, "omitted", f"Worker {worker} dropped ", rest)


def store_at(attempt: Attempt) -> ControlEntry:
    """The control entry that tells a node where the attempt's rendezvous store listens."""
    address = attempt.report["store"]
    return {"kind": "store", "attempt": attempt.pk, "host": address["host"], "port": address["port"]}
