"""What the API refuses is explained in the project's own words, with the limits that apply."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from dashboard.api.models import Scope
from dashboard.runs.models import Corpus
from dashboard.traces.models import Trace
from tests.dashboard.test_api import bearer

pytestmark = pytest.mark.django_db
JSON = "application/json"


@pytest.mark.parametrize(
    ("path", "body", "status", "field", "said"),
    [
        ("runs?sort=nosuch", None, 422, "sort", "Must be of the form ^-?(id|name|"),
        ("runs?created_after=yesterday", None, 422, "created_after", "Must be a date such as 2026-11-27, or"),
        ("runs?q=train.lr%3Dabc", None, 422, "", "The request does not fit; see the fields."),
        ("studies", '{"name": "a", "runs": []}', 422, "runs", "At least 1 entry."),
        ("links", '{"first": "", "second": "b"}', 422, "first", "At least 1 character."),
        ("runs", '{"spec": {}, "retries": true}', 422, "retries", "A number is needed; got True."),
        ("runs", '{"spec": {}, "study": false}', 422, "study", "A number is needed; got False."),
        ("runs", '{"spec": {}, "resume_from": {"run": 1, "step": true}}', 422, "resume_from.step", "A number is"),
        ("runs", '{"spec": {"parallel": {"cuts": [true]}}}', 422, "parallel.cuts.0", "A number is needed; got True."),
        ("runs", '{"spec": {"train": {"lr": 1e999}}}', 422, "train.lr", "A number is needed"),
        ("runs", '{"spec": {"train": {"lr": NaN}}}', 422, "train.lr", "A number is needed"),
        ("runs", '{"spec": {"train": {"lr": 1, "lr": 2}}}', 400, "", "The body cannot be read: 'lr' stands twice in"),
        ("studies", '{"name": "a", "runs": [], "repeats": true}', 422, "repeats", "A number is needed; got True."),
        ("studies", '{"name": "a", "runs": {}}', 422, "runs", "A list is needed."),
        ("runs", '{"spec": {}, "tags": "a"}', 422, "tags", "A list is needed."),
        ("runs/1/generate", '{"ids": "7"}', 422, "ids", "A list is needed."),
        ("runs/1/generate", '{"samples": true}', 422, "samples", "A number is needed; got True."),
        ("runs/1/generate", '{"ids": [7, true]}', 422, "ids.1", "A number is needed; got True."),
        ("runs", '{"spec": {}, "retries": "1"}', 422, "retries", "A whole number is needed."),
        ("runs", '{"spec": {}, "anyway": "yes"}', 422, "anyway", "True or false is needed."),
        ("runs", '{"spec": {}, "anyway": 1}', 422, "anyway", "True or false is needed."),
        ("runs", '{"spec": {"train": {"lr": "1"}}}', 422, "train.lr", "A number is needed."),
        ("runs", '{"spec": {"model": {"tied": "no"}}}', 422, "model.tied", "True or false is needed."),
        ("runs", '{"spec": {"parallel": {"cuts": ["1"]}}}', 422, "parallel.cuts.0", "A whole number is needed."),
        ("runs", '{"spec": {}, "resume_from": {"run": "1", "step": 1}}', 422, "resume_from.run", "A whole number is"),
        (
            "studies",
            '{"name": "a", "runs": [{"label": "a", "spec": {"train": {"steps": "5"}}}]}',
            422,
            "runs.0.spec.train.steps",
            "A whole number is needed.",
        ),
        ("runs/1/generate", '{"ids": ["7"]}', 422, "ids.0", "A whole number is needed."),
        ("runs/1/free-space", '{"profiles": "true"}', 422, "profiles", "True or false is needed."),
        ("runs", "{", 400, "", "The body is no JSON; send an object with named fields."),
        ("runs", "[" * 100_000 + "]" * 100_000, 400, "", "The body cannot be read: its values are nested too deeply."),
    ],
)
def test_refusals_are_in_our_words(
    client: Client, alice: Any, path: str, body: str | None, status: int, field: str, said: str
) -> None:
    headers = bearer(alice, Scope.SUBMIT)
    address = f"/api/v1/{path}"
    answer = client.post(address, body, JSON, headers=headers) if body else client.get(address, headers=headers)
    error = answer.json()["error"]
    assert answer.status_code == status
    assert (error["fields"][field] if field else error["message"]).startswith(said)


def test_a_trace_has_the_same_longest_name_here_as_on_its_page(client: Client, alice: Any) -> None:
    body = {"files": SimpleUploadedFile("a.json", b"{}"), "name": "n" * 201}
    answer = client.post("/api/v1/traces", body, headers=bearer(alice, Scope.SUBMIT))
    assert answer.json()["error"]["fields"] == {"name": "At most 120 characters."}


@pytest.mark.parametrize(
    ("address", "own", "more", "fields"),
    [
        ("corpora", "upload", {"name": "mine"}, {"name": "There is no such field; those here are upload."}),
        ("traces", "files", {"run": "1"}, {"run": "There is no such field; those here are files and name."}),
        ("traces", "files", {"file": SimpleUploadedFile("b.json", b"{}")}, {"file": "There is no such field; those h"}),
        ("traces", "files", {"name": ["a", "b"]}, {"name": "It is given more than once; one is taken."}),
        (
            "corpora",
            "upload",
            {"upload": [SimpleUploadedFile(n, b"text") for n in "ab"]},
            {"upload": "It is given mor"},
        ),
    ],
)
def test_a_field_that_an_upload_does_not_have_is_named_and_nothing_kept(
    client: Client, alice: Any, address: str, own: str, more: dict[str, Any], fields: dict[str, str]
) -> None:
    body = {own: SimpleUploadedFile("a.json", b"{}"), **more}
    answer = client.post(f"/api/v1/{address}", body, headers=bearer(alice, Scope.SUBMIT))
    said = answer.json()["error"]["fields"]
    assert answer.status_code == 422 and said.keys() == fields.keys()
    assert all(said[name].startswith(words) for name, words in fields.items())
    assert not Trace.objects.exists() and not Corpus.objects.exists()
