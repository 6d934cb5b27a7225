"""Template filters: numbers and times of runs as text; None is an em dash."""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from typing import Any

from django import forms, template
from django.forms import BoundField
from django.forms.boundfield import BoundWidget

from dashboard.ages import since
from dashboard.happened import Happened
from dashboard.runs.form.form_words import in_ended_words
from dashboard.runs.models import ENDED, Attempt, Event, Run
from dashboard.runs.page.verdict import disturbance, target_of
from parallel_core.analysis import quantities
from parallel_core.model_spec import ModelSpec
from parallel_core.outline import Outline, outline_of

register = template.Library()
NOTHING = "—"


@register.filter
def bytes_text(value: Any) -> str:
    """Bytes in the unit that fits: 31 MiB."""
    return NOTHING if value is None else quantities.bytes_text(value)


@register.filter
def number_text(value: Any) -> str:
    """Three significant digits, for a column."""
    return NOTHING if value is None else quantities.significant(value, zeros=True)


@register.filter
def loss_text(run: Run) -> str:
    """The newest loss; in words if it is not finite."""
    return "not finite" if run.diverged else number_text(run.loss)


@register.filter
def end_words(ended: Run | Attempt) -> str:
    """The detail of a run or an attempt, with fields called as in forms."""
    return in_ended_words(ended.detail, ended.cause)


@register.filter
def event_words(event: Happened) -> str:
    """The text of an event; where it is the end of an attempt, as `end_words`."""
    if not isinstance(event, Event) or event.attempt is None or event.kind not in ENDED:
        return event.text
    return in_ended_words(event.text, event.attempt.cause)


@register.filter
def throughput(run: Run) -> str:
    """`18.2 k tokens/s`: of the median step once a run has ended, of the newest step before."""
    if run.tokens_per_s is None:
        return NOTHING
    outline = _outline(run)
    return quantities.rate_text(run.tokens_per_s, outline.target if outline else target_of(run), zeros=True)


@register.filter
def model_title(run: Run) -> str:
    """What a run in a list trains, in few words: GPT 4 x 128; with `, bf16` etc. unless it is fp32."""
    outline, precision = _outline(run), getattr(run, "precision", None)
    if outline is None or run.between:
        return NOTHING
    return outline.title if precision in (None, "fp32") else f"{outline.title}, {precision}"


def _outline(run: Run) -> Outline | None:
    """The outline for a run of a list, which has only the model's part of the spec; None for any other."""
    model = getattr(run, "model", None)
    return _outline_of(json.dumps(model)) if model else None


@lru_cache(maxsize=1024)  # the runs of a list have few models, each of which is asked for twice a row
def _outline_of(model: str) -> Outline:
    return outline_of(ModelSpec.model_validate(json.loads(model)))


@register.filter
def disturbed(run: Run) -> str:
    """For a run of a list: why its timing is to be read with care; else ''."""
    return disturbance(getattr(run, "others", None), run.devices)


@register.filter
def age(value: datetime | None) -> str:
    """'3 min', '2 d', 'now': how long ago, in one unit; kept up to date on the page."""
    return NOTHING if value is None else since(value, "short")


@register.filter
def ago(value: datetime | None) -> str:
    """'3 min ago', 'just now'; kept up to date on the page."""
    return NOTHING if value is None else since(value, "ago")


@register.filter
def first_line(errors: Any) -> str:
    """The sentence of a field's errors; `other_lines` are the lines that show the place."""
    return " ".join(errors).partition("\n")[0]


@register.filter
def other_lines(errors: Any) -> str:
    """Lines of a field's errors that must not be wrapped, such as the grid of a schedule; '' for most errors."""
    return " ".join(errors).partition("\n")[2]


@register.filter
def wrong_fields(form: forms.BaseForm) -> list[BoundField]:
    """The form's fields that have errors."""
    return [field for field in form if field.errors]


@register.filter
def first_input(field: BoundField) -> str:
    """The id of the element to focus for the field: of several boxes, the first."""
    return field.id_for_label or field.subwidgets[0].id_for_label


@register.filter
def box_groups(field: BoundField) -> list[tuple[str, list[BoundWidget]]]:
    """The field's boxes by the name of their group, '' for those in none."""
    listed = getattr(field.field, "choices", ())
    names = {str(key): name for name, inner in listed if isinstance(inner, list | tuple) for key, _ in inner}
    groups: dict[str, list[BoundWidget]] = {}
    for box in field.subwidgets:
        groups.setdefault(names.get(str(box.data["value"]), ""), []).append(box)
    return list(groups.items())


HALF_A_PHONE = 14
"""Characters of a choice that a list half as wide as a phone shows whole."""


@register.filter
def long_choices(field: BoundField) -> bool:
    """Whether the field is a list with a choice that needs a line of its own on a phone."""
    if not isinstance(field.field.widget, forms.Select) or isinstance(field.field.widget, forms.SelectMultiple):
        return False
    options = (option for _, group, _ in field.field.widget.optgroups("", []) for option in group)
    return any(len(str(option["label"])) > HALF_A_PHONE for option in options)
