"""Reading runs: filters, series and their thinning, what a queued run waits for, the fleet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard.control.summary import store_summary
from dashboard.fleet import selectors as fleet
from dashboard.fleet import worker_views
from dashboard.fleet.models import Worker
from dashboard.runs import cancelling, selectors, services, states
from dashboard.runs.curves import curves
from dashboard.runs.memory_limits import memory_limit
from dashboard.runs.models import Attempt, Cursor, LogChunk, MemoryRecord, Run, SeriesChunk, SpanChunk, State
from dashboard.runs.selectors import Filters
from dashboard.runs.waiting import queue
from dashboard.studies.selectors import overview
from parallel_core.analysis.downsample import Means, thin
from parallel_core.observe.records import POINT, SPAN
from tests.dashboard import factory
from tests.dashboard.fake_worker import points_frame, spec
from tests.dashboard.query_plans import in_words_of_sqlite, plans

pytestmark = pytest.mark.django_db


def submit(owner: Any, **more: Any) -> Run:
    return services.submit(owner=owner, spec=spec(dp=more.pop("dp", 1)), **more)


def worker(name: str = "yard-a", devices: int = 2, **more: Any) -> Worker:
    cores = [{"index": i, "kind": "cpu", "name": "core"} for i in range(devices)]
    return Worker.objects.create(name=name, devices=cores, heartbeat_at=timezone.now(), **more)


def place(run: Run, where: Worker, devices: list[int]) -> Attempt:
    nodes = [{"worker": where.name, "devices": devices, "first_rank": 0, "address": ""}]
    return states.place(run, nodes, where)


def add_points(attempt: Attempt, first: int, count: int, value: float = 0.0, name: str = "loss") -> None:
    rows = np.zeros(count, POINT)
    rows["step"], rows["value"] = np.arange(first, first + count), value
    last = first + count - 1
    about: dict[str, Any] = {"rank": 0, "name": name, "first_step": first, "last_step": last, "count": count}
    SeriesChunk.objects.create(attempt=attempt, data=rows.tobytes(), **about)


# Lists


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        (Filters(), {"alpha", "beta"}),
        (Filters(q="ALP"), {"alpha"}),
        (Filters(q="größe"), {"beta"}),
        (Filters(tag="größe"), {"beta"}),
        (Filters(tag="größ"), set()),
        (Filters(tag='quo"te'), {"alpha"}),
        (Filters(states=("cancelled",)), {"beta"}),
        (Filters(states=("cancelled", "queued")), {"alpha", "beta"}),
        (Filters(strategy="DP"), {"alpha"}),
        (Filters(owner="alice"), {"alpha", "beta"}),
        (Filters(owner="bob"), set()),
    ],
)
def test_filters(alice: Any, filters: Filters, names: set[str]) -> None:
    submit(alice, name="alpha", tags=['quo"te'], dp=2)
    cancelling.request_cancel(run=submit(alice, name="beta", tags=["größe"]), user=alice)
    assert {run.name for run in selectors.list_runs(filters)} == names


def test_sorting_puts_rows_without_a_value_last(alice: Any) -> None:
    a, b, c = (submit(alice, name=name) for name in "abc")
    Run.objects.filter(pk=a.pk).update(loss=2.0)
    Run.objects.filter(pk=c.pk).update(loss=1.0)
    order = lambda sort: [run.name for run in selectors.list_runs(Filters(sort=sort))]  # noqa: E731
    assert order("loss") == ["c", "a", "b"]
    assert order("-loss") == ["a", "c", "b"]
    assert order("nonsense") == ["a", "b", "c"]
    assert b.loss is None


def test_a_run_that_has_not_succeeded_is_neither_fastest_nor_smallest(alice: Any) -> None:
    for name, state, value in (("a", "succeeded", 2), ("b", "failed", 1), ("c", "running", 3), ("d", "queued", None)):
        values = {"step_time": value, "memory_peak": value, "tokens_per_s": value and 4 - value}
        Run.objects.filter(pk=submit(alice, name=name).pk).update(state=state, **values)
    order = lambda sort: [run.name for run in selectors.list_runs(Filters(sort=sort))]  # noqa: E731
    assert order("step_time") == order("memory") == order("-tokens_per_s") == ["a", "b", "c", "d"]
    assert order("-step_time") == order("-memory") == order("tokens_per_s") == ["a", "c", "b", "d"]


# Series


def test_a_later_attempt_holds_from_its_first_step_on(alice: Any) -> None:
    run, here = submit(alice), worker()
    first = place(run, here, [0])
    add_points(first, 0, 500, 1.0)
    add_points(first, 500, 100, 1.0)
    states.finish(first, "interrupted")
    run.refresh_from_db()
    second = place(run, here, [0])
    add_points(second, 300, 10, 2.0)
    series = selectors.series(run, "loss")
    assert series.step.tolist() == list(range(310))
    assert series.value[299] == 1.0
    assert series.value[300] == 2.0
    assert selectors.series(run, "loss", since_step=305).step.tolist() == [306, 307, 308, 309]


def test_what_later_attempts_replaced_is_kept_apart_for_each_attempt(alice: Any) -> None:
    run, here = submit(alice), worker()
    for begin, count, value in ((0, 30, 1.0), (20, 8, 2.0), (25, 10, 3.0)):
        attempt = place(run, here, [0])
        add_points(attempt, begin, count, value)
        states.finish(attempt, "interrupted")
        run.refresh_from_db()
    found, replaced = selectors.series_and_replaced(run, "loss")
    assert found.value.tolist() == selectors.series(run, "loss").value.tolist() == [1.0] * 20 + [2.0] * 5 + [3.0] * 10
    assert [one.step.tolist() for one in replaced] == [list(range(20, 30)), [25, 26, 27]]
    assert [set(one.value.tolist()) for one in replaced] == [{1.0}, {2.0}]


def test_a_series_that_has_grown_counts_points_that_are_not_read(alice: Any) -> None:
    run, here = submit(alice), worker()
    for begin, value in ((0, 1.0), (25, 2.0), (62, 3.0)):
        attempt = place(run, here, [0])
        for first in range(begin, 100, 10):
            add_points(attempt, first, 10, value)
        states.finish(attempt, "interrupted")
        run.refresh_from_db()
    for step in (-1, 0, 24, 61, 62, 85, 103, 500):
        whole, replaced = selectors.series_and_replaced(run, "loss")
        some, some_replaced = selectors.grown(run, "loss", 0, step)
        assert selectors.after(some, step).step.tolist() == selectors.after(whole, step).step.tolist()
        for every, own in zip((whole, *replaced), (some, *some_replaced), strict=True):
            assert own.total == every.total and len(own.step) and set(own.step.tolist()) <= set(every.step.tolist())
        assert [some.step[0], some.step[-1]] == [whole.step[0], whole.step[-1]]
    assert len(some.step) < len(whole.step)


@in_words_of_sqlite
def test_a_series_is_read_by_its_own_index(alice: Any) -> None:
    run = submit(alice)
    with CaptureQueriesContext(connection) as asked:
        selectors.series(run, "loss")
        selectors.newest(run, "loss")
    found = plans(asked)
    assert len(found) == 2
    assert all("(attempt_id=? AND name=? AND rank=?)" in plan for plan in found), found


def test_buckets_say_how_many_of_how_many(alice: Any) -> None:
    run = submit(alice)
    attempt = place(run, worker(), [0])
    add_points(attempt, 0, 500)
    series = selectors.series(run, "loss", buckets=10)
    assert series.total == 500
    assert series.shown == len(series.step) <= 30


def test_thinning_hides_neither_spikes_nor_gaps() -> None:
    values = np.random.default_rng(7).normal(size=10_000)
    values[1234], values[4321], values[5678] = 99.0, -99.0, np.nan
    kept = thin(values, 100)
    assert {0, 1234, 4321, 5678, 9_999} <= set(kept.tolist())
    assert len(kept) <= 4 * 100
    assert (np.diff(kept) > 0).all()


def test_means_of_what_is_kept_count_every_finite_value_once() -> None:
    values = np.random.default_rng(3).exponential(size=5_000)
    values[[7, 8, 9, 4_000]] = np.nan
    kept = thin(values, 100)
    means = Means.of(values, kept)
    whole = np.nanmean(values)
    assert means.count.sum() == 4_996 and np.average(means.mean, weights=means.count) == pytest.approx(whole)
    assert np.nanmean(values[kept]) > 1.5 * whole, "those that are kept are extremes"
    before = values[kept[9] + 1 : kept[10] + 1]
    assert (means.mean[10], means.count[10]) == (pytest.approx(np.nanmean(before)), np.isfinite(before).sum())
    alone = Means.of(np.array([np.nan, 2.0]), np.array([0, 1])).times(3)
    assert (alone.mean.tolist(), alone.count.tolist()) == ([0, 6], [0, 1])


def test_a_flat_line_is_thinned_too() -> None:
    assert len(thin(np.ones(10_000), 100)) <= 200


def test_a_curve_that_grows_keeps_the_points_it_had() -> None:
    values = np.random.default_rng(7).normal(size=2_000)
    before, after = thin(values[:1_700], 100), thin(values[:1_750], 100)
    assert before[:-4].tolist() == after[: len(before) - 4].tolist()
    for n in range(1, 700, 7):
        assert {0 <= at < n for at in thin(values[:n], 100).tolist()} == {True}


# Memory and logs


def test_peaks_of_memory_are_read_without_the_curves(alice: Any) -> None:
    run = submit(alice)
    attempt = place(run, worker(), [0])
    MemoryRecord.objects.create(attempt=attempt, rank=0, step=3, peak_total=7, curve=b"curve")
    with CaptureQueriesContext(connection) as asked:
        peaks = [record.peak_total for record in selectors.memory(run).values()]
    assert peaks == [7] and not any('"curve"' in query["sql"] for query in asked)
    assert bytes(selectors.memory(run)[0].curve) == b"curve"
    assert bytes(selectors.memory(run, curves=True)[0].curve) == b"curve"


def test_the_memory_limit_of_many_hosts_is_one_query(alice: Any, django_assert_num_queries: Any) -> None:
    run = submit(alice)
    nodes = []
    for i in range(5):
        cores = [{"index": at, "memory_total": 100 * (5 - i) + at} for at in range(2)]
        Worker.objects.create(name=f"yard-{i}", devices=cores, heartbeat_at=timezone.now())
        nodes.append({"worker": f"yard-{i}", "devices": [1], "first_rank": i, "address": ""})
    attempt = Attempt.objects.create(run=run, number=1, devices=[*nodes, {"worker": "gone", "devices": [0]}])
    with django_assert_num_queries(1):
        assert memory_limit(run, attempt) == 101


def test_the_memory_limit_of_an_ended_run_is_that_of_its_devices_then(alice: Any) -> None:
    run = factory.queued(alice)
    attempt = factory.start(run)
    host = attempt.worker
    assert host is not None

    def with_memory(size: int) -> None:
        host.devices = [{**device, "memory_total": size} for device in host.devices]
        host.save()

    with_memory(8 << 30)
    factory.feed_steps(attempt, 20)
    factory.end(run, State.SUCCEEDED)
    with_memory(16 << 30)
    for _ in range(2):
        room = overview([run]).room
        assert memory_limit(run, attempt) == 8 << 30 and room is not None and room.whole == 8 << 30
        store_summary(run.pk)  # as after more data has arrived
        run.refresh_from_db()


def test_ranks_with_a_log_are_those_of_the_newest_attempt_that_wrote_one(alice: Any) -> None:
    run = submit(alice)
    assert selectors.log_ranks(run) == []
    for number, ranks in ((1, (0, 1, 2)), (2, (3, 1))):
        attempt = Attempt.objects.create(run=run, number=number)
        for rank in ranks:
            LogChunk.objects.create(attempt=attempt, rank=rank, start=0, end=1, data=b"x")
            Cursor.objects.create(attempt=attempt, rank=rank, channel="log", offset=1)
        Cursor.objects.create(attempt=attempt, rank=5, channel="events", offset=1)
        Cursor.objects.create(attempt=attempt, rank=6, channel="log", offset=0)
    assert selectors.log_ranks(run) == [1, 3]


# Spans


def test_the_newest_step_that_all_ranks_delivered(alice: Any) -> None:
    run = submit(alice, dp=2)
    attempt = place(run, worker(), [0, 1])
    for step, rank in ((10, 0), (10, 1), (20, 0)):
        rows = np.zeros(1, SPAN).tobytes()
        SpanChunk.objects.create(attempt=attempt, rank=rank, step=step, count=1, total=1, data=rows)
    assert set(selectors.spans(run)) == {0, 1}
    assert set(selectors.spans(run, 20)) == {0}
    assert selectors.spans(submit(alice)) == {}


# Waiting


def test_waits_for_a_worker(alice: Any) -> None:
    assert selectors.waiting(submit(alice)).sentence == "Waits for a worker: none is connected."


def test_a_silent_worker_is_no_worker(alice: Any) -> None:
    Worker.objects.filter(pk=worker().pk).update(heartbeat_at="2020-01-01T00:00:00Z")
    assert selectors.waiting(submit(alice)).sentence.startswith("Waits for a worker: yard-a is silent (heard ")
    Worker.objects.filter(pk=worker("yard-b").pk).update(draining=True)
    assert selectors.waiting(submit(alice)).sentence.endswith(" ago) and yard-b is draining. 1 run ahead.")
    for name in ("yard-c", "yard-d"):
        Worker.objects.filter(pk=worker(name).pk).update(leaving=True)
    many = "Waits for a worker: each of the 4 is draining, leaving or silent."
    assert selectors.waiting(submit(alice)).sentence.startswith(many), "a sentence names only a few"


def test_waits_for_devices_and_says_who_is_ahead(alice: Any) -> None:
    place(submit(alice), worker(), [0])
    first, second = submit(alice, dp=2), submit(alice)
    waiting = selectors.waiting(first)
    assert (waiting.sentence, waiting.ahead) == ("Waits for 2 CPU devices on one host: yard-a has 1 free.", 0)
    waiting = selectors.waiting(second)
    assert waiting.ahead == 1
    assert "which a run ahead is waiting for" in waiting.sentence
    assert waiting.sentence.endswith("1 run ahead.")


def test_a_run_far_back_waits_for_its_turn(alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "PLANNED", 2)
    worker()
    runs = [submit(alice, dp=2) for _ in range(4)]
    assert [selectors.waiting(run).ahead for run in runs] == [0, 1, 2, 3]
    assert selectors.waiting(runs[3]).sentence == "Waits for its turn: 3 runs ahead."
    assert queue.everyone_waiting()[runs[1].pk] == selectors.waiting(runs[1]), (
        "a run behind it does not change its plan"
    )


def test_needs_more_than_there_is(alice: Any) -> None:
    worker()
    sentence = selectors.waiting(submit(alice, dp=4)).sentence
    assert sentence == "Needs 4 CPU devices; all workers together have 2."


def test_what_is_not_queued_waits_for_nothing(alice: Any) -> None:
    run = submit(alice)
    cancelling.request_cancel(run=run, user=alice)
    run.refresh_from_db()
    assert selectors.waiting(run).sentence == ""


# Fleet


def test_the_fleet_says_who_holds_which_device(alice: Any) -> None:
    run, here = submit(alice), worker()
    place(run, here, [1])
    (view,) = worker_views.workers()
    assert [device.run and device.run.pk for device in view.devices] == [None, run.pk]
    assert (view.silent, view.runs) == (False, [run])
    (host,) = fleet.hosts()
    assert host.free == {"cpu": (0,)}
    Worker.objects.update(devices=here.devices[:1])  # the other one cannot be used any more
    (host,) = fleet.hosts()
    assert host.free == host.devices == {"cpu": (0,)} and host.held and not host.idle


def test_a_worker_that_never_beat_is_silent() -> None:
    Worker.objects.create(name="new")
    (view,) = worker_views.workers()
    assert (view.age, view.silent) == (None, True)
    assert not fleet.hosts()[0].open


def test_a_later_attempt_replaces_held_out_losses_before_it_has_one(alice: Any) -> None:
    """They have points in a few steps alone, so what counts is where the attempt's losses begin."""
    run = factory.queued(alice, train={"eval_every": 20, "steps": 100})
    first = factory.start(run)
    factory.feed(first, 0, points_frame(0, 61) + b"".join(points_frame(at, 1, "eval_loss") for at in (19, 39, 59)))
    assert selectors.series(run, "eval_loss").step.tolist() == [19, 39, 59]
    before = selectors.beginnings(run, ["eval_loss"])
    factory.feed(factory.start(run), 0, points_frame(30, 3))
    assert selectors.series(run, "eval_loss").step.tolist() == [19]
    found, (older,) = selectors.series_and_replaced(run, "eval_loss")
    assert (found.step.tolist(), older.step.tolist()) == ([19], [39, 59])
    grown, (older,) = selectors.grown(run, "eval_loss", 0, 25)
    assert (grown.total, older.total) == (1, 2)
    assert selectors.beginnings(run, ["eval_loss"])["eval_loss", 0] == "2:30" != before["eval_loss", 0]


