"""Response bodies that are sent while they are generated."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator

from asgiref.sync import sync_to_async

BLOCK = 256 * 1024


async def streamed(pieces: Iterable[str | bytes]) -> AsyncGenerator[bytes]:
    """Yields the pieces in blocks of at least BLOCK bytes (except the last), each made once the previous one is sent.

    It is asynchronous because Django, under ASGI, collects the body of a synchronous iterator in memory before it sends
    the first byte. The pieces are made in the request's own thread, so they may query the database.
    """
    left = iter(pieces)
    while block := await sync_to_async(_block)(left):
        yield block


def _block(left: Iterator[str | bytes]) -> bytes:
    """Returns the next block; b"" at the end."""
    block = bytearray()
    for piece in left:
        block += piece.encode() if isinstance(piece, str) else piece
        if len(block) >= BLOCK:
            break
    return bytes(block)


class Echo:
    """A file for csv.writer whose `write` returns the text, so that `writerow` returns the row as a piece."""

    def write(self, text: str) -> str:
        return text
