"""Template tag to choose a traced step, on the page of a run or an imported trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import template

register = template.Library()


@register.inclusion_tag("parts/step_choice.html")
def step_choice(steps: Sequence[int], step: int | None, tab: str = "", newest: bool = False) -> dict[str, Any]:
    """`steps` ascend; `step` is the one shown, None for the newest. `newest` offers a link to the newest one, whichever
    that is. The links keep `tab` open."""
    at = len(steps) - 1 if step is None else steps.index(step)
    return {
        "steps": steps,
        "step": step,
        "tab": tab,
        "newest": newest,
        "before": steps[at - 1] if at > 0 else None,
        "behind": steps[at + 1] if at + 1 < len(steps) else None,
    }
