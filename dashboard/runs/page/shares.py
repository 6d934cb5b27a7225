"""What the newest traced step of a running run went to, for the sentence on top of its page."""

from __future__ import annotations

from dashboard.once import once
from dashboard.runs import selectors
from dashboard.runs.models import Run
from parallel_core.analysis.breakdown import mean

KEPT_S = 3600
SHARES = ("compute", "communication", "bubble")


def shares(run: Run) -> dict[str, float]:
    """SHARES of the newest traced step, mean of its ranks; {} without one, or while its spans are still arriving.

    Cached until more of it has arrived: the sentence is made anew at every step, and analysing one takes long.
    """
    step = selectors.newest_traced_step(run)
    if step is None:
        return {}
    return once(f"shares:{selectors.arrived(run, step)}", lambda: _measured(run, step), KEPT_S)


def _measured(run: Run, step: int) -> dict[str, float]:
    try:
        parts = selectors.breakdown(run, step)
    except (ValueError, KeyError, IndexError):
        return {}  # a step whose spans are still arriving
    if not parts:
        return {}
    found = mean(parts.values())
    return {name: found.share(name) for name in SHARES}
