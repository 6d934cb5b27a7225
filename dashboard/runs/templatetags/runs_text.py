"""Numbers and times of runs as text; None is an em dash everywhere."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms, template
from django.forms import BoundField
from django.forms.boundfield import BoundWidget

from dashboard.ages import since
from dashboard.runs.models import Run
from dashboard.runs.page_verdict import disturbance, target_of
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
def seconds_text(value: Any) -> str:
    """Seconds in the unit that fits: 48 ms."""
    return NOTHING if value is None else quantities.seconds_text(value)


@register.filter
def number_text(value: Any) -> str:
    """Three significant digits."""
    return NOTHING if value is None else quantities.significant(value)


@register.filter
def loss_text(run: Run) -> str:
    """The newest loss; in words where it is no number any more."""
    return "not finite" if run.diverged else number_text(run.loss)


@register.filter
def throughput(run: Run) -> str:
    """`18.2 k tokens/s`: of the median step once a run has ended, of the newest one before."""
    if run.tokens_per_s is None:
        return NOTHING
    outline = _outline(run)
    return quantities.rate_text(run.tokens_per_s, outline.target if outline else target_of(run))


@register.filter
def model_title(run: Run) -> str:
    """Of a row of a list: what it trains, in few words: GPT 4 x 128; `, bf16` where that is not in fp32."""
    outline, precision = _outline(run), getattr(run, "precision", None)
    if outline is None or run.between:
        return NOTHING
    return outline.title if precision in (None, "fp32") else f"{outline.title}, {precision}"


def _outline(run: Run) -> Outline | None:
    """Of a row of a list, which leaves specs out but for the model's part; None of any other."""
    model = getattr(run, "model", None)
    return outline_of(ModelSpec.model_validate(model)) if model else None


@register.filter
def disturbed(run: Run) -> str:
    """Of a row of a list: why its timing is to be read with care, '' where it is not."""
    return disturbance(getattr(run, "others", None))


@register.filter
def age(value: datetime | None) -> str:
    """'3 min', '2 d', 'now': how long ago, one unit; it goes on counting."""
    return NOTHING if value is None else since(value, "short")


@register.filter
def ago(value: datetime | None) -> str:
    """'3 min ago', 'just now'; it goes on counting."""
    return NOTHING if value is None else since(value, "ago")


@register.filter
def first_line(errors: Any) -> str:
    """Of what is wrong with a field: the sentence; `other_lines` is what shows the place."""
    return " ".join(errors).partition("\n")[0]


@register.filter
def other_lines(errors: Any) -> str:
    """Lines that must not be folded, such as the grid of a schedule; '' of most errors."""
    return " ".join(errors).partition("\n")[2]


@register.filter
def wrong_fields(form: forms.BaseForm) -> list[BoundField]:
    """Those of its fields of which something is said to be wrong."""
    return [field for field in form if field.errors]


@register.filter
def first_input(field: BoundField) -> str:
    """The id of the element that takes the focus for it: of several boxes the first one."""
    return field.id_for_label or field.subwidgets[0].id_for_label


@register.filter
def box_groups(field: BoundField) -> list[tuple[str, list[BoundWidget]]]:
    """Its boxes by the name of the group that they stand in, '' of those in none."""
    listed = getattr(field.field, "choices", ())
    names = {str(key): name for name, inner in listed if isinstance(inner, list | tuple) for key, _ in inner}
    groups: dict[str, list[BoundWidget]] = {}
    for box in field.subwidgets:
        groups.setdefault(names.get(str(box.data["value"]), ""), []).append(box)
    return list(groups.items())


HALF_A_PHONE = 14
"""Characters of a choice that a list shows whole in half the width of a phone."""


@register.filter
def long_choices(field: BoundField) -> bool:
    """Whether it is a list to choose from of which some choice needs a line of its own on a phone."""
    if not isinstance(field.field.widget, forms.Select) or isinstance(field.field.widget, forms.SelectMultiple):
        return False
    options = (option for _, group, _ in field.field.widget.optgroups("", []) for option in group)
    return any(len(str(option["label"])) > HALF_A_PHONE for option in options)
