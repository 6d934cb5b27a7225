"""Form fields of what text to generate, shared by the form of one run and that of a study."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms

from dashboard.fields import Form
from dashboard.runs.generation import generating
from parallel_core import limits
from parallel_core.model_spec import BYTES

MOST_AT_FIRST = 64
"""The form's initial number of tokens to generate; fewer if the model's sequence is short."""
NUMBER = {"inputmode": "numeric", "autocomplete": "off"}
"""Attributes of the input of a number."""
ASKED = ("new", "samples", "temperature", "top_k", "seed")
"""The fields of a TextRequest besides the prompt."""


class TextFields(Form):
    """Numbers are text fields, so that what was typed is kept and named in messages; `read_request` validates them."""

    prompt = forms.CharField(
        label="Prompt",
        max_length=limits.MAX_PROMPT,
        strip=False,
        required=False,
        widget=forms.Textarea(attrs={"rows": 4, "spellcheck": "false"}),
    )
    new = forms.CharField(label="Tokens to generate", initial=str(MOST_AT_FIRST), required=False)
    samples = forms.CharField(label="Texts", initial="1", required=False, help_text="of the same prompt, at a time")
    temperature = forms.CharField(
        label="Temperature", initial="0", required=False, help_text="0 takes the likeliest token; higher is more random"
    )
    top_k = forms.CharField(
        label="Top k", initial="0", required=False, help_text="draws from the k likeliest; 0: from all"
    )
    seed = forms.CharField(label="Seed", initial="7", required=False, help_text="of what is drawn")

    def suit(self, model: Mapping[str, Any]) -> None:
        """Says what a prompt of this model is (a model of a RunSpec), and begins with tokens that leave it room."""
        vocab, seq = model["vocab"], model["seq"]
        what = "text, read as bytes" if vocab <= BYTES else f"numbers of tokens, 0 to {vocab - 1}, with commas"
        self.fields["prompt"].help_text = f"{what}; with what is generated at most {seq} tokens"
        self.fields["new"].initial = str(max(1, min(MOST_AT_FIRST, seq // 2)))  # the rest is for the prompt

    def request(self, vocab: int) -> dict[str, Any]:
        """What a valid form asks for, for `read_request`. Raises ValueError with a message for the prompt."""
        given = {name: value for name in ASKED if (value := self.cleaned_data[name].strip())}
        # A browser sends lines with \r\n; a corpus has \n.
        return {**given, "prompt": generating.prompt_tokens(self.cleaned_data["prompt"].replace("\r\n", "\n"), vocab)}
