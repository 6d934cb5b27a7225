"""Template filter: a field of a run's place in the queue as who looks at it may fill it."""

from __future__ import annotations

from typing import Any

from django import template
from django.forms import BoundField

from dashboard.runs.waiting.priority import WORDS, Priority, refusal
from dashboard.runs.waiting.queue_fields import PriorityField

register = template.Library()


@register.filter
def for_user(field: BoundField, user: Any) -> BoundField:
    """The field, of a priority without the level at which the user may not queue, unless it stands there already."""
    made, high = field.field, Priority.HIGH
    if isinstance(made, PriorityField) and refusal(user, high) and field.value() != high.word:
        made.choices = [(word, word) for word in WORDS if word != high.word]
    return field
