"""Every refusal of a page or of the API is a sentence with a capital letter, whichever library wrote the message."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations as pairs
from typing import Any

import pytest
from django import forms
from django.test import Client
from django.urls import get_resolver

from dashboard import errors
from dashboard.fields import Form
from dashboard.ledger.models import Profile
from dashboard.runs.services import Invalid
from dashboard.studies.templatetags.quantities import whole_words
from parallel_core import combinations
from parallel_core.analysis.quantities import sentence_text
from parallel_core.spec import RunSpec
from tests.dashboard import factory

SPELT = re.compile(r"^\S*[=_\d]")
"""A field with its value, or a name with an underscore or a digit, spelled as in a spec."""


def begins(text: str) -> bool:
    """Whether a message starts with a capital letter, or with a spelled name."""
    return text[:1].isupper() or bool(SPELT.match(text))


def _refused() -> Iterator[str]:
    for first, second in pairs(combinations.FEATURES, 2):
        found = combinations.verdict(first, second)
        if isinstance(found, str):
            yield found


def test_every_pair_of_features_that_is_refused_is_told_in_a_sentence() -> None:
    refused = list(_refused())
    assert len(refused) > 50
    assert [text for text in refused if not begins(text)] == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("only a GPT generates text.", "Only a GPT generates text."),
        ("a replica's batch", "A replica's batch"),
        ("zero=3 gathers each layer", "zero=3 gathers each layer"),
        ("fully_shard keeps a matrix", "fully_shard keeps a matrix"),
        ("model.hidden: too many", "model.hidden: too many"),
        ("1f1b keeps few", "1f1b keeps few"),
        ("looped-bfs keeps all", "looped-bfs keeps all"),
        ("Two hosts", "Two hosts"),
        ("", ""),
    ],
)
def test_what_is_spelt_stays_as_it_is(text: str, told: str) -> None:
    assert sentence_text(text) == told


def _forms(of: type[forms.Form]) -> Iterator[type[forms.Form]]:
    for kind in of.__subclasses__():
        yield kind
        yield from _forms(kind)


def test_every_form_of_ours_tells_its_errors_in_sentences() -> None:
    assert get_resolver().url_patterns  # imports all views, and with them all forms
    ours = [kind for kind in _forms(forms.Form) if kind.__module__.startswith("dashboard.") and kind is not Form]
    signs_in = "dashboard.accounts.throttling"  # Django's own sign-in form
    assert len(ours) > 10
    assert [kind for kind in ours if not issubclass(kind, Form) and kind.__module__ != signs_in] == []


def test_a_form_refuses_in_sentences() -> None:
    class Asked(Form):
        size = forms.IntegerField()

        def clean(self) -> dict[str, Any]:
            self.add_error("size", "cannot cut 4 layers.")
            raise forms.ValidationError(["no blocks are left.", "tp=2 is not possible."])

    found = Asked({"size": "1"}).errors
    assert found["size"] == ["Cannot cut 4 layers."]
    assert found["__all__"] == ["No blocks are left.", "tp=2 is not possible."]


def test_the_api_and_refused_orders_are_told_in_sentences() -> None:
    told = errors.envelope(422, "nothing was kept.", {"tp": "must divide heads."})["error"]
    assert (told["message"], told["fields"]) == ("Nothing was kept.", {"tp": "Must divide heads."})
    assert Invalid({"run": "only a GPT generates."}).field_errors == {"run": "Only a GPT generates."}


@pytest.mark.django_db
def test_an_error_of_the_engine_at_a_field_of_a_page(reader: Client, alice: Any) -> None:
    spec = RunSpec.model_validate({"model": {"layers": 4, "hidden": 32, "heads": 2, "seq": 16}})
    profile: Profile = factory.profiled(alice, factory.worker(devices=1), spec)
    answer = reader.get("/partition/", {"profile": str(profile.pk), "cuts": "3, 2", "samples": "1"})
    assert "Cuts must rise strictly" in answer.content.decode()


def test_a_sign_stays_with_its_number_and_a_long_word_may_break() -> None:
    said = whole_words("0.3 s (22.1 %) by <ZeRO-3>, of a-folder-whose-name-is-longer-than-a-line; 7 % idle")
    assert said == (
        '<span class="whole">0.3 s</span> <span class="whole">(22.1 %)</span> by '
        '<span class="whole">&lt;ZeRO-3&gt;,</span> of a-folder-whose-name-is-longer-than-a-line; '
        '<span class="whole">7 %</span> idle'
    )


@pytest.mark.parametrize("quantity", ["48.2 ms", "3 µs", "31 MiB,", "9.2 GiB/s", "159 GFLOP/s.", "(22 B", "5 min"])
def test_a_unit_stays_with_its_number(quantity: str) -> None:
    assert whole_words(f"took {quantity} there") == f'took <span class="whole">{quantity}</span> there'


@pytest.mark.parametrize("degree", ["TP 2", "(PP 16", "DP 32,", "micro-batch 2,", "interleaved 8,"])
def test_a_degree_stays_with_what_it_is_of(degree: str) -> None:
    assert whole_words(f"and {degree} need") == f'and <span class="whole">{degree}</span> need'


@pytest.mark.parametrize("words", ["of 4 steps", "2 hosts and 3 billions", "step 1\N{NO-BREAK SPACE}234 of all"])
def test_what_is_counted_may_stand_in_the_next_line(words: str) -> None:
    """The digits of a number stay joined."""
    assert whole_words(words) == words


def test_a_number_behind_a_name_that_is_written_from_right_to_left_is_shown_behind_it() -> None:
    """A browser took the number for a part of the name, and showed it to the left of it."""
    said = whole_words("Next are \u05e0\u05d9\u05e1\u05d5\u05d9 \u05d0: 11\u00a0270, DP + AR 7")
    assert said == "Next are <bdi>\u05e0\u05d9\u05e1\u05d5\u05d9 \u05d0:</bdi> 11\u00a0270, DP + AR 7"
    assert whole_words("<b> \u05d0-\u05d1 PP-1F1B").startswith(
        '&lt;b&gt; <bdi><span class="whole">\u05d0-\u05d1</span></bdi> '
    )


def test_a_number_between_two_words_from_right_to_left_is_a_part_of_their_name() -> None:
    """Apart from each other, the second word was shown to the right of the first: the name read backwards."""
    said = whole_words("Run \u05e0\u05d9 4 12 \u05d0 8 takes 48 ms")
    assert said == 'Run <bdi>\u05e0\u05d9 4 12 \u05d0</bdi> 8 takes <span class="whole">48 ms</span>'


def test_words_are_made_whole_once() -> None:
    """Each text of a page was taken apart again at each of its live updates."""
    text = "DP is 1.58x of single-device, 22.1 % idle"
    said = whole_words(text)
    assert whole_words("".join(list(text))) is said
