"""Searches that take longer than a web page may, each a question and an answer in JSON: one module per kind.

A module has `Question` and `Answer` (pydantic) and `answer(question, on_progress)`, which raises ValueError with a
sentence where the question has no answer. `python -m parallel_core.searches KIND` runs one in a separate process.
"""

from __future__ import annotations

from collections.abc import Callable

from pydantic import BaseModel, ConfigDict

KINDS = ("alpa", "bubbles", "partition", "splits")

ProgressCallback = Callable[[int, int], None]
"""Progress callback: called with (parts done, parts in all) during a search."""


class Value(BaseModel):
    """A question, an answer, or a part of one."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def silent(done: int, of: int) -> None:
    """The default progress callback: does nothing."""
