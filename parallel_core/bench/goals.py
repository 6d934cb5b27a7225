"""Goals of the benchmarks: a benchmark judges what it found, and `bench.run` prints it with the goal."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypedDict


class Judged(TypedDict):
    """A value found, its goal, and whether `value` `relation` `goal` holds. A value that is not a number misses."""

    what: str
    value: float
    relation: str
    goal: float
    met: bool


_RELATIONS: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le, "<": operator.lt}


def at_least(what: str, value: float, goal: float) -> Judged:
    """Judges `value` >= `goal`."""
    return _judged(what, value, ">=", goal)


def at_most(what: str, value: float, goal: float) -> Judged:
    """Judges `value` <= `goal`."""
    return _judged(what, value, "<=", goal)


def below(what: str, value: float, goal: float) -> Judged:
    """Judges `value` < `goal`."""
    return _judged(what, value, "<", goal)


def _judged(what: str, value: float, relation: str, goal: float) -> Judged:
    met = bool(_RELATIONS[relation](value, goal))
    return {"what": what, "value": float(value), "relation": relation, "goal": goal, "met": met}


def line(judged: Judged) -> str:
    """Returns the line that is printed below a benchmark's results: `  met     1.08 >= 1.05  speed ...`."""
    said = "met" if judged["met"] else "missed"
    held = f"{judged['value']:.4g} {judged['relation']} {judged['goal']:g}"
    return f"  {said:<7} {held:<19} {judged['what']}"


def summary(results: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Returns how many goals of all benchmarks are met, and which are missed; None where none has a goal."""
    judged = [(name, one) for name, found in results.items() for one in found.get("goals", ())]
    if not judged:
        return None
    missed = [f"{name}: {one['what']}" for name, one in judged if not one["met"]]
    return "; ".join([f"{len(judged) - len(missed)} of {len(judged)} met", *(f"missed {what}" for what in missed)])
