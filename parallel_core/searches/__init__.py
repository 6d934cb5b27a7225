"""Searches that take longer than a page may, each a question and an answer in JSON: a module a kind.

A kind has `Question` and `Answer` (pydantic) and `answer(question, told)`, which raises ValueError with a sentence
where the question has no answer. `python -m parallel_core.searches KIND` works one out in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from pydantic import BaseModel, ConfigDict

KINDS = ("alpa", "bubbles", "partition", "splits")
EXIT_MEMORY = 3
"""Of a process whose memory ran out."""

Told = Callable[[int, int], None]
"""Is told (parts done, parts in all) while a search goes on."""


class Value(BaseModel):
    """A question, an answer, or a part of one."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def silent(done: int, of: int) -> None:
    """Where nobody waits for progress."""
