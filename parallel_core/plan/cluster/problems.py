"""Messages about values that cannot be, by field."""

from __future__ import annotations

import math

from parallel_core.analysis.quantities import count_text, significant
from parallel_core.rules import divisors, few


class Problems:
    """Collects one message a field: what is wrong and what would be right."""

    def __init__(self) -> None:
        self.messages: dict[str, str] = {}

    def add(self, field: str, message: str) -> None:
        self.messages.setdefault(field, message)

    def whole(self, field: str, value: int, least: int, most: int) -> None:
        if not least <= value <= most:
            self.add(field, f"Must be {count_text(least)} to {count_text(most)}; got {value}.")

    def number(self, field: str, value: float, least: float, most: float, unit: str = "") -> None:
        """`least` itself is not allowed where it is 0: nothing physical is."""
        right = math.isfinite(value) and (least < value if least == 0 else least <= value) and value <= most
        if not right:
            words = "more than 0" if least == 0 else f"at least {significant(least)}"
            given = significant(value) if math.isfinite(value) else str(value)
            self.add(field, f"Must be {words} and at most {significant(most)}{unit}; got {given}.")

    def divides(self, field: str, part: int, other: str, whole: int) -> None:
        if whole % part:
            self.add(field, f"{field}={part} does not divide {other}={whole}; try {few(divisors(whole), part)}.")


class Unphysical(ValueError):
    """Values that cannot be; `messages` = {field: message}."""

    def __init__(self, messages: dict[str, str]) -> None:
        self.messages = messages
        super().__init__(" ".join(f"{field}: {message}" for field, message in messages.items()))


def require(messages: dict[str, str]) -> None:
    """Raises Unphysical where there are messages."""
    if messages:
        raise Unphysical(messages)
