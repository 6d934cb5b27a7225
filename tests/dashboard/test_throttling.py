"""Repeated wrong passwords lead to a pause; a single typing error does not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.backends import BaseBackend
from django.test import Client
from django.utils import timezone

from dashboard.accounts import throttling
from dashboard.accounts.models import Failures
from dashboard.accounts.throttling import MOST, PAUSE_S

pytestmark = pytest.mark.django_db
RIGHT = "the-right-one"


@pytest.fixture(autouse=True)
def root() -> None:
    get_user_model().objects.create_superuser("root", password=RIGHT)


def sign_in(client: Client, password: str, name: str = "root", address: str = "10.0.0.1") -> Any:
    return client.post("/accounts/login/", {"username": name, "password": password}, REMOTE_ADDR=address)


def test_a_guesser_is_stopped_and_nobody_else(client: Client) -> None:
    for _ in range(MOST):
        assert b"failed sign-ins" not in sign_in(client, "wrong").content
    for name in ("root", "ROOT"):
        stopped = sign_in(client, RIGHT, name)
        assert stopped.status_code == 200 and b"10 failed sign-ins for this name: try again in 5 min" in stopped.content
    assert sign_in(client, "wrong", name="another").status_code == 200
    assert sign_in(client, RIGHT, address="10.0.0.2").status_code == 302


def test_the_right_password_in_time_forgets_the_failures(client: Client) -> None:
    for _ in range(2):
        for _ in range(MOST - 1):
            sign_in(client, "wrong")
        assert sign_in(client, RIGHT).status_code == 302
        client.logout()


def test_an_empty_password_forgets_nothing(client: Client) -> None:
    for _ in range(MOST):
        sign_in(client, "wrong")
        assert sign_in(client, "").status_code == 200
    assert b"failed sign-ins" in sign_in(client, RIGHT).content


def test_behind_the_pause_the_failures_are_forgotten(client: Client) -> None:
    """The failures of all names are deleted, so that names tried by a stranger do not accumulate in the database."""
    for name in ("root", "alice"):
        for _ in range(MOST):
            sign_in(client, "wrong", name)
    assert b"failed sign-ins" in sign_in(client, RIGHT).content
    Failures.objects.update(first_at=timezone.now() - timedelta(seconds=PAUSE_S))
    assert b"failed sign-ins" not in sign_in(client, "wrong").content
    assert list(Failures.objects.values_list("count", flat=True)) == [1, 1], "of the name and of the address"
    assert sign_in(client, RIGHT).status_code == 302
    assert Failures.objects.get().count == 1, "the address keeps its failure: a stranger may have an account of his own"


class Meanwhile(BaseBackend):
    """While it checks a password, the next guess arrives: as many are under way at once as are let through."""

    under_way = 0

    def authenticate(self, request: Any, **given: Any) -> None:
        Meanwhile.under_way += 1
        if Meanwhile.under_way <= 2 * MOST:
            sign_in(Client(), "wrong")


def test_guesses_at_the_same_time_are_no_more_than_guesses_in_turn(client: Client, settings: Any) -> None:
    settings.AUTHENTICATION_BACKENDS = [f"{__name__}.Meanwhile"]
    Meanwhile.under_way = 0
    sign_in(client, "wrong")
    assert Meanwhile.under_way == MOST


@pytest.fixture
def most_from_address(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(throttling, "MOST_FROM_ADDRESS", 15)
    return 15


def test_an_address_that_tries_many_names_is_refused_for_all(client: Client, most_from_address: int) -> None:
    """A password is checked for unknown names, too, which takes as long."""
    for i in range(most_from_address):
        assert b"from your address" not in sign_in(client, "wrong", name=f"somebody {i}").content
    stopped = sign_in(client, RIGHT)
    assert stopped.status_code == 200 and b"15 failed sign-ins from your address: try again in 5" in stopped.content
    assert sign_in(client, RIGHT, address="10.0.0.2").status_code == 302


def test_neither_the_right_password_nor_what_is_refused_counts_for_the_address(
    client: Client, most_from_address: int
) -> None:
    for _ in range(most_from_address + 1):
        sign_in(client, "wrong", name="another")
    for _ in range(most_from_address):
        assert sign_in(client, RIGHT).status_code == 302
        client.logout()
    assert Failures.objects.filter(count=MOST).exists(), "those of the address, of which ten were checked"
