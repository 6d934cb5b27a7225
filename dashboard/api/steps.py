"""The answer to a request for a step that was not traced, the same for runs and imported traces."""

from __future__ import annotations

from ninja.errors import HttpError

from dashboard.runs.tracing.traced import StepChoice


def require_traced(choice: StepChoice, none: str) -> None:
    """Raises HttpError 404, which names the nearest and the newest traced step, if the step that was asked for is none
    of them; with `none` as its words where there are none. A choice that nobody asked a step of passes."""
    if choice.asked is not None:
        raise HttpError(404, _missing(choice.asked, choice) if choice.steps else none)


def _missing(asked: int, choice: StepChoice) -> str:
    beside = [step for step in (choice.before, choice.behind) if step is not None]
    newest = choice.steps[-1]
    # none is beside it where the run was deleted while its steps were read
    nearest = min([*beside, newest], key=lambda step: abs(step - asked))
    more = "" if nearest == newest else f", the newest is step {newest}"
    said = "was not traced, or was dropped to free space" if choice.thinned else "was not traced"
    return f"Step {asked} {said}: the nearest that was is step {nearest}{more}."
