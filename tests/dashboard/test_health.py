"""`/healthz`, which load balancers and container engines ask without a token."""

from __future__ import annotations

import logging

import pytest
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext

from dashboard.errors import DATABASE_AWAY
from dashboard.health import PATH


@pytest.mark.django_db
@override_settings(ALLOWED_HOSTS=["yard.example"])
def test_it_answers_whoever_asks_by_whatever_name_with_one_trivial_query(client: Client) -> None:
    """A load balancer names the host by its address. There was no address for it without a sign-in."""
    with CaptureQueriesContext(connection) as asked:
        answer = client.get(PATH, headers={"host": "10.0.0.7:8000"})
    assert (answer.status_code, answer.content) == (200, b"ok\n")
    assert [query["sql"] for query in asked] == ["SELECT 1"]
    assert answer["Cache-Control"] == "no-store" and not answer.cookies
    assert client.head(PATH, headers={"host": "10.0.0.7:8000"}).status_code == 200
    assert client.get("/accounts/login/", headers={"host": "10.0.0.7:8000"}).status_code == 400, "there alone"


@pytest.mark.usefixtures("no_database")
def test_a_database_that_is_away_is_said_in_a_sentence_without_its_own_words(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        answer = client.get(PATH)
    assert (answer.status_code, answer.content.decode()) == (503, f"{DATABASE_AWAY}\n")
    assert answer["Cache-Control"] == "no-store" and int(answer["Retry-After"]) > 0
    assert all(record.exc_info is None for record in caplog.records)


def test_it_takes_nothing(client: Client) -> None:
    answer = client.post(PATH, {"a": "b"})
    assert (answer.status_code, answer["Allow"], answer["Cache-Control"]) == (405, "GET, HEAD", "no-store")
