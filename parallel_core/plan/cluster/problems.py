"""Messages about impossible values, by field."""

from __future__ import annotations

from parallel_core.analysis.quantities import bound_text, count_text
from parallel_core.rules import divisors, few

LEAST = 1e-6
"""Smallest allowed value of what must be positive, in its own unit: smaller rates give times that no float holds."""
MOST_SHOWN = 24
"""Characters of a wrong value that its message quotes."""


class Problems:
    """Collects one message for each field: what is wrong and what is allowed."""

    def __init__(self) -> None:
        self.messages: dict[str, str] = {}

    def add(self, field: str, message: str) -> None:
        """Adds a message, unless the field has one already."""
        self.messages.setdefault(field, message)

    def whole(self, field: str, value: int, least: int, most: int) -> None:
        """Adds a message where the integer is not within least .. most."""
        if not least <= value <= most:
            self.add(field, f"Must be from {count_text(least)} to {count_text(most)}; got {_short(value)}.")

    def number(self, field: str, value: float, least: float, most: float, unit: str = "") -> None:
        """Adds a message where the number is not within least .. most. `least` 0 stands for LEAST, since nothing
        physical is 0."""
        floor = least or LEAST
        if not floor <= value <= most:  # NaN is neither
            self.add(field, f"Must be from {bound_text(floor)} to {bound_text(most)}{unit}; got {_short(value)}.")

    def divides(self, field: str, part: int, other: str, whole: int) -> None:
        """Adds a message where `part` does not divide `whole`."""
        if whole % part:
            self.add(field, f"{field}={part} does not divide {other}={whole}; try {few(divisors(whole), part)}.")


def _short(value: float) -> str:
    """The value as it was given, truncated if long."""
    text = str(value) if isinstance(value, int) else f"{value:g}"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


class Unphysical(ValueError):
    """Values that are physically impossible; `messages` = {field: message}."""

    def __init__(self, messages: dict[str, str]) -> None:
        self.messages = messages
        super().__init__(" ".join(f"{field}: {message}" for field, message in messages.items()))


def require(messages: dict[str, str]) -> None:
    """Raises Unphysical if there are messages."""
    if messages:
        raise Unphysical(messages)
