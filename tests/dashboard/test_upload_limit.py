"""Bodies that are too large are refused before they are read; only those who may upload can send large ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.db import OperationalError
from django.test import Client
from django.utils import timezone

from dashboard.api.models import ApiToken, Scope
from dashboard.api.uploaders import may_upload
from dashboard.body_limit import MAX_BODY, BodyLimit
from parallel_core.limits import MAX_CORPUS_BYTES

MIB = 1 << 20
UPLOADS = ("/runs/new/", "/studies/12/add/", "/api/v1/corpora", "/traces/new/", "/api/v1/traces")
Headers = list[tuple[bytes, bytes]]


async def greedy(scope: Any, receive: Any, send: Any) -> None:
    """An application that reads its whole body, as Django does."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"read"})


def scope(path: str, length: int | None = None, headers: Headers | None = None) -> dict[str, Any]:
    sized = [] if length is None else [(b"content-length", str(length).encode())]
    return {"type": "http", "path": path, "method": "POST", "headers": [*sized, *(headers or [])]}


def talk(where: dict[str, Any], chunks: list[bytes], asked: Any = may_upload) -> tuple[int, bytes]:
    async def run() -> tuple[int, bytes]:
        peer = ApplicationCommunicator(BodyLimit(greedy, asked), where)
        for i, chunk in enumerate(chunks):
            await peer.send_input({"type": "http.request", "body": chunk, "more_body": i < len(chunks) - 1})
        start = await peer.receive_output()
        body = await peer.receive_output()
        return start["status"], body["body"]

    return asyncio.run(run())


def refused_unread(where: dict[str, Any]) -> bool:
    """Whether the request is answered with 413 before any of its body is sent."""

    async def run() -> int:
        return int((await ApplicationCommunicator(BodyLimit(greedy, may_upload), where).receive_output())["status"])

    return asyncio.run(run()) == 413


@pytest.mark.parametrize("path", ["/runs/new/", "/studies/12/add/", "/api/v1/corpora"])
def test_a_declared_length_over_the_limit_is_refused_unread(path: str) -> None:
    assert refused_unread(scope(path, MAX_CORPUS_BYTES + 2 * MIB))


def test_an_undeclared_body_is_counted() -> None:
    assert talk(scope("/accounts/login/"), [b"x" * MIB] * (MAX_BODY // MIB + 1))[0] == 413


def cookie(user: Any) -> Headers:
    browser = Client()
    browser.force_login(user)
    return [(b"cookie", f"theme=dark; {settings.SESSION_COOKIE_NAME}={browser.session.session_key}".encode())]


def bearer(user: Any, scope: Scope = Scope.SUBMIT, days: int = 1) -> Headers:
    expires = timezone.now() + timedelta(days=days)
    return [
        (b"authorization", f"Bearer {ApiToken.make(user=user, name='t', scope=scope, expires_at=expires)[1]}".encode())
    ]


LARGE = [b"x" * MIB] * (MAX_BODY // MIB + 1)


@pytest.mark.django_db(transaction=True)  # the sender is looked up on another connection
@pytest.mark.parametrize("path", UPLOADS)
def test_a_member_may_upload_more_than_others_send(path: str, alice: Any) -> None:
    sent = [cookie(alice), bearer(alice)] if path.startswith("/api/") else [cookie(alice)]
    for headers in sent:
        for length in (len(LARGE) * MIB, None):
            assert talk(scope(path, length, headers), LARGE)[0] == 200


def over(made: Headers, alice: Any) -> Headers:
    """The session `made` of a user whose account has been closed since."""
    alice.is_active = False
    alice.save()
    return made


STRANGERS: dict[str, Callable[[Any, Any], Headers]] = {
    "nobody": lambda alice, bob: [],
    "a made-up session": lambda alice, bob: [(b"cookie", b"sessionid=" + b"x" * 32)],
    "a viewer": lambda alice, bob: cookie(bob),
    "an account that was closed": lambda alice, bob: over(cookie(alice), alice),
}
SCRIPTS: dict[str, Callable[[Any, Any], Headers]] = {
    "a made-up token": lambda alice, bob: [(b"authorization", b"Bearer ty_nothing")],
    "an expired token": lambda alice, bob: bearer(alice, days=-1),
    "a token that may read": lambda alice, bob: bearer(alice, Scope.READ),
    "a viewer's token": lambda alice, bob: bearer(bob),
    "a member with a bad token": lambda alice, bob: [*cookie(alice), (b"authorization", b"Bearer ty_nothing")],
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("who", [*STRANGERS, *SCRIPTS])
def test_a_stranger_sends_no_more_to_an_upload_than_elsewhere(who: str, alice: Any, bob: Any) -> None:
    """With a declared length none of the body is read; without, reading ends at the limit for everybody."""
    headers = (STRANGERS | SCRIPTS)[who](alice, bob)
    for path in UPLOADS if who in STRANGERS else ("/api/v1/corpora", "/api/v1/traces"):
        assert refused_unread(scope(path, len(LARGE) * MIB, headers))
        status, body = talk(scope(path, None, headers), LARGE)
        assert status == 413 and "More than 8 MiB is taken from members alone" in body.decode()
        assert talk(scope(path, None, headers), LARGE[1:])[0] == 200


def test_the_deployed_application_asks_who_uploads() -> None:
    from dashboard.asgi import application

    async def run() -> int:
        peer = ApplicationCommunicator(application, scope("/traces/new/", len(LARGE) * MIB))
        return int((await peer.receive_output())["status"])

    assert asyncio.run(run()) == 413


@pytest.mark.parametrize(("path", "said"), [("/traces/new/", "database"), ("/api/v1/traces", '"unavailable"')])
def test_where_nobody_can_tell_who_asks_it_is_said(path: str, said: str) -> None:
    async def away(scope: Any) -> bool:
        raise OperationalError("could not connect")

    status, body = talk(scope(path), LARGE, away)
    assert status == 503 and said in body.decode()


def test_the_api_refuses_in_its_own_shape() -> None:
    status, body = talk(scope("/api/v1/runs", MAX_BODY + 1), [b""])
    assert (status, json.loads(body)["error"]["code"]) == (413, "too_large")


@pytest.mark.parametrize(
    ("path", "most"),
    [("/runs/new/", "200 MiB"), ("/traces/new/", "1 GiB"), ("/ledger/graph/", "8 MiB"), ("/api/v1/traces", "1 GiB")],
)
def test_the_refusal_says_what_this_address_takes(path: str, most: str) -> None:
    status, body = talk(scope(path, 2**40), [b""])
    assert status == 413
    assert most in body.decode()
