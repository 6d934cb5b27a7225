"""Template tag to choose a traced step, on the page of a run or an imported trace."""

from __future__ import annotations

from typing import Any

from django import template

from dashboard.runs.traced import StepChoice

register = template.Library()


@register.inclusion_tag("parts/step_choice.html")
def step_choice(choice: StepChoice, step: int | None, tab: str = "", newest: bool = False) -> dict[str, Any]:
    """`step` is the one shown, None for the newest. `newest` offers a link to the newest one, whichever that is. The
    links keep `tab` open."""
    return {"choice": choice, "step": step, "tab": tab, "newest": newest}
