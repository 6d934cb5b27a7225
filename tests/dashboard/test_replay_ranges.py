"""How far off a What if may be: by the runs that earlier ones predicted, and the step from which it is told."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from django.test import Client

from dashboard.ledger.models import Prediction
from dashboard.runs.models import Run, SpanChunk, State
from dashboard.runs.tracing import traces
from parallel_core.simulate.replay import Change, replay
from tests.dashboard import factory
from tests.dashboard.plain import plain
from tests.dashboard.run_analyst import foresee_all
from tests.dashboard.test_api_whatif import asked
from tests.dashboard.test_run_inspect import tab, traced

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url")]
__all__ = ["asked"]  # a fixture
GPIPE = {"pp": 2, "schedule": "gpipe", "micro_batches": 4}
ELSEWHERE = re.compile(r"Other ([a-z -]+) were predicted [^.]* at worst, on other hosts whose cores trained [^.]*\.")


def settled(owner: Any, source: Run, ratios: list[float], **split: Any) -> None:
    """Runs that took so many times what a replay of `source` had predicted, each of another step."""
    for place, ratio in enumerate(ratios):
        run = factory.queued(owner, {**GPIPE, **split}, train={"global_batch": 16 * (place + 1)})
        factory.start(run)
        Run.objects.filter(pk=run.pk).update(state=State.SUCCEEDED)
        said = {
            "replayed": source,
            "replayed_seconds": 0.1,
            "measured_seconds": 0.1 * ratio,
            "settled_at": run.created_at,
        }
        Prediction.objects.filter(run=run).update(**said)


def held_up(run: Run) -> int:
    """A newer traced step of the run, all of whose operations took three times as long; its number."""
    typical = traced(run).step
    for chunk in SpanChunk.objects.filter(attempt__run=run, step=typical):
        rows = np.frombuffer(chunk.data, factory.SPAN).copy()
        for side in ("start", "end"):
            rows[side] *= 3
        chunk.pk, chunk.step, chunk.data = None, typical + 10, rows.tobytes()
        chunk.save()
    return typical


def test_a_run_is_foreseen_from_the_step_that_stands_for_it_not_the_newest(alice: Any, client: Client) -> None:
    """The newest traced step may have been held up: one of 105 ms that stood still made 1.9 times the prediction."""
    before = factory.finished(alice, GPIPE)
    typical = held_up(before)
    run = factory.queued(alice, {**GPIPE, "schedule": "1f1b"})
    foresee_all()
    shown = traces.trace(before, typical)
    assert shown is not None and traced(before).step == typical + 10
    faster = replay(shown.spec, shown.measured, Change(schedule="1f1b")).step / shown.measured.step
    said = Prediction.objects.get(run=run).replayed_seconds
    assert said == pytest.approx(faster * before.summary["timed"]["median"])
    client.force_login(alice)
    assert f"Step {typical} is replayed, the traced one nearest to the median." in tab(client, before, "tab=whatif")
    assert "is replayed, the traced" not in tab(client, before, f"tab=whatif&step={typical + 10}")


def test_a_what_if_says_its_range_by_what_earlier_ones_were_off_by(alice: Any, client: Client) -> None:
    before = factory.finished(alice, GPIPE)
    client.force_login(alice)
    other = "tab=whatif&schedule=1f1b"
    for query, what in ((other, "schedules"), ("tab=whatif&micro_batches=8", "numbers of micro-batches")):
        (told,) = ELSEWHERE.finditer(plain(tab(client, before, query)))
        assert told[1] == what and len(told[0].split()) <= 25
    settled(alice, before, [0.9, 0.95, 0.97, 1.0, 1.0, 1.02, 1.03, 1.05], schedule="1f1b")
    assert ELSEWHERE.search(plain(tab(client, before, other))), "eight are too few"
    settled(alice, before, [1.5], micro_batches=8)
    both = tab(client, before, other)
    assert "Run with this change, eight of ten such runs take" in both and "by 9 earlier ones on yard-a." in both
    for hypothetical in ("tab=whatif", "tab=whatif&links=4", "tab=whatif&schedule=1f1b&device=2"):
        said = tab(client, before, hypothetical)
        assert "eight of ten such runs" not in said and "On other hosts" not in said


def test_the_range_is_of_the_same_hosts_and_where_enough_are_known_of_the_same_kind(alice: Any, asked: Any) -> None:
    before = factory.finished(alice, GPIPE)
    settled(alice, before, [0.8] * 9, schedule="1f1b")
    settled(alice, before, [1.2] * 9, micro_batches=8)
    for query, factor in (("schedule=1f1b", 0.8), ("micro_batches=8", 1.2)):
        data = asked(f"/runs/{before.pk}/whatif?{query}")[1]["data"]
        median = data["predicted_ns"] * before.summary["timed"]["median"] * 1e9 / data["measured_ns"]
        assert data["low_ns"] == data["high_ns"] == pytest.approx(factor * median, rel=1e-6)
        assert "9 earlier ones on yard-a with" in plain(data["likely"])
    factory.worker("yard-b")
    for attempt in [run.attempts.get() for run in Run.objects.exclude(pk=before.pk)]:
        attempt.devices = [{**node, "worker": "yard-b"} for node in attempt.devices]
        attempt.save()
    assert asked(f"/runs/{before.pk}/whatif?schedule=1f1b")[1]["data"]["low_ns"] is None
