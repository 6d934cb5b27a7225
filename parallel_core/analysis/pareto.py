"""The Pareto front of two measures: what no other choice beats in both."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")


def pareto_front(items: Iterable[Item], measures: Callable[[Item], tuple[float, float]]) -> list[Item]:
    """The items that no other is as good as in both measures, of which less is better; the least of the first measure
    first. Of items that are equal in both, the first one."""
    front: list[Item] = []
    least = float("inf")
    for item in sorted(items, key=measures):
        if (second := measures(item)[1]) < least or not front:
            front.append(item)
            least = second
    return front
