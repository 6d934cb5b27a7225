"""What a running run's page says while none of its ranks moves, before its worker ends it."""

from __future__ import annotations

from dashboard.runs.models import Attempt, Run
from parallel_core.analysis.quantities import seconds_text
from parallel_core.layout import Layout
from parallel_core.schedule.text import under_way
from parallel_core.spec import RunSpec
from parallel_core.who_waits import holding_up

STILL_S, STILL_STEPS = 10.0, 5
"""Said from so many seconds on, and from so many steps' time on: a single operation may take long."""


def sentence(run: Run, attempt: Attempt | None) -> str:
    """For how long no rank has moved, and which one the others may wait for; '' while one moves, and where that is not
    known of each rank."""
    seen = attempt.progress if attempt else {}
    told = [where.get("age") for where in seen.values() if isinstance(where, dict)]
    ages = [age for age in told if isinstance(age, int | float)]
    if len(ages) < run.devices or min(ages) < max(STILL_S, STILL_STEPS * (run.step_time or 0)):
        return ""
    rank = held_up_by(run, attempt)
    where = seen.get(str(rank), {}).get("op")
    whose = f" Rank {rank} is in {under_way(where)}." if where else ""
    return f"No rank has moved for {seconds_text(min(ages))}.{whose} If that lasts, the run is ended."


def held_up_by(run: Run, attempt: Attempt | None) -> int | None:
    """Of ranks that stood still the first that others may have waited for, whose log may say why; None if each waited,
    and where a worker told of them in another form than this version expects."""
    try:
        seen = attempt.progress.items() if attempt else ()
        places = {int(rank): (where.get("step", -1), where.get("op", "")) for rank, where in seen}
        return next(iter(holding_up(places, Layout.of(RunSpec.stored(run.spec)))), None)
    except (AttributeError, LookupError, TypeError, ValueError):
        return None
