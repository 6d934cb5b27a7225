"""Refuses true and false where a number is needed: pydantic would read them as 1 and 0. What was JSON, which has types
of its own, is refused a text for a number, too, and anything else for true and false."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, model_validator

from parallel_core.rules import rule_error


class NumbersAreNumbers(BaseModel):
    """A model that refuses true and false for its numbers, those in lists, and those of the models in its fields."""

    @model_validator(mode="before")
    @classmethod
    def _numbers(cls, data: Any) -> Any:
        if isinstance(data, dict):
            _refuse((cls,), data, "")
        return data


class TypesOfJson(NumbersAreNumbers):
    """A model whose input was JSON: no text is a number for it, and only true and false are truth values. So it is in
    its lists and in the models of its fields. All such values are named at once, each at its place."""

    @model_validator(mode="before")
    @classmethod
    def _types(cls, data: Any) -> Any:
        return _unconverted((cls,), data) if isinstance(data, dict) else data


class _Takes(NamedTuple):
    """What a field takes: the types of its value and of the items of its list; the models among them."""

    itself: frozenset[type]
    items: frozenset[type]
    models: tuple[type[BaseModel], ...]

    @property
    def unchecked(self) -> tuple[type[BaseModel], ...]:
        """Those that do not refuse true and false by themselves."""
        return tuple(model for model in self.models if not issubclass(model, NumbersAreNumbers))


_NESTED = (dict, list, tuple)
_OTHER = object()
"""Stands for a value of another type than its field's: pydantic converts it to nothing, and so says what is needed."""


def _unconverted(models: tuple[type[BaseModel], ...], data: dict[str, Any]) -> dict[str, Any]:
    """Returns the data of one of `models` with `_OTHER` for each value that pydantic would convert."""
    fields = _fields(models)
    return {name: _typed(fields[name], value) if name in fields else value for name, value in data.items()}


def _typed(takes: _Takes, value: Any) -> Any:
    if isinstance(value, list):
        return [_alone(takes.items, takes.models, item) for item in value]
    return _alone(takes.itself, takes.models, value)


def _alone(kinds: frozenset[type], models: tuple[type[BaseModel], ...], value: Any) -> Any:
    if isinstance(value, dict):
        return _unconverted(models, value)
    number, truth = bool(kinds & {int, float}), bool in kinds
    if isinstance(value, str):
        return _OTHER if (number or truth) and str not in kinds else value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return _OTHER if is_number and truth and not number else value


def _refuse(models: tuple[type[BaseModel], ...], data: dict[str, Any], at: str) -> None:
    """Raises the error of the first field of `data`, which is of one of `models`, that has true or false although it
    needs a number; `at` leads to `data`."""
    fields = _fields(models)
    for name, value in data.items():
        takes = fields.get(name)
        if takes is None:
            continue
        if value is True or value is False:
            if _only_numbers(takes.itself):
                raise rule_error((at + name,), f"A number is needed; got {value}.")
        elif not isinstance(value, _NESTED):  # most values: pages read hundreds of specs
            continue
        elif isinstance(value, list | tuple):
            _refuse_items(takes, value, at + name)
        elif takes.unchecked:
            _refuse(takes.unchecked, value, f"{at}{name}.")


def _refuse_items(takes: _Takes, values: list[Any] | tuple[Any, ...], at: str) -> None:
    for i, value in enumerate(values):
        if isinstance(value, bool) and _only_numbers(takes.items):
            raise rule_error((f"{at}.{i}",), f"A number is needed; got {value}.")
        if isinstance(value, dict) and takes.unchecked:
            _refuse(takes.unchecked, value, f"{at}.{i}.")


@lru_cache
def _fields(models: tuple[type[BaseModel], ...]) -> dict[str, _Takes]:
    """The fields of a section that may be any of several models."""
    found: dict[str, list[Any]] = {}
    for model in models:
        for name, field in model.model_fields.items():
            found.setdefault(name, []).append(field.annotation)
    return {name: _takes(annotations) for name, annotations in found.items()}


def _takes(annotations: list[Any]) -> _Takes:
    itself = frozenset(kind for annotation in annotations for kind in _parts(annotation))
    items = frozenset(kind for annotation in annotations for kind in _parts(annotation, inside=True))
    models = sorted((kind for kind in itself | items if issubclass(kind, BaseModel)), key=lambda kind: kind.__name__)
    return _Takes(itself, items, tuple(models))


def _only_numbers(kinds: frozenset[type]) -> bool:
    return bool(kinds & {int, float}) and bool not in kinds


def _parts(annotation: Any, inside: bool = False) -> Iterator[type]:
    """The types of which an annotation consists, as `int` and `NoneType` of `Annotated[int, ...] | None`; `inside`:
    those of the items of its lists."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        if not inside:
            yield annotation
        return
    origin = get_origin(annotation)
    if origin is Literal and not inside:
        yield from {type(value) for value in get_args(annotation)}
    elif origin in (Annotated, Union, UnionType):
        for part in get_args(annotation)[: 1 if origin is Annotated else None]:
            yield from _parts(part, inside)
    elif inside and origin in (list, tuple):
        for part in get_args(annotation):
            yield from _parts(part)
