"""The title of what runs reached against the fields in which they differ: which values are best, and what each field
changes by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from parallel_core.analysis.quantities import listed_text, percent_text
from parallel_core.analysis.stats import Stats, speedup

NOT_FINITE = "not finite"
"""Why a run that has ended has no value: its loss."""


@dataclass(frozen=True)
class Field:
    """A field with the values tried, in their order."""

    label: str
    values: Sequence[str]
    ordered: bool = True
    """Whether the values are numbers."""
    beyond: tuple[bool, bool] = (True, True)
    """Whether there are values to try before the first, and after the last."""

    def at(self, place: int) -> str:
        value = self.values[place]
        return f"{self.label} {value}" if self.ordered else f"{self.label} “{value}”"


@dataclass(frozen=True)
class Tried:
    """A run: the place of its value in each field, and what it reached; None if nothing, and then `why`."""

    label: str
    places: tuple[int, ...]
    value: float | None
    why: str = ""
    step: Stats | None = None
    """The times of its steps, where the value is their median."""


@dataclass(frozen=True)
class Quantity:
    """What is compared, of which less is better: its name, a value of it as text, in a column, the words of an axis,
    and what a value is multiplied by to be drawn along it."""

    name: str
    text: Callable[[float], str]
    axis: str = ""
    scale: float = 1.0


def value_of(one: Tried) -> float:
    return math.inf if one.value is None else one.value


def best_of_each(field: int, known: Sequence[Tried]) -> dict[int, Tried]:
    """The run that reached the best value, by the place of its value of the field."""
    found: dict[int, Tried] = {}
    for one in sorted(known, key=value_of, reverse=True):
        found[one.places[field]] = one
    return dict(sorted(found.items()))


def title(fields: Sequence[Field], tried: Sequence[Tried], best: Tried, quantity: Quantity) -> str:
    """Which values are best, and what the worst value of each field costs, with the best of the others."""
    chosen = listed_text([field.at(at) for field, at in zip(fields, best.places, strict=True)])
    said = f"Lowest {quantity.name}: {quantity.text(value_of(best))}, with {chosen}."
    if value_of(best) <= 0:
        return said
    alone = [(field, _by_itself(i, tried, best)) for i, field in enumerate(fields) if len(best_of_each(i, tried)) > 1]
    spans = [Span(field.label, *_ends(own)) for field, own in alone if own]
    confounded = [field.label for field, own in alone if not own]
    were = "were not changed by themselves" if len(confounded) > 1 else "was not changed by itself"
    left = f"{listed_text(confounded)} {were}." if confounded else ""
    costs = _costs(spans, several=len(fields) > 1)
    # A value without a finite loss is worse than the worst that is counted.
    if costs and "loss" in quantity.name and any(one.why == NOT_FINITE for one in tried):
        costs = f"Of finite losses, {costs.replace('The worst', 'the worst', 1)}"
    return " ".join(filter(None, (said, costs, left)))


class Span(NamedTuple):
    """What a field changes: the best runs with its best and with its worst value."""

    label: str
    best: Tried
    worst: Tried

    @property
    def share(self) -> float:
        return value_of(self.worst) / value_of(self.best) - 1

    @property
    def within_noise(self) -> bool:
        """Whether these are times of steps that may be equal."""
        steps = self.worst.step, self.best.step
        return None not in steps and speedup(*filter(None, steps)).within_noise


def _ends(own: Mapping[int, Tried]) -> tuple[Tried, Tried]:
    return min(own.values(), key=value_of), max(own.values(), key=value_of)


def _costs(spans: Sequence[Span], several: bool) -> str:
    """What the worst value of each field gives, by the best run that has it; '' without any."""
    ordered = sorted(spans, key=lambda span: -span.share)
    if not ordered:
        return ""
    first, rest = ordered[0], ordered[1:]
    if rest and all(span.within_noise for span in ordered):
        return "What each field changes is within noise."
    others = "".join(f", that of {span.label} {_more(span)}" for span in rest)
    matters = (
        f"{first.label} matters most: its worst value" if rest else f"The worst value{f' of {first.label}' * several}"
    )
    return f"{matters} gives {_more(first)}{others}."


def _by_itself(field: int, tried: Sequence[Tried], best: Tried) -> dict[int, Tried]:
    """`best_of_each` of runs that differ in this field alone, or in others that were tried with every value of it; {}
    if there are none, since then other fields may be what makes the difference."""
    like: dict[tuple[int, ...], list[Tried]] = {}
    for one in tried:
        like.setdefault(_others(one, field), []).append(one)
    values = {one.places[field] for one in tried}
    whole = [own for own in like.values() if {one.places[field] for one in own} == values]
    groups = (
        [[one for own in whole for one in own]] if whole else sorted(like.values(), key=lambda own: best not in own)
    )
    found = (best_of_each(field, [one for one in own if one.value is not None]) for own in groups)
    return next((each for each in found if len(each) > 1), {})


def _others(one: Tried, field: int) -> tuple[int, ...]:
    """The places of its values of the other fields."""
    return one.places[:field] + one.places[field + 1 :]


def _more(span: Span) -> str:
    much = f"{1 + span.share:.1f} times as much" if span.share >= 1 else f"{percent_text(span.share)} more"
    return f"{much}{', within noise' * span.within_noise}"
