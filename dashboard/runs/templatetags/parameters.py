"""Template filter: the parameters of an address. `request.GET.items` in a template is the parameter `items` where an
address has one, since templates look for a key first."""

from __future__ import annotations

from collections.abc import Iterable

from django import template
from django.http import QueryDict

register = template.Library()


@register.filter
def pairs(query: QueryDict) -> Iterable[tuple[str, str | list[object]]]:
    """(name, its last value) of each parameter."""
    return query.items()
