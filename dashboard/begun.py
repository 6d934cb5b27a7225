"""Forms that send what each field began with (`was-<name>`): who changes one field leaves the others as somebody else,
or another tab, has made them meanwhile."""

from __future__ import annotations

from collections.abc import Mapping


def began(given: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """What each field of `now` began with: as a form that was sent tells it, else as it is now."""
    return {name: given.get(f"was-{name}", value) for name, value in now.items()}


def typed(given: Mapping[str, str], name: str) -> str | None:
    """What was put into a field; None if it was not sent, or holds what it began with."""
    value = given.get(name)
    return None if value == given.get(f"was-{name}") else value
