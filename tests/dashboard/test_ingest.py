"""From stream entries to database rows: nothing lost, nothing duplicated, nothing accepted from an unrelated worker."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from django.conf import settings

from dashboard.control.controller import Controller
from dashboard.fleet.models import Worker
from dashboard.runs import selectors, states
from dashboard.runs.models import Attempt, Cursor, LogChunk, RankInfo, Run, SeriesChunk, SpanChunk, State
from parallel_core.observe.record_files import encode
from parallel_core.observe.records import MEMORY, POINT, SPAN
from tests.dashboard.fake_worker import Peer, points_frame, spans_frame
from tests.dashboard.ingested import on_both_devices, steps
from workers.contract import EVENTS

pytestmark = pytest.mark.django_db


@pytest.fixture
def attempt(alice: Any) -> Attempt:
    """An attempt that runs on both devices of yard-a."""
    return on_both_devices(alice)


def test_points_arrive_in_chunks_of_500(peer: Peer, controller: Controller, attempt: Attempt) -> None:
    for first in range(0, 1200, 7):
        peer.send(attempt.pk, points_frame(first, min(7, 1200 - first)))
        if first % 5 == 0:
            controller.turn()
    controller.turn()
    assert steps(attempt) == list(range(1200))
    chunks = SeriesChunk.objects.order_by("first_step")
    assert [(chunk.count, chunk.closed) for chunk in chunks] == [(500, True), (500, True), (200, False)]


def test_newest_values_stand_in_the_runs_row(peer: Peer, controller: Controller, attempt: Attempt) -> None:
    peer.send(attempt.pk, points_frame(0, 6) + points_frame(0, 6, "step_time") + points_frame(0, 6, "tokens_per_s"))
    controller.turn()
    run = Run.objects.get(pk=attempt.run_id)
    # Steps 3, 4 and 5 are timed, after three warm-up steps.
    assert (run.step, run.loss, run.step_time, run.tokens_per_s) == (5, 5.5, 4.5, 5.5)


def test_not_a_number_is_stored_as_a_point_and_not_as_the_newest_value(
    peer: Peer, controller: Controller, attempt: Attempt
) -> None:
    rows = np.frombuffer(points_frame(0, 1)[-20:], "<i4,<f8,<f8").copy()
    rows["f2"] = np.nan
    peer.send(attempt.pk, encode({"kind": "points", "rank": 0, "t": 1.0, "series": [["loss", 1]]}, rows.tobytes()))
    controller.turn()
    assert np.isnan(selectors.series(attempt.run, "loss").value).tolist() == [True]
    assert Run.objects.get(pk=attempt.run_id).loss is None


def test_a_batch_that_comes_twice_is_stored_once(peer: Peer, controller: Controller, attempt: Attempt) -> None:
    span = peer.write(attempt.pk, points_frame(0, 10))
    for _ in range(2):
        peer.publish(attempt.pk, *span)
        controller.turn()
    peer.publish(attempt.pk, *span)
    peer.send(attempt.pk, points_frame(10, 1))
    controller.turn()
    assert steps(attempt) == list(range(11))


def test_a_batch_that_overlaps_the_cursor_adds_its_new_part(
    peer: Peer, controller: Controller, attempt: Attempt
) -> None:
    peer.send(attempt.pk, points_frame(0, 4))
    controller.turn()
    _, end = peer.write(attempt.pk, points_frame(4, 4))
    peer.publish(attempt.pk, 0, end)
    controller.turn()
    assert steps(attempt) == list(range(8))


def test_a_gap_is_answered_by_a_rewind(peer: Peer, controller: Controller, attempt: Attempt) -> None:
    peer.send(attempt.pk, points_frame(0, 4))
    lost = peer.write(attempt.pk, points_frame(4, 4))
    peer.send(attempt.pk, points_frame(8, 4))
    controller.turn()
    assert steps(attempt) == list(range(4))
    assert peer.orders() == [
        {"kind": "rewind", "attempt": attempt.pk, "rank": 0, "channel": "events", "offset": lost[0]}
    ]
    peer.publish(attempt.pk, lost[0], len(peer.files[attempt.pk, 0, "events"]))
    controller.turn()
    assert steps(attempt) == list(range(12))


def test_a_controller_killed_between_commit_and_acknowledgement(
    peer: Peer, controller: Controller, attempt: Attempt, redis_url: str
) -> None:
    for first in range(0, 40, 4):
        peer.send(attempt.pk, points_frame(first, 4))
    peer.running(attempt.pk)
    read = controller._reader.read()
    controller._store(read.entries)
    assert steps(attempt) == list(range(40))
    assert peer.redis.xpending(EVENTS, "controller")["pending"] == 11

    peer.send(attempt.pk, points_frame(40, 1))
    successor = Controller()
    successor.turn()
    successor.turn()
    assert steps(attempt) == list(range(41))
    assert peer.redis.xpending(EVENTS, "controller")["pending"] == 0
    assert peer.redis.xlen(EVENTS) == 0


def test_a_controller_killed_before_the_commit(peer: Peer, controller: Controller, attempt: Attempt) -> None:
    peer.send(attempt.pk, points_frame(0, 5))
    controller._reader.read()
    peer.send(attempt.pk, points_frame(5, 5))
    successor = Controller()
    successor.turn()
    successor.turn()
    assert steps(attempt) == list(range(10))


def test_a_rotten_entry_is_dropped_alone(peer: Peer, controller: Controller, attempt: Attempt) -> None:
    peer.send(attempt.pk, points_frame(0, 2))
    peer.say("heartbeat", {"attempts": 3})
    peer.say("nonsense", {})
    peer.redis.xadd(EVENTS, {"body": "{"})
    peer.send(attempt.pk, points_frame(2, 2))
    controller.turn()
    assert steps(attempt) == list(range(4))
    assert peer.redis.xlen(EVENTS) == 0


@pytest.mark.parametrize("levels", [100_000, 600])
def test_an_entry_nested_too_deeply_is_dropped_alone(
    levels: int, peer: Peer, controller: Controller, attempt: Attempt
) -> None:
    """Too deeply to be read, or to be handled or even logged once it was."""
    about: dict[Any, Any] = {"worker": "yard-a", "boot": "boot-1", "kind": "heartbeat"}
    peer.redis.xadd(EVENTS, {**about, "body": '{"attempts": ' + "[" * levels + "]" * levels + "}"})
    peer.send(attempt.pk, points_frame(0, 2))
    read = controller._reader.read()
    assert len(read.ids) == 2 and [entry.kind for entry in read.entries] == ["batch"]
    controller._reader.start_over()
    controller.turn()
    assert steps(attempt) == [0, 1] and peer.redis.xlen(EVENTS) == 0


def test_an_end_on_its_way_with_an_older_heartbeat_costs_no_file(
    redis_url: str, peer: Peer, controller: Controller, attempt: Attempt
) -> None:
    """A fence would delete what has not arrived yet, and what has ended needs no order to end."""
    late = peer.write(attempt.pk, points_frame(0, 5))
    peer.ended(attempt.pk)
    peer.beat(attempt.pk)  # built before the end was published
    controller.turn()
    assert not {"fence", "end"} & {order["kind"] for order in peer.orders()}
    peer.publish(attempt.pk, *late)
    controller.turn()
    assert Attempt.objects.get().settled
    Peer(redis_url, "yard-b").beat(attempt.pk)
    controller.turn()
    assert Peer(redis_url, "yard-b").orders() == [{"kind": "fence", "attempt": attempt.pk}], "it had no rank of it"


def test_unreadable_bytes_are_said_and_passed(peer: Peer, controller: Controller, attempt: Attempt) -> None:
    peer.send(attempt.pk, b"these are not frames")
    peer.send(attempt.pk, points_frame(0, 3))
    controller.turn()
    assert steps(attempt) == list(range(3))
    assert Run.objects.get(pk=attempt.run_id).events.filter(kind="unreadable").count() == 1


SPOILT: list[tuple[bytes, dict[str, Any]]] = [
    (b"", {"kind": "omitted", "end": None}),
    (b"", {"kind": "omitted", "end": 1e400}),
    (b"", {"kind": "omitted", "end": 0}),
    (b"", {"kind": "points", "series": [["loss", 1e400]]}),
    (b"", {"kind": "points", "series": 7}),
    (bytes(SPAN.itemsize), {"kind": "spans", "t": 1.0, "step": 1 << 40, "count": 1, "total": 1}),
    (bytes(SPAN.itemsize), {"kind": "spans", "t": 1.0, "step": 1, "count": 1, "total": 1 << 70}),
    (bytes(SPAN.itemsize), {"kind": "spans", "t": 10**400, "step": 1, "count": 1, "total": 1}),
    (b"", {"kind": "spans", "t": 1.0, "step": 1, "count": None, "total": 1}),
    (b"", {"kind": "waits", "steps": 1e400}),
    (b"", {"kind": "waits", "steps": [1]}),
    (b"", {"kind": "memory", "step": 1, "peak_total": 1 << 63}),
    (b"", {"kind": "memory", "step": 1, "peak_total": 1, "rss_delta": "x"}),
    (b"", {"kind": "checkpoint", "step": 1, "bytes": 1, "seconds": 10**400, "kept": []}),
    (b"", {"kind": "checkpoint", "step": 1, "bytes": 1, "seconds": 1.0, "kept": [1 << 70]}),
    (b"", {"kind": "checkpoint", "step": 1, "bytes": 1, "seconds": 1.0, "kept": [1], "held_out": "low"}),
    (b"", {"kind": "profile", "step": 1, "part": 0, "of": 1 << 70, "size": 1}),
    (b"", {"kind": "generated", "first": 0, "tokens": [[1]], "prefill": 10**400, "seconds": [], "kv_bytes": 1}),
]


@pytest.mark.parametrize(("blob", "header"), SPOILT, ids=[f"{own['kind']}-{at}" for at, (_, own) in enumerate(SPOILT)])
def test_a_record_with_a_spoilt_header_is_passed_as_well(
    peer: Peer, controller: Controller, attempt: Attempt, blob: bytes, header: dict[str, Any]
) -> None:
    """Else the file would be asked for again, and fail again, for ever."""
    peer.send(attempt.pk, points_frame(0, 1))
    peer.send(attempt.pk, encode({"rank": 0, **header}, blob))
    peer.send(attempt.pk, points_frame(1, 2))
    controller.turn()
    assert steps(attempt) == list(range(3))
    unreadable = 0 if header["kind"] == "waits" else 1  # without `waits` only the shares of some steps are missing
    assert Run.objects.get(pk=attempt.run_id).events.filter(kind="unreadable").count() == unreadable


def test_data_of_a_worker_it_was_not_placed_on_is_dropped(
    peer: Peer, controller: Controller, attempt: Attempt, redis_url: str
) -> None:
    stranger = Peer(redis_url, name="yard-b")
    stranger.send(attempt.pk, points_frame(0, 3))
    stranger.ended(attempt.pk, "failed")
    controller.turn()
    assert steps(attempt) == []
    assert Run.objects.get(pk=attempt.run_id).state == State.RUNNING
    assert {"kind": "fence", "attempt": attempt.pk} in stranger.orders()


def test_data_of_a_rank_that_is_not_there_is_dropped(peer: Peer, controller: Controller, attempt: Attempt) -> None:
    peer.send(attempt.pk, points_frame(0, 3), rank=2)
    controller.turn()
    assert not Cursor.objects.exists()


def test_late_data_of_a_past_attempt_is_kept_and_moves_nothing(
    peer: Peer, controller: Controller, attempt: Attempt
) -> None:
    states.finish(attempt, "interrupted")
    run = Run.objects.get(pk=attempt.run_id)
    second = states.place(run, attempt.devices, Worker.objects.get())
    peer.send(second.pk, points_frame(2, 2))
    peer.send(attempt.pk, points_frame(0, 9))
    peer.running(attempt.pk)
    peer.ended(attempt.pk, "succeeded")
    controller.turn()
    run.refresh_from_db()
    assert (run.state, run.step) == (State.STARTING, 3)
    # From its first step on, the later attempt's points replace the earlier ones.
    assert steps(attempt) == [0, 1, 2, 3]
    assert sum(SeriesChunk.objects.filter(attempt=attempt).values_list("count", flat=True)) == 9


def test_logs_are_joined_and_cut_by_bytes(peer: Peer, controller: Controller, attempt: Attempt) -> None:
    for word in ("one ", "zwei ", "träs"):
        peer.send(attempt.pk, word.encode(), channel="log")
        controller.turn()
    assert LogChunk.objects.count() == 1
    part = selectors.log(attempt.run, 0)
    assert (part.text, part.total, selectors.log_ranks(attempt.run)) == ("one zwei träs", 14, [0])
    # Byte 12 is inside a two-byte letter, so the letter comes with the next part.
    first = selectors.log(attempt.run, 0, limit=12)
    assert (first.text, first.end) == ("one zwei tr", 11)
    assert selectors.log(attempt.run, 0, start=first.end).text == "äs"
    assert selectors.log(attempt.run, 0, start=-1).text == "s"


def test_spans_memory_and_what_ranks_say(peer: Peer, controller: Controller, attempt: Attempt) -> None:
    peak = {"params": 10, "activations": 5}
    header = {"kind": "memory", "rank": 0, "t": 1.0, "step": 1, "peak": peak, "peak_total": 15, "final": {}}
    peer.send(attempt.pk, spans_frame(10, 3, total=5) + encode(header, np.zeros(2, MEMORY).tobytes()))
    peer.send(attempt.pk, encode({"kind": "hello", "rank": 0, "t": 1.0, "pid": 5, "params": float("nan")}))
    peer.send(attempt.pk, encode({"kind": "phase", "rank": 0, "t": 1.0, "phase": "timed"}))
    peer.send(attempt.pk, spans_frame(10, 4, rank=1), rank=1)
    peer.send(attempt.pk, spans_frame(20, 4, rank=1), rank=1)
    controller.turn()
    run = Run.objects.get(pk=attempt.run_id)
    assert {rank: len(rows) for rank, rows in selectors.spans(run).items()} == {0: 3, 1: 4}
    assert selectors.traced_steps(run) == [10, 20]
    assert selectors.span_counts(run, 10) == (7, 9)
    assert selectors.memory(run)[0].peak == peak
    assert run.memory_peak == 15
    info = RankInfo.objects.get()
    assert (info.phase, info.hello["params"]) == ("timed", None)


def test_a_step_traced_twice_is_kept_once(peer: Peer, controller: Controller, attempt: Attempt) -> None:
    peer.send(attempt.pk, spans_frame(10, 3))
    peer.send(attempt.pk, spans_frame(10, 3))
    controller.turn()
    assert SpanChunk.objects.count() == 1


def test_a_fault_is_kept_beside_the_report(peer: Peer, controller: Controller, attempt: Attempt) -> None:
    fault = {"kind": "fault", "rank": 1, "t": 1.0, "error": "ValueError", "message": "no", "cause": "user_code"}
    peer.send(attempt.pk, encode(fault), rank=1)
    controller.turn()
    peer.ended(attempt.pk, "failed", cause="user_code", detail="Rank 1 raised ValueError.", exits={"1": 1})
    controller.turn()
    report = Attempt.objects.get().report
    assert report["faults"]["1"]["message"] == "no"
    assert report["exits"] == {"1": 1}
    assert Run.objects.get().state == State.FAILED


def test_settled_when_all_that_was_written_arrived(peer: Peer, controller: Controller, attempt: Attempt) -> None:
    peer.send(attempt.pk, points_frame(0, 5))
    missing = peer.write(attempt.pk, b"goodbye", rank=1, channel="log")
    peer.ended(attempt.pk)
    controller.turn()
    assert {"kind": "settled", "attempt": attempt.pk} not in peer.orders()
    peer.publish(attempt.pk, *missing, rank=1, channel="log")
    controller.turn()
    assert {"kind": "settled", "attempt": attempt.pk} in peer.orders()
    peer.ended(attempt.pk)  # a worker that lost the answer asks again
    controller.turn()
    assert {"kind": "settled", "attempt": attempt.pk} in peer.orders()


def test_a_torn_frame_at_the_very_end_does_not_hold_up_settling(
    peer: Peer, controller: Controller, attempt: Attempt
) -> None:
    peer.send(attempt.pk, points_frame(0, 5) + points_frame(5, 5)[:30])
    peer.ended(attempt.pk, "failed", cause="killed_by_signal", signal=9)
    controller.turn()
    assert not Attempt.objects.get().settled
    peer.beat()
    controller._last.clear()
    controller.turn()
    peer.obey()
    controller.turn()
    assert Attempt.objects.get().settled
    assert steps(attempt) == list(range(5))


def timed(first: int, count: int, begins: float, rank: int = 0) -> bytes:
    """Points of the loss, a second apart from `begins` on."""
    rows = np.frombuffer(points_frame(first, count)[-count * POINT.itemsize :], POINT).copy()
    rows["time"] = begins + np.arange(count)
    return encode({"kind": "points", "rank": rank, "t": 1.0, "series": [["loss", count]]}, rows.tobytes())


def test_points_are_on_one_clock_whatever_those_of_the_hosts_say(
    peer: Peer, controller: Controller, attempt: Attempt
) -> None:
    now, other = time.time(), Peer(settings.REDIS_URL, "yard-b")
    Worker.objects.create(name="yard-b", boot="boot-1")
    peer.beat(attempt.pk)
    peer.send(attempt.pk, timed(0, 5, now))
    controller.turn()
    Run.objects.filter(pk=attempt.run_id).update(retries_left=1)
    states.lose(attempt, "gone")
    nodes = [
        {"worker": "yard-a", "devices": [0], "first_rank": 0, "address": "host-a"},
        {"worker": "yard-b", "devices": [0], "first_rank": 1, "address": "host-b"},
    ]
    again = states.place(Run.objects.get(pk=attempt.run_id), nodes, Worker.objects.get(name="yard-a"))
    states.running(again)
    peer.beat(again.pk, time=time.time() + 3600)  # its clock was set meanwhile
    other.beat(again.pk, time=time.time() - 904)  # 900 s behind, and this one came 4 s late
    peer.send(again.pk, timed(3, 5, now + 3600 + 10))
    other.send(again.pk, timed(3, 5, now - 900 + 10, 1), rank=1)
    controller.turn()
    other.beat(again.pk, time=time.time() - 900)
    peer.beat(again.pk, time=time.time())  # and set back: its ranks do not look at it again
    controller.turn()
    run = Run.objects.get(pk=attempt.run_id)
    own, replaced = selectors.series_and_replaced(run, "loss")
    assert own.time - now == pytest.approx([0, 1, 2, 10, 11, 12, 13, 14], abs=0.5)
    assert replaced[0].time - now == pytest.approx([3, 4], abs=0.5)
    assert selectors.series(run, "loss", 1).time - now == pytest.approx([10, 11, 12, 13, 14], abs=0.5)
    assert run.clocks["1"]["yard-a"][-1] == 0.0, "within what a heartbeat tells, times are left as they are"
