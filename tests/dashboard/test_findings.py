"""The records of a run that are given to the diagnosis rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dashboard.runs.findings import case_of
from dashboard.runs.models import Attempt
from parallel_core.observe.records import SPAN, encode
from tests.dashboard import factory

pytestmark = pytest.mark.django_db


def traced(attempt: Attempt, *steps: int) -> None:
    """Feeds one span per step, which ends at as many nanoseconds as the number of the step, so that steps can be told
    apart.
    """
    for step in steps:
        rows = np.zeros(1, SPAN)
        rows["end"] = step
        head = {"kind": "spans", "rank": 0, "t": 0.0, "step": step, "count": 1, "total": 1}
        factory.feed(attempt, 0, encode(head, rows.tobytes()))


@pytest.mark.parametrize(
    ("begins", "judged"),
    [
        ({}, [10, 20, 22, 30]),
        ({"step": 0, "why": ""}, [10, 20, 22, 30]),
        ({"step": 20, "run": 1, "attempt": 1}, [30]),
    ],
)
def test_the_first_steps_behind_a_checkpoint_are_not_judged(
    begins: dict[str, Any], judged: list[int], alice: Any
) -> None:
    run = factory.queued(alice, train={"steps": 40, "warmup_steps": 5})
    traced(factory.start(run), 12)
    attempt = factory.start(run)
    Attempt.objects.filter(pk=attempt.pk).update(begins=begins)
    traced(attempt, 2, 10, 20, 22, 30)
    assert [int(step[0]["end"][0]) for step in case_of(run).traced] == judged
