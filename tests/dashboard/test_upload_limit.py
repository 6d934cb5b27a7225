"""Request bodies that are too large are refused before they are read."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator

from dashboard.body_limit import MAX_BODY, BodyLimit
from parallel_core.limits import MAX_CORPUS_BYTES


async def greedy(scope: Any, receive: Any, send: Any) -> None:
    """An application that reads its whole body, as Django does."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"read"})


def scope(path: str, length: int | None = None) -> dict[str, Any]:
    headers = [] if length is None else [(b"content-length", str(length).encode())]
    return {"type": "http", "path": path, "method": "POST", "headers": headers}


def talk(where: dict[str, Any], chunks: list[bytes]) -> tuple[int, bytes]:
    async def run() -> tuple[int, bytes]:
        peer = ApplicationCommunicator(BodyLimit(greedy), where)
        for i, chunk in enumerate(chunks):
            await peer.send_input({"type": "http.request", "body": chunk, "more_body": i < len(chunks) - 1})
        start = await peer.receive_output()
        body = await peer.receive_output()
        return start["status"], body["body"]

    return asyncio.run(run())


@pytest.mark.parametrize("path", ["/runs/new/", "/studies/12/add/", "/api/v1/corpora"])
def test_a_declared_length_over_the_limit_is_refused_unread(path: str) -> None:
    async def run() -> int:
        peer = ApplicationCommunicator(BodyLimit(greedy), scope(path, MAX_CORPUS_BYTES + 2**21))
        return int((await peer.receive_output())["status"])  # no part of the body was sent

    assert asyncio.run(run()) == 413


def test_an_undeclared_body_is_counted() -> None:
    assert talk(scope("/accounts/login/"), [b"x" * 2**20] * (MAX_BODY // 2**20 + 1))[0] == 413


@pytest.mark.parametrize("path", ["/runs/new/", "/studies/12/add/", "/api/v1/corpora"])
def test_an_upload_may_be_larger_than_other_requests(path: str) -> None:
    chunks = [b"x" * 2**20] * (MAX_BODY // 2**20 + 1)
    assert talk(scope(path, len(chunks) * 2**20), chunks)[0] == 200


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
