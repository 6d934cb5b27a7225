"""The zero-bubble results of one model: predicted (`plan.cluster.zero_bubble`) and searched (`published_orders`)."""

from __future__ import annotations

from parallel_core.plan.cluster.published_orders import Searched, searched
from parallel_core.plan.cluster.zero_bubble import BubbleRow, bubble_rows, models
from parallel_core.searches import ProgressCallback, Value, silent


class Question(Value):
    """The name of a model in the published tables."""

    model: str


class Answer(Value):
    """Predictions and searched orders, both in the order of the published tables."""

    predicted: tuple[BubbleRow, ...]
    orders: tuple[Searched, ...]


def answer(question: Question, on_progress: ProgressCallback = silent) -> Answer:
    """Simulates and searches all rows. Raises ValueError for a model that is not in the tables."""
    if question.model not in models():
        raise ValueError(f"The tables have no model {question.model}; they have {', '.join(models())}.")
    predicted = bubble_rows(question.model)
    on_progress(1, 2)
    return Answer(predicted=predicted, orders=searched(question.model))
