"""How soon a queued run is served: of three levels, a higher one before all lower ones."""

from __future__ import annotations

from typing import Any

from django.db import models

FIELD = "priority"
ONLY_ADMINS = "Only admins may queue at high priority; choose normal or low."


class Priority(models.IntegerChoices):
    LOW = -1
    NORMAL = 0
    HIGH = 1

    @property
    def word(self) -> str:
        """`low`, `normal` or `high`, as the API and the forms have it."""
        return self.name.lower()


WORDS = tuple(level.word for level in Priority)


def read(word: str) -> Priority | None:
    """The level of a word; None if there is none."""
    return next((level for level in Priority if level.word == word), None)


def allowed(user: Any, level: int) -> int:
    """The level at which a run of the user joins a study of that `level`: normal, if only admins may queue at it."""
    return Priority.NORMAL if refusal(user, level) else level


def refusal(user: Any, level: int) -> str:
    """Why the user may not queue at that level; '' if they may."""
    return "" if level < Priority.HIGH or user.is_staff else ONLY_ADMINS