def test_many_curves_of_a_retried_run_are_those_that_are_read_one_by_one(alice: Any) -> None:
    """Findings read the former: with the held-out losses that a later attempt replaced, and by the broker's clock, not
    the host's."""
    run = factory.queued(alice, {"dp": 2}, train={"eval_every": 20, "steps": 100})
    first, second = factory.start(run), factory.start(run)
    evaluated = b"".join(points_frame(at, 1, "eval_loss") for at in (19, 39, 59))
    factory.feed(second, 0, points_frame(30, 3) + points_frame(30, 3, "reference_time"))
    factory.feed(second, 1, points_frame(30, 3, "reference_time", rank=1))
    factory.feed(first, 0, points_frame(0, 61) + evaluated)
    factory.feed(first, 1, points_frame(0, 61, "reference_time", rank=1))
    run.clocks = {"2": {"yard-b": [1, 1, -1000.0]}}
    found = curves(run, ("loss", "eval_loss", "reference_time"), range(2))
    assert set(found) == {("loss", 0), ("eval_loss", 0), ("reference_time", 0), ("reference_time", 1)}
    for (name, rank), points in found.items():
        alone = selectors.series(run, name, rank)
        assert [points[field].tolist() for field in ("step", "time", "value")] == [
            values.tolist() for values in (alone.step, alone.time, alone.value)
        ]
    assert found["eval_loss", 0]["step"].tolist() == [19] and len(found["loss", 0]) == 33
