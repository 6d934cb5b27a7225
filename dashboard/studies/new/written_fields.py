"""Form fields of what a person writes into the form of a study. Each is cleaned to the texts, or pairs of texts, that
its settings keep (`written`), and shows such a value again as it can be typed."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from django import forms

from dashboard.fields import MOST_NUMBERS
from dashboard.studies.new.written import Again, OwnSchedule, StageSplit, read_schedules, schedules_text
from parallel_core.analysis.quantities import count_text

MOST_WRITTEN = 16 * 1024
"""The most characters of a field. A list of all layers of the deepest model has about 6 000."""


class Written(forms.CharField):
    """A list of texts, each once and in their order; what cannot be read is refused with the reason."""

    apart: ClassVar[str]
    """Pattern of what stands between two of them."""
    joint: ClassVar[str]
    widget = forms.TextInput(attrs={"autocomplete": "off"})

    def read(self, text: str) -> Any:
        """What one of them means; `str` of it is its text. Raises ValueError."""
        raise NotImplementedError

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value) or ""
        if len(text) > MOST_WRITTEN:  # not `max_length`, which would be that of the list
            raise forms.ValidationError(
                f"Write at most {count_text(MOST_WRITTEN)} characters; these are {count_text(len(text))}."
            )
        parts = [part.strip() for part in re.split(self.apart, text)]
        try:
            unique = list(dict.fromkeys(str(self.read(part)) for part in parts if part))
        except ValueError as error:
            raise forms.ValidationError(str(error)) from error
        if len(unique) > MOST_NUMBERS:
            raise forms.ValidationError(f"Write at most {MOST_NUMBERS} of them; these are {len(unique)}.")
        return unique

    def prepare_value(self, value: Any) -> Any:
        return self.joint.join(value) if isinstance(value, list) else value


class StageSplits(Written):
    """Splits by stage, with commas between them: `2-1, 2x1-1x2`."""

    apart = r"[,;\n]"
    joint = ", "

    def read(self, text: str) -> StageSplit:
        return StageSplit.read(text)


class LayerLists(Written):
    """Lists of layers that recompute, with semicolons between them: `0, 2; selective 1`."""

    apart = r"[;\n]"
    joint = "; "

    def read(self, text: str) -> Again:
        return Again.read(text)


class OwnSchedules(forms.CharField):
    """Schedules as CSV or JSON, cleaned to pairs of name and program."""

    widget = forms.Textarea(attrs={"rows": 4, "spellcheck": "false", "autocomplete": "off"})

    def to_python(self, value: Any) -> Any:
        try:
            found = read_schedules(super().to_python(value) or "")
        except ValueError as error:
            raise forms.ValidationError(str(error)) from error
        return [[own.name, own.program] for own in found]

    def prepare_value(self, value: Any) -> Any:
        return schedules_text([OwnSchedule(*each) for each in value]) if isinstance(value, list) else value
