"""Meaningless requests: whatever an address, a form or a body contains, the response is valid and short."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.api.models import ApiToken, Scope
from dashboard.api.v1 import MOST_FIELDS
from dashboard.numbers import number, numbers
from dashboard.runs.models import Run
from dashboard.studies.models import Study
from dashboard.traces.models import Trace
from parallel_core.observe.record_files import encode
from tests.dashboard import factory
from tests.dashboard.run_analyst import read_next
from tests.dashboard.test_traces import annotated, send

pytestmark = pytest.mark.django_db
NO_NUMBERS = ("²", "-1", "1.5", "nan", "1\x00", "x", "", "9" * 19, "9" * 5000, None)
MOST_SAID = 2_000
"""Largest response, in bytes, to a bad field, whatever was sent in it."""


@pytest.fixture
def submit(alice: Any) -> dict[str, str]:
    expires = timezone.now() + timedelta(days=1)
    secret = ApiToken.make(user=alice, name="t", scope=Scope.SUBMIT, expires_at=expires)[1]
    return {"Authorization": f"Bearer {secret}"}


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_what_no_number_is_counts_as_not_given(text: str | None) -> None:
    assert number(text) is None
    assert numbers(f"3, {text},4,3") == [3, 4]


def test_numbers_are_read_in_any_digits() -> None:
    assert number("7") == 7 and number("٣") == 3 and number("9" * 18) == 10**18 - 1


@pytest.fixture
def addresses(member: Client, alice: Any, settings: Any, tmp_path: Any, redis_url: str) -> list[str]:
    """Addresses that take whole numbers: of a run with a checkpoint and traced steps, of a study, and of a trace."""
    settings.MEDIA_ROOT = tmp_path
    study = factory.study(alice, splits=factory.SPLITS[:1], recompute=False)
    run = Run.objects.get()
    frame = {"kind": "checkpoint", "rank": 0, "t": 1.0, "step": 20, "bytes": 1000, "seconds": 0.1, "kept": [20]}
    factory.feed(run.attempts.get(), 0, encode(frame))
    send(member, ("a.json", annotated(0)), ("b.json", annotated(1)))
    assert read_next()
    trace = Trace.objects.get().pk
    whole = ["q", "page", "study"], ["runs", "baseline"], ["show", "baseline"], ["step", "a", "b"]
    return [
        *(f"/runs/?{name}=" for name in whole[0]),
        "/runs/compare?runs=",
        *(f"/compare/?{name}=" for name in whole[1]),
        *(f"/studies/{study.pk}/?{name}=" for name in whole[2]),
        *(f"/studies/new/?{name}=" for name in ("clone", "run")),
        *(f"/runs/{run.pk}/?tab=operators&{name}=" for name in ("step", "a", "b", "other", "rank")),
        *(f"/runs/{run.pk}/{page}=" for page in ("resume?step", "generate?like", "data/log.json?start")),
        *(f"/traces/{trace}/operators/?{name}=" for name in whole[3]),
        *(f"/traces/{trace}/{page}?step=" for page in ("", "whatif/", "gantt.json")),
        *(f"/{page}=" for page in ("studies/?page", "traces/?page", "fleet/?hours")),
    ]


def test_addresses_with_what_no_number_is_are_answered(member: Client, addresses: list[str]) -> None:
    for address in addresses:
        for text in ("²", "9" * 5000, "%00"):
            assert member.get(address + text).status_code in (200, 302), address + text[:20]


@pytest.mark.parametrize("name", ["items", "urlencode"])
def test_a_parameter_called_like_a_method_of_the_query_is_kept_as_any_other(
    member: Client, addresses: list[str], name: str
) -> None:
    study, trace = Study.objects.get().pk, Trace.objects.get().pk
    page = member.get(f"/studies/{study}/?{name}=7&baseline=1")
    assert page.status_code == 200 and f'<input type="hidden" name="{name}" value="7">' in page.content.decode()
    page = member.get(f"/traces/{trace}/?{name}=7&step=1")
    assert f"/traces/{trace}/whatif/?{name}=7&amp;step=1" in page.content.decode()


@pytest.mark.parametrize("kind", ["multipart/form-data", "multipart/form-data; boundary="])
@pytest.mark.parametrize("where", ["corpora", "traces"])
def test_a_form_that_cannot_be_read_is_the_senders_fault(
    client: Client, submit: dict[str, str], where: str, kind: str
) -> None:
    answer = client.generic("POST", f"/api/v1/{where}", b"null", kind, headers=submit)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("The request could not be read: Invalid boundary")


def test_a_body_with_very_many_fields_is_told_of_some(client: Client, submit: dict[str, str]) -> None:
    body = json.dumps({"spec": {f"k{i}": 1 for i in range(4 * MOST_FIELDS)}})
    answer = client.post("/api/v1/runs", body, content_type="application/json", headers=submit)
    error = answer.json()["error"]
    assert answer.status_code == 422 and len(error["fields"]) == MOST_FIELDS
    assert error["message"].endswith(f"{MOST_FIELDS} of {4 * MOST_FIELDS} are shown.")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("parallel.replicas", [1] * 100_000, "At most 1026 entries."),
        ("parallel.cuts", [10**400], "Cut"),
        ("parallel.recompute_layers", [10**400], "recompute_layers"),
        ("trace.memory_cap", 10**400, "A whole number of bytes from 1 to 1152921504606846976 is needed"),
        ("train." + "x" * 10_000, 1, "There is no such field."),
        ("train.stpes", 1, "There is no such field; use train.steps."),
        ("train.corpus", "x" * 10_000, "Corpus must be"),
        ("model.kind", "x" * 10_000, "Must be"),
    ],
)
def test_a_value_of_any_length_has_a_short_answer(
    client: Client, submit: dict[str, str], field: str, value: Any, words: str
) -> None:
    room, name = field.split(".")
    body = json.dumps(
        {"spec": {"parallel": {"pp": 2}, room: {**({"pp": 2} if room == "parallel" else {}), name: value}}}
    )
    answer = client.post("/api/v1/runs", body, content_type="application/json", headers=submit)
    assert answer.status_code == 422 and len(answer.content) < MOST_SAID
    (said,) = answer.json()["error"]["fields"].values()
    assert words in said
