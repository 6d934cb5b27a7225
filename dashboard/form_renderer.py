"""Writes the widgets of forms without templates: a form of a hundred fields spent most of its time in those of Django,
one for each widget, one for its attributes, and two for each of its choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from django.forms.renderers import DjangoTemplates
from django.http import HttpRequest
from django.utils.safestring import SafeString

INPUTS = ("text", "number", "hidden", "password", "email", "checkbox", "file", "radio_option", "checkbox_option")
FOLDER = "django/forms/widgets"


class Renderer(DjangoTemplates):
    """Writes the commonest widgets as Django's templates do, without their empty lines, and leaves others to these."""

    def render(self, template_name: str, context: dict[str, Any], request: HttpRequest | None = None) -> SafeString:
        write, widget = _WRITERS.get(template_name), context.get("widget")
        if write is None or not widget or widget.get("wrap_label"):
            return SafeString(super().render(template_name, context, request))
        return SafeString(write(widget))


def _text(value: Any) -> str:
    return value if isinstance(value, SafeString) else escape(str(value))


def _attributes(attrs: Mapping[str, Any]) -> str:
    """True stands for an attribute without a value, False for none."""
    written = ((_text(name), value) for name, value in attrs.items() if value is not False)
    return "".join(f" {name}" if value is True else f' {name}="{_text(value)}"' for name, value in written)


def _input(widget: Mapping[str, Any]) -> str:
    value = "" if (given := widget.get("value")) is None else f' value="{_text(given)}"'
    return f'<input type="{_text(widget["type"])}" name="{_text(widget["name"])}"{value}{_attributes(widget["attrs"])}>'


def _textarea(widget: Mapping[str, Any]) -> str:
    text = _text(given) if (given := widget.get("value")) else ""
    return f'<textarea name="{_text(widget["name"])}"{_attributes(widget["attrs"])}>\n{text}</textarea>'


def _select(widget: Mapping[str, Any]) -> str:
    parts = [f'<select name="{_text(widget["name"])}"{_attributes(widget["attrs"])}>']
    for name, options, _ in widget["optgroups"]:
        parts += [f'\n  <optgroup label="{_text(name)}">'] if name else []
        parts += [f"\n  {_option(option)}" for option in options]
        parts += ["\n  </optgroup>"] if name else []
    return "".join([*parts, "\n</select>"])


def _option(option: Mapping[str, Any]) -> str:
    attributes = _attributes(option["attrs"])
    return f'<option value="{_text(option["value"])}"{attributes}>{_text(option["label"])}</option>'


_WRITERS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    **{f"{FOLDER}/{name}.html": _input for name in INPUTS},
    f"{FOLDER}/textarea.html": _textarea,
    f"{FOLDER}/select.html": _select,
}
