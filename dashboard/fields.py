"""Form fields whose error messages name the field, what would be right, and what was given."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from django import forms

from parallel_core import limits
from parallel_core.analysis.quantities import bound_text, count_text, sentence_text

MOST_SHOWN = 24
"""Characters of a wrong value that a message repeats."""
_NEAREST = 4
"""The most choices that a message names."""


class Described(forms.BoundField):
    """A field that refers to its hint and its error message, as `parts/field.html` names them."""

    @property
    def aria_describedby(self) -> str | None:
        if self.field.widget.attrs.get("aria-describedby"):
            return None  # the form's own
        return f"help-{self.html_name} error-{self.html_name}" if self.help_text else f"error-{self.html_name}"


class Form(forms.Form):
    """A form whose error messages are whole sentences, even those of the engine, which are written to stand after a
    colon."""

    bound_field_class = Described

    def add_error(self, field: str | None, error: Any) -> None:
        super().add_error(field, error)
        for errors in self.errors.values():
            for one in errors.as_data():
                if isinstance(one.message, str):
                    one.message = sentence_text(one.message)


class _Said(forms.Field):
    """A field with one message for anything that is wrong, instead of Django's."""

    def clean(self, value: Any) -> Any:
        try:
            return super().clean(value)
        except forms.ValidationError:
            raise forms.ValidationError(self._sentence(value)) from None

    def _sentence(self, value: Any) -> str:
        given = str(value if value is not None else "").strip()
        shown = given if len(given) <= MOST_SHOWN else f"{given[:MOST_SHOWN]}…"
        return f"{self.label or 'This'} must be {self._right(given)}; got {shown or 'nothing'}."

    def _right(self, given: str) -> str:
        """Describes a right value, as the object of "must be"; may use what was `given`."""
        raise NotImplementedError


class WholeNumber(_Said, forms.IntegerField):
    """An integer field whose message gives the allowed range."""

    def _right(self, given: str) -> str:
        return f"a whole number{_between(self.min_value, self.max_value)}"


class Number(_Said, forms.FloatField):
    """A float field whose message gives the allowed range."""

    def _right(self, given: str) -> str:
        return f"a number{_between(self.min_value, self.max_value)}"


class Choice(_Said, forms.ChoiceField):
    """A choice field whose message names the choices most similar to what was given."""

    def _right(self, given: str) -> str:
        keys = [str(key) for key in _flat(self.choices) if key]
        near = get_close_matches(given, keys, _NEAREST, 0.0)
        *most, last = [key for key in keys if key in near] or ["none"]
        listed = f"{', '.join(most)} or {last}" if most else last
        return f"one of {len(keys)} names, such as {listed}" if len(keys) > len(near) else listed


class TypedChoice(Choice, forms.TypedChoiceField):
    pass


LISTED = "Write whole numbers with commas between them, such as 2, 4, 8."
MOST_NUMBERS = 64
"""The most numbers of a list: each multiplies the runs of a study."""


class NumberList(forms.CharField):
    """At most MOST_NUMBERS whole numbers from 1 on, separated by commas or spaces; each once, in their order."""

    default_error_messages = {"required": LISTED}

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value) or ""
        try:
            numbers = [int(part) for part in text.replace(",", " ").split()]
        except ValueError:
            raise forms.ValidationError(LISTED) from None
        if any(not 1 <= n <= limits.MAX_MICRO_BATCHES for n in numbers):
            raise forms.ValidationError(f"Each must be from 1 to {count_text(limits.MAX_MICRO_BATCHES)}.")
        unique = list(dict.fromkeys(numbers))
        if len(unique) > MOST_NUMBERS:
            raise forms.ValidationError(f"Write at most {MOST_NUMBERS} different numbers; these are {len(unique)}.")
        return unique

    def prepare_value(self, value: Any) -> Any:
        return ", ".join(map(str, value)) if isinstance(value, list) else value


def _between(least: Any, most: Any) -> str:
    low, high = ("" if bound is None else bound_text(bound) for bound in (least, most))
    if low and high:
        return f" from {low} to {high}"
    return f" of at least {low}" if low else f" of at most {high}" if high else ""


def _flat(choices: Any) -> Iterator[Any]:
    """Yields the keys of choices, including those inside groups."""
    for key, label in choices:
        yield from _flat(label) if isinstance(label, list | tuple) else (key,)
