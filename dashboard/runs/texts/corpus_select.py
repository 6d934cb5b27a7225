"""The choice of a corpus, of which the browser offers those that the chosen kind of model can be trained on."""

from __future__ import annotations

from typing import Any

from django import forms

from dashboard.runs.form import relevance
from dashboard.runs.form.entry import html_name


class CorpusSelect(forms.Select):
    """Options that name, in `data-only-for`, the field of the model's kind and the kinds that take the corpus
    (static/js/shown_for.js)."""

    def create_option(self, name: str, value: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        option = super().create_option(name, value, *args, **kwargs)
        option["attrs"]["data-only-for"] = " ".join((html_name("model.kind"), *relevance.takers(str(value))))
        return option
