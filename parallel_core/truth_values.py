"""Refuses true and false where a spec has a number: pydantic would read them as 1 and 0."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from parallel_core.rules import rule_error


def refuse_as_numbers(spec: type[BaseModel], data: dict[str, Any]) -> None:
    """Raises the error of the first field `section.name` of `data` that has true or false although `spec` has a number
    there."""
    for section, values in data.items():
        if not isinstance(values, dict) or section not in spec.model_fields:
            continue
        for name, value in values.items():
            if isinstance(value, bool) and name in _numbers(spec, section):
                raise rule_error((f"{section}.{name}",), f"A number is needed; got {value}.")


@lru_cache
def _numbers(spec: type[BaseModel], section: str) -> frozenset[str]:
    """The fields of a section, which may be one of several models, that take a number but neither true nor false."""
    kinds: dict[str, set[type]] = {}
    for model in _parts(spec.model_fields[section].annotation):
        if issubclass(model, BaseModel):
            for name, field in model.model_fields.items():
                kinds.setdefault(name, set()).update(_parts(field.annotation))
    return frozenset(name for name, found in kinds.items() if found & {int, float} and bool not in found)


def _parts(annotation: Any) -> Iterator[type]:
    """The types of which an annotation consists, as `int` and `NoneType` of `Annotated[int, ...] | None`."""
    if isinstance(annotation, type):
        yield annotation
    if get_origin(annotation) in (Annotated, Union, UnionType):
        for part in get_args(annotation):
            yield from _parts(part)
