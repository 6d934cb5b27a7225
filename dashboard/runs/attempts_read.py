"""A run's attempts as its pages read them."""

from __future__ import annotations

from dashboard.one_look import looking, read_once
from dashboard.runs.models import Attempt, Run


@read_once
def attempts_of(run: Run) -> tuple[Attempt, ...]:
    """Every attempt, the newest last."""
    return tuple(run.attempts.order_by("number"))


def attempt_of(run: Run) -> Attempt | None:
    """The newest attempt."""
    if looking():  # other parts of the page ask for all of them
        return next(reversed(attempts_of(run)), None)
    return run.attempts.order_by("-number").first()
