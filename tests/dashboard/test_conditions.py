"""Disturbance and pace of a run that was restarted are those of all attempts that made its timed steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dashboard.ledger.models import Prediction
from dashboard.ledger.services import settle
from dashboard.runs.models import Attempt, Run, State
from dashboard.runs.page.verdict import UNKNOWN_OTHERS, verdict
from dashboard.studies import reruns
from parallel_core.observe.record_files import encode
from parallel_core.observe.records import POINT
from tests.dashboard import factory

STEPS = {"steps": 100, "warmup_steps": 0}


def trained(attempt: Attempt, begin: int, end: int, others: float | None, reference: float = 0.002) -> None:
    """Feeds what one rank emits in these steps, each of 0.1 s."""
    steps = np.arange(begin, end)
    series = {"step_time": np.full(len(steps), 0.1), "reference_time": np.full(len(steps), reference)}
    if others is not None:
        series["cpu_others"] = np.full(len(steps), others)
    rows = np.zeros((len(series), len(steps)), POINT)
    for row, values in zip(rows, series.values(), strict=True):
        row["step"], row["time"], row["value"] = steps, 1e9 + steps, values
    head = {"kind": "points", "rank": 0, "t": 0.0, "series": [[name, len(steps)] for name in series]}
    factory.feed(attempt, 0, encode(head, rows.tobytes()))
    attempt.begins = {"step": begin}
    attempt.save(update_fields=("begins",))


def summarised(attempt: Attempt, others: float | None, reference: float = 0.002) -> None:
    head = {"kind": "summary", "rank": 0, "t": 0.0, "steps": 100, "cpu_others": others}
    factory.feed(attempt, 0, encode({**head, "reference": {"seconds": reference, "times": 10}}))


def restarted(owner: Any, first: float | None, second: float | None, **paces: float) -> Run:
    """90 steps, then 10 of another attempt, which alone came to its end."""
    run = factory.queued(owner, train=STEPS)
    trained(factory.start(run), 0, 95, first, paces.get("early", 0.002))
    again = factory.start(run)
    trained(again, 90, 100, second, paces.get("late", 0.002))
    summarised(again, second, paces.get("late", 0.002))
    factory.end(run, State.SUCCEEDED)
    return run


def test_a_loud_attempt_is_not_forgotten_after_a_quiet_one(alice: Any) -> None:
    run = restarted(alice, 0.4, 0.0, early=0.003, late=0.002)
    assert run.summary["timed"]["n"] == 100
    assert run.summary["cpu_others"] == pytest.approx(0.36) and not run.summary["others_missing"]
    assert run.summary["references"] == [pytest.approx(0.0029)]
    assert "Other processes used 36 %" in verdict(run).more


def test_an_attempt_that_had_nothing_left_to_train_leaves_what_the_one_before_it_said(alice: Any) -> None:
    run = factory.queued(alice, train=STEPS, exclusive=True)
    trained(factory.start(run), 0, 100, 0.3)
    factory.start(run)
    factory.end(run, State.SUCCEEDED)
    assert run.summary["cpu_others"] == pytest.approx(0.3) and run.summary["references"] == [pytest.approx(0.002)]
    assert reruns.disturbed([run]) == [run]


def test_what_an_attempt_did_not_say_is_unknown_and_settles_nothing(alice: Any) -> None:
    run = restarted(alice, None, 0.0)
    assert run.summary["cpu_others"] is None and run.summary["others_missing"]
    assert UNKNOWN_OTHERS in verdict(run).more
    Prediction.objects.filter(run=run).delete()
    Prediction.objects.create(run=run, seconds=0.1)
    settle(run, run.summary)
    said = Prediction.objects.get(run=run)
    assert said.disturbed and said.noisy, "neither a profile's prediction nor a replay's counts"


def test_what_nobody_could_measure_is_not_called_missing(alice: Any) -> None:
    run = restarted(alice, None, None)
    assert run.summary["cpu_others"] is None and not run.summary["others_missing"]


def test_one_attempt_is_told_by_its_ranks(alice: Any) -> None:
    run = factory.queued(alice, train=STEPS)
    attempt = factory.start(run)
    trained(attempt, 0, 100, 0.9)
    summarised(attempt, 0.05, 0.004)
    factory.end(run, State.SUCCEEDED)
    assert run.summary["cpu_others"] == 0.05 and run.summary["references"] == [0.004]


@pytest.mark.parametrize(
    ("told", "kept"),
    [({"other_processes": None}, None), ({"other_processes": 0}, 0), ({"other_processes": 2}, 2), ({}, None)],
)
def test_processes_that_were_on_a_gpu_make_a_run_one_to_repeat(told: dict[str, Any], kept: Any, alice: Any) -> None:
    """An older worker tells of none."""
    run = factory.queued(alice, train=STEPS, exclusive=True)
    attempt = factory.start(run)
    trained(attempt, 0, 100, None)
    head = {"kind": "summary", "rank": 0, "t": 0.0, "steps": 100, "cpu_others": None}
    factory.feed(attempt, 0, encode({**head, **told}))
    factory.end(run, State.SUCCEEDED)
    assert run.summary["other_processes"] == kept and run.summary["cpu_others"] is None
    assert (reruns.disturbed([run]) == [run]) is bool(kept)
    assert ("Other processes on one of its GPUs: 2;" in verdict(run).more) is bool(kept)
