"""Errors of the rules between the fields of a spec, and their messages for the user."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from parallel_core.analysis.quantities import bound_text, plural_text, sentence_text, short_text

_MOST_SAID = 600
"""Longest message, in characters."""
UNKNOWN = "extra_forbidden"
"""pydantic's type of the error that a field does not exist."""
Say = Callable[[Mapping[str, Any], tuple[Any, ...]], tuple[str, str]]
"""Makes (dotted field, message) of one of pydantic's errors and its location."""
MAX_VALUES_NAMED = 6
"""The most values of a field that a message proposes."""


def divisors(n: int) -> list[int]:
    """All divisors of n (n >= 1), ascending."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def few(values: Iterable[int], around: int) -> str:
    """The values nearest to `around`, at most MAX_VALUES_NAMED, ascending, as text."""
    near = sorted(nearest(values, around)[:MAX_VALUES_NAMED])
    return ", ".join(map(str, near))


_VERBS = ("leave", "turn")
"""Verbs at the beginning of a proposal, which then needs no `use` before it."""


Change = Mapping[str, Any]
"""Dotted fields of a spec -> their new values."""


class Proposal(NamedTuple):
    """One way to fix an error: setting `field` to one of `values` (nearest first); `words` = its text, with the values
    at `{}`."""

    words: str
    field: str
    values: Sequence[Any]
    shown: int = 1
    """The most values that are shown."""
    spare: bool = False
    """Whether it is shown only if there is no other proposal."""
    also: Sequence[tuple[str, Any]] = ()
    """Other fields, and what each is set to together with `field`; `words` name them."""

    def among(self, fits: Callable[[Change], bool]) -> Proposal:
        """The proposal with only the first `shown` values that fit."""
        fitting: list[Any] = []
        for value in self.values:
            if len(fitting) == self.shown:
                break
            if fits({self.field: value, **dict(self.also)}):
                fitting.append(value)
        return self._replace(values=fitting)

    @property
    def text(self) -> str:
        shown = self.values[: self.shown]
        ordered = shown if any(isinstance(value, str) for value in shown) else sorted(shown)
        return self.words.format(", ".join(map(str, ordered)))


class Refusal(PydanticCustomError):
    """A rule's error with the proposals that fix it; `among` leaves those that break no other rule."""

    problem: str
    proposals: tuple[Proposal, ...]
    fields: tuple[str, ...]

    def among(self, *tests: Callable[[Change], bool]) -> Refusal:
        """The error with only the proposals that fit by the first of `tests` that any passes; unchanged if none."""
        for fits in tests:
            fitting = [one for one in (one.among(fits) for one in self.proposals) if one.values]
            shown = [one for one in fitting if not one.spare] or [one._replace(spare=False) for one in fitting]
            if shown:
                return refusal(self.fields, self.problem, *shown)
        return self


def refusal(fields: tuple[str, ...], problem: str, *proposals: Proposal) -> Refusal:
    """The error of a rule between fields; a form shows it at the first of them. `problem` ends with the word that leads
    to the proposals: `tp=3 does not divide heads=8; try`."""
    proposed = ", or ".join(proposal.text for proposal in proposals if not proposal.spare)
    begin = problem.removesuffix(" use") if proposed.startswith(_VERBS) else problem
    message = f"{begin} {proposed}."
    made = Refusal("rule", "{message}", {"message": message, "fields": list(fields)})
    made.problem, made.proposals, made.fields = problem, proposals, fields
    return made


def nearest(values: Iterable[int], around: int) -> list[int]:
    """The values, those nearest to `around` first."""
    return sorted(values, key=lambda value: abs(value - around))


def rule_error(fields: tuple[str, ...], message: str) -> PydanticCustomError:
    """The error of a rule between fields; a form shows it at the first of them."""
    return PydanticCustomError("rule", "{message}", {"message": message, "fields": list(fields)})


