"""How long a run will still take, and when a queued run is expected to start."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from django.utils import timezone

from dashboard.ages import clock
from dashboard.ledger.models import Prediction
from dashboard.runs.metrics import newest
from dashboard.runs.models import Run
from parallel_core.plan.evaluations import evaluation_steps, evaluations

MINUTE_S = 60
_COUNTED = ("steps", "global_batch", "eval_every", "eval_samples", "max_minutes")
LONGEST_S = 30 * 24 * 3600
"""Nothing is said of what lies further ahead: predictions of so many steps are not that good."""


def seconds_left(run: Run, *, roughly: bool = False) -> float | None:
    """How long a running run will still take, at the median of its steps so far, or until its time limit if that comes
    first; None if no step has been timed, or it does not train. `roughly`: of its steps alone, without a query."""
    if not run.step_time or run.task:
        return None
    done, train = (run.step or 0) + 1, run.spec["train"]
    left = max(0, train["steps"] - done) * run.step_time
    left += 0 if roughly else evaluation_seconds(run, done) + saving_seconds(run, done)
    limit = MINUTE_S * train.get("max_minutes", 0)
    if not limit or run.started_at is None:
        return left
    return min(left, max(0.0, limit - (timezone.now() - run.started_at).total_seconds()))


def evaluation_seconds(run: Run, done: int) -> float:
    """How long the evaluations of held-out samples after `done` steps will take: as the last one, before the first as
    `evaluation_steps`."""
    train = run.spec["train"]
    left = evaluations(train.get("eval_every", 0), train["steps"], done)
    if not left:
        return 0.0
    each = newest(run, "eval_time")
    if each is None:
        each = evaluation_steps(train["eval_samples"], train["global_batch"]) * (run.step_time or 0.0)
    return left * each


def saving_seconds(run: Run, done: int) -> float:
    """For how long training will stand still for checkpoints after `done` steps: for each as for the last one."""
    train = run.spec["train"]
    left = evaluations(train.get("checkpoint_every", 0), train["steps"], done)
    last = run.checkpoints.order_by("-at").first() if left else None
    return left * last.blocked if last else 0.0


def expected_start(holding: Sequence[Run], ahead: Sequence[int]) -> str:
    """`Expected to start between 14:20 and 14:35 UTC.`; '' if it is not known of each run how long it will take.

    At the soonest when the first of the runs that hold its hosts has ended; at the latest when all have, and those
    `ahead` (ids of queued runs) were run one after another.
    """
    left = [seconds for run in holding if (seconds := seconds_left(run)) is not None]
    if not left or len(left) < len(holding) or min(left) > LONGEST_S:
        return ""
    now, before = timezone.now(), _predicted(ahead)
    soonest = _clock(now, math.floor((now.timestamp() + min(left)) / MINUTE_S))
    if before is None or max(left) + before > LONGEST_S:
        return f"Starts at {soonest} UTC at the earliest; how long the runs ahead take is not known."
    latest = _clock(now, math.ceil((now.timestamp() + max(left) + before) / MINUTE_S))
    return f"Expected to start between {soonest} and {latest} UTC."


def _predicted(runs: Sequence[int]) -> float | None:
    """Seconds that the runs are predicted to take one after another; None if one of them has no prediction."""
    said = Prediction.objects.filter(run__in=runs, seconds__isnull=False) if runs else Prediction.objects.none()
    rows = list(said.values_list("seconds", "run__resume_step", *(f"run__spec__train__{name}" for name in _COUNTED)))
    if len(rows) < len(runs):
        return None
    return math.fsum(
        min((seconds or 0.0) * _step_times(begins or 0, *counted), MINUTE_S * limit or math.inf)
        for seconds, begins, *counted, limit in ((*row[:-1], row[-1] or 0) for row in rows)
    )


def _step_times(begins: int, steps: int, batch: int, every: int | None, samples: int | None) -> float:
    """How long a run that begins with step `begins` takes, in times of its steps; the rest as in _COUNTED."""
    held_out = evaluation_steps(samples or 0, batch)
    return max(0, steps - begins) + evaluations(every or 0, steps, begins) * held_out


def _clock(now: datetime, minutes: int) -> str:
    """A time in whole minutes since 1970, in UTC: `14:20`, with the day unless that is today."""
    at = datetime.fromtimestamp(minutes * MINUTE_S, tz=now.tzinfo)
    return clock(at, now, "%H:%M")
