"""Refuses true and false where a number is needed: pydantic would read them as 1 and 0."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

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


class _Numbers(NamedTuple):
    """What a field takes: numbers but neither true nor false, as its value or in a list; fields of `models`."""

    itself: bool
    items: bool
    models: tuple[type[BaseModel], ...]


def _refuse(models: tuple[type[BaseModel], ...], data: dict[str, Any], at: str) -> None:
    """Raises the error of the first field of `data`, which is of one of `models`, that has true or false although it
    needs a number; `at` leads to `data`."""
    fields = _fields(models)
    for name, value in data.items():
        takes = fields.get(name)
        if takes is None:
            continue
        if takes.itself and isinstance(value, bool):
            raise rule_error((at + name,), f"A number is needed; got {value}.")
        if takes.models and isinstance(value, dict):
            _refuse(takes.models, value, f"{at}{name}.")
        if isinstance(value, list | tuple):
            _refuse_items(takes, value, at + name)


def _refuse_items(takes: _Numbers, values: list[Any] | tuple[Any, ...], at: str) -> None:
    for i, value in enumerate(values):
        if takes.items and isinstance(value, bool):
            raise rule_error((f"{at}.{i}",), f"A number is needed; got {value}.")
        if takes.models and isinstance(value, dict):
            _refuse(takes.models, value, f"{at}.{i}.")


@lru_cache
def _fields(models: tuple[type[BaseModel], ...]) -> dict[str, _Numbers]:
    """The fields of a section that may be any of several models; those that check themselves are left to that."""
    found: dict[str, list[Any]] = {}
    for model in models:
        for name, field in model.model_fields.items():
            found.setdefault(name, []).append(field.annotation)
    return {name: _numbers(annotations) for name, annotations in found.items()}


def _numbers(annotations: list[Any]) -> _Numbers:
    itself = {kind for annotation in annotations for kind in _parts(annotation)}
    items = {kind for annotation in annotations for kind in _parts(annotation, inside=True)}
    made = (kind for kind in itself | items if issubclass(kind, BaseModel))
    nested = tuple(sorted((kind for kind in made if not issubclass(kind, NumbersAreNumbers)), key=lambda k: k.__name__))
    return _Numbers(_only_numbers(itself), _only_numbers(items), nested)


def _only_numbers(kinds: set[type]) -> bool:
    return bool(kinds & {int, float}) and bool not in kinds


def _parts(annotation: Any, inside: bool = False) -> Iterator[type]:
    """The types of which an annotation consists, as `int` and `NoneType` of `Annotated[int, ...] | None`; `inside`:
    those of the items of its lists."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        if not inside:
            yield annotation
        return
    origin = get_origin(annotation)
    if origin in (Annotated, Union, UnionType):
        for part in get_args(annotation)[: 1 if origin is Annotated else None]:
            yield from _parts(part, inside)
    elif inside and origin in (list, tuple):
        for part in get_args(annotation):
            yield from _parts(part)
