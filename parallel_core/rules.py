"""What rules between the fields of a spec are made of, and what their errors say to a person."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from parallel_core.analysis.quantities import plural_text, sentence_text

_MOST_SAID = 600
"""Characters of a message."""


def divisors(n: int) -> list[int]:
    """All divisors of n (n >= 1), ascending."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def few(values: Iterable[int], around: int) -> str:
    """The (at most six) values nearest to `around`, as text."""
    near = sorted(sorted(values, key=lambda v: abs(v - around))[:6])
    return ", ".join(map(str, near))


def rule(fields: tuple[str, ...], message: str) -> PydanticCustomError:
    """An error of a rule between fields; the first named field is where a form shows it."""
    return PydanticCustomError("rule", "{message}", {"message": message, "fields": list(fields)})


def field_errors(error: ValidationError) -> dict[str, str]:
    """`{dotted field name: message}`; a rule between fields is filed under the first field it names."""
    out: dict[str, str] = {}
    for item in error.errors(include_url=False):
        field, message = describe(item, item["loc"])
        out.setdefault(field, message)
    return out


def describe(item: Mapping[str, Any], loc: tuple[Any, ...]) -> tuple[str, str]:
    """(dotted field, message) of one of pydantic's errors; `loc` is where it happened as seen from the spec."""
    ctx: dict[str, Any] = item.get("ctx") or {}
    named = ctx.get("fields")
    field = named[0] if named else ".".join(str(part) for part in loc) or "spec"
    said = _say(str(item["type"]), item["msg"], _got(item), ctx)
    return _cut(field), _cut(sentence_text(said))


def _cut(text: str) -> str:
    """What is given may be of any length; what is said of it may not."""
    return text if len(text) <= _MOST_SAID else f"{text[: _MOST_SAID - 1]}…"


def _got(item: Mapping[str, Any]) -> str:
    """What was given, for the end of a message; "" where the error does not tell (the API's do not)."""
    if "input" not in item:
        return ""
    value = item["input"]
    plain = str(value) if isinstance(value, int | float) else repr(value)
    return f"; got {'nothing' if value in ('', None) else plain[:40]}"


_NEEDED = {
    "int_": "A whole number",
    "float_": "A number",
    "finite_number": "A number",
    "bool_": "True or false",
    "tuple_type": "A list",
    "string_type": "A text",
}
"""By how pydantic's name of the error begins."""


def _say(kind: str, message: str, got: str, ctx: dict[str, Any]) -> str:
    """Pydantic's errors in words for a person: what is wrong and what would be right."""
    bounds = {"greater_than_equal": "ge", "greater_than": "gt", "less_than_equal": "le", "less_than": "lt"}
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    if kind in bounds:
        bound = bounds[kind]
        given = got.replace("'", "")  # a number that came as text
        limit = ctx[bound]
        whole = isinstance(limit, float) and limit.is_integer()
        return f"Must be {words[bound]} {int(limit) if whole else limit}{given}."
    if kind == "string_unicode":
        return f"Has a character that is none of Unicode's{got}."
    needed = next((what for start, what in _NEEDED.items() if kind.startswith(start)), None)
    if needed:
        return f"{needed} is needed{got}."
    if kind == "literal_error":
        return f"Must be {ctx['expected']}{got}."
    if kind == "string_too_long":
        return f"At most {ctx['max_length']} characters."
    if kind == "string_too_short":
        return f"At least {plural_text(ctx['min_length'], 'character')}."
    if kind == "string_pattern_mismatch":
        return f"Must be of the form {ctx['pattern']}{got}."
    if kind == "too_long":
        return f"At most {ctx['max_length']} entries."
    if kind == "union_tag_invalid":
        return f"Must be {ctx['expected_tags']}; got {ctx['tag']!r}."
    if kind in ("model_type", "dict_type", "model_attributes_type"):
        return "An object with named fields is needed."
    if kind in ("missing", "union_tag_not_found"):
        return "This field is needed."
    if kind == "extra_forbidden":
        return "There is no such field."
    return message
