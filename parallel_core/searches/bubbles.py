"""The zero-bubble rows of one model, predicted (`plan.cluster.zero_bubble`) and searched (`published_orders`)."""

from __future__ import annotations

from parallel_core.plan.cluster.published_orders import Searched, searched
from parallel_core.plan.cluster.zero_bubble import BubbleRow, bubble_rows, models
from parallel_core.searches import Told, Value, silent


class Question(Value):
    model: str


class Answer(Value):
    """Both in the order of the published tables."""

    predicted: tuple[BubbleRow, ...]
    orders: tuple[Searched, ...]


def answer(question: Question, told: Told = silent) -> Answer:
    """Simulates and searches the rows. Raises ValueError for a model that is not in the tables."""
    if question.model not in models():
        raise ValueError(f"The tables have no model {question.model}; they have {', '.join(models())}.")
    predicted = bubble_rows(question.model)
    told(1, 2)
    return Answer(predicted=predicted, orders=searched(question.model))
