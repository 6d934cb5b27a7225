"""Bodies that are sent while they are made."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator

from asgiref.sync import sync_to_async

BLOCK = 256 * 1024


async def streamed(pieces: Iterable[str | bytes]) -> AsyncGenerator[bytes]:
    """The pieces in blocks of BLOCK bytes or somewhat more, each made once the one before is sent.

    Asynchronous, or Django would collect the whole body in memory before it sends the first byte. The pieces are made
    in the request's own thread: they may ask the database.
    """
    left = iter(pieces)
    while block := await sync_to_async(_block)(left):
        yield block


def _block(left: Iterator[str | bytes]) -> bytes:
    """The next block; b"" at the end."""
    block = bytearray()
    for piece in left:
        block += piece.encode() if isinstance(piece, str) else piece
        if len(block) >= BLOCK:
            break
    return bytes(block)


class Echo:
    """A file for csv.writer that hands back what is written, so that a row can be a piece."""

    def write(self, text: str) -> str:
        return text
