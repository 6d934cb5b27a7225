"""Template tag to choose a traced step, on the page of a run or an imported trace."""

from __future__ import annotations

from typing import Any

from django import template

from dashboard.runs.tracing.traced import StepChoice

register = template.Library()


@register.inclusion_tag("parts/step_choice.html", takes_context=True)
def step_choice(
    context: template.Context, choice: StepChoice, step: int | None, newest: bool = False
) -> dict[str, Any]:
    """`step` is the one shown, None for the newest. `newest` offers a link to the newest one, whichever that is. Links
    and form keep the page's other parameters."""
    return {"choice": choice, "step": step, "newest": newest, "request": context["request"]}