def describe(item: Mapping[str, Any], loc: tuple[Any, ...]) -> tuple[str, str]:
    """(dotted field, message) of one of pydantic's errors; `loc` = its location relative to the spec."""
    ctx: dict[str, Any] = item.get("ctx") or {}
    named = ctx.get("fields")
    field = named[0] if named else ".".join(str(part) for part in loc) or "spec"
    said = _say(str(item["type"]), item["msg"], _got(item), ctx)
    return short_text(field, _MOST_SAID), short_text(sentence_text(said), _MOST_SAID)  # they quote input of any length


def field_errors(error: ValidationError, say: Say = describe) -> dict[str, str]:
    """Dotted field name -> message, each as `say` puts it; the error of a rule between fields is under the first of
    them."""
    out: dict[str, str] = {}
    for item in error.errors(include_url=False):
        field, message = say(item, item["loc"])
        out.setdefault(field, message)
    return out


def _got(item: Mapping[str, Any]) -> str:
    """The given input for the end of a message; "" if the error does not include it (the API's do not)."""
    if "input" not in item:
        return ""
    value = item["input"]
    given = f"{value:.12g}" if isinstance(value, float) else value
    plain = str(given) if isinstance(value, int | float) else repr(value)
    return f"; got {'nothing' if value in ('', None) else plain[:40]}"


_NEEDED = {
    "int_": "A whole number",
    "float_": "A number",
    "finite_number": "A number",
    "bool_": "True or false",
    "list_type": "A list",
    "tuple_type": "A list",
    "string_type": "A text",
}
"""Prefix of pydantic's error type -> what is needed."""


NAME_OR_NONE = r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$"
MOMENT = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}(:[0-9]{2})?(Z|[+-][0-9]{2}:[0-9]{2})?)?$"
PATTERNS = {
    NAME_OR_NONE: "a name, not a path: at most 64 letters, digits, '.', '_' and '-', the first a letter or digit",
    MOMENT: "a date such as 2026-11-27, or a date and time such as 2026-11-27T12:30Z",
}
"""A field's pattern -> what it asks for, in words."""
_WORDS = {
    "string_unicode": "Has a character that is none of Unicode's{got}.",
    "literal_error": "Must be {expected}{got}.",
    "string_too_long": "At most {max_length} characters.",
    "string_pattern_mismatch": "Must be {words}{got}.",
    "too_long": "At most {max_length} entries.",
    "union_tag_invalid": "Must be {expected_tags}; got {tag!r}.",
    **dict.fromkeys(("model_type", "dict_type", "model_attributes_type"), "An object with named fields is needed."),
    **dict.fromkeys(("missing", "union_tag_not_found"), "This field is needed."),
    UNKNOWN: "There is no such field.",
}
"""pydantic's error type -> our message, with the error's context and the given input (`got`) filled in."""
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}
"""pydantic's error type -> the context's name of the bound, and how it is said."""


def _say(kind: str, message: str, got: str, ctx: dict[str, Any]) -> str:
    """The message for the user about one of pydantic's errors: what is wrong and what is needed."""
    if kind in _BOUNDS:
        return _bound_text(*_BOUNDS[kind], got, ctx)
    needed = next((what for start, what in _NEEDED.items() if kind.startswith(start)), None)
    if needed:
        return f"{needed} is needed{got}."
    if kind == "string_too_short":
        return f"At least {plural_text(ctx['min_length'], 'character')}."
    if kind == "too_short":
        return f"At least {ctx['min_length']} {'entry' if ctx['min_length'] == 1 else 'entries'}."
    if "pattern" in ctx:
        ctx = ctx | {"words": PATTERNS.get(ctx["pattern"], f"of the form {ctx['pattern']}")}
    return _WORDS[kind].format(got=got, **ctx) if kind in _WORDS else message


def _bound_text(bound: str, words: str, got: str, ctx: dict[str, Any]) -> str:
    given = got.replace("'", "")  # the number may have been given as text
    return f"Must be {words} {bound_text(ctx[bound])}{given}."
