"""Reads the body of a streamed answer like an ASGI server."""

from __future__ import annotations

from typing import Any

from asgiref.sync import async_to_sync


def received(answer: Any) -> bytes:
    """The whole body, generated in the test's own thread, with its database connection."""

    async def read() -> bytes:
        return b"".join([chunk async for chunk in answer.streaming_content])

    return async_to_sync(read)()
