"""Widgets are written without templates, but for empty lines as Django's own templates write them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django import forms
from django.forms.renderers import DjangoTemplates
from django.test import Client
from django.utils.safestring import mark_safe

from dashboard.form_renderer import Renderer

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url")]
TOKEN = re.compile(r'(name="csrfmiddlewaretoken" value=")[^"]*')
ODD = ("a \"quoted\" <b> & 'it'", mark_safe("&lt;told&gt;"), "", 0, 7, 2.5, None, False, True)
"""Values of every kind; those of a checkbox are true or false."""
CHOICES = [("", "none"), ("<a>", "A & B"), (3, 3), ("group", [("x", "X"), ("y", mark_safe("<i>Y</i>"))])]


def _compared(text: str) -> str:
    return re.sub(r"\n\n+", "\n", TOKEN.sub(r"\1", text))


@pytest.mark.parametrize(
    "address",
    [
        *("/runs/new/", "/studies/new/", "/studies/new/?kind=scaling", "/planner/", "/planner/crossover/"),
        *("/planner/judge/", "/partition/graph/", "/schedules/", "/accounts/tokens/", "/accounts/password/"),
    ],
)
def test_pages_with_forms_are_what_django_writes(member: Client, settings: Any, worker: Any, address: str) -> None:
    ours = member.get(address).content.decode()
    settings.FORM_RENDERER = "django.forms.renderers.DjangoTemplates"
    theirs = member.get(address).content.decode()
    assert "<input" in ours and _compared(ours.partition("<main")[2]) == _compared(theirs.partition("<main")[2])


@pytest.mark.parametrize("value", ODD, ids=repr)
@pytest.mark.parametrize(
    "widget",
    [
        *(kind() for kind in (forms.TextInput, forms.NumberInput, forms.HiddenInput, forms.PasswordInput)),
        *(kind() for kind in (forms.CheckboxInput, forms.FileInput, forms.Textarea, forms.EmailInput)),
        *(kind(choices=CHOICES) for kind in (forms.Select, forms.RadioSelect, forms.CheckboxSelectMultiple)),
    ],
    ids=lambda widget: type(widget).__name__,
)
def test_any_value_is_written_as_django_writes_it(widget: forms.Widget, value: Any) -> None:
    attrs = {"id": "f-it", "required": True, "disabled": False, "data-n": 3, "title": ODD[0], "data-safe": ODD[1]}
    written = [widget.render("the<name>", value, attrs, renderer) for renderer in (Renderer(), DjangoTemplates())]
    assert _compared(written[0]) == _compared(written[1])


def test_a_box_of_its_own_is_written_as_django_writes_it() -> None:
    """As `parts/field.html` shows them, beside a label of ours."""

    def boxes(renderer: DjangoTemplates) -> list[str]:
        class Form(forms.Form):
            default_renderer = renderer
            which = forms.MultipleChoiceField(choices=CHOICES, widget=forms.CheckboxSelectMultiple)

        return [box.tag() for box in Form(initial={"which": ["x"]})["which"]]

    assert boxes(Renderer()) == boxes(DjangoTemplates()) and "checked" in "".join(boxes(Renderer()))


def test_new_run_fills_in_no_template_for_a_widget(member: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was 116 of them, with one more for the attributes of each and two for each choice."""
    filled: list[str] = []

    def note(self: object, name: str) -> None:
        filled.append(name)
        raise AssertionError(name)

    monkeypatch.setattr(DjangoTemplates, "get_template", note)
    assert member.get("/runs/new/").status_code == 200 and not filled
