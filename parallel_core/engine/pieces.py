"""What is larger than a record, as records: bytes in pieces."""

from __future__ import annotations

from typing import Literal

from parallel_core.limits import MAX_PROFILE_BYTES
from parallel_core.observe.records import Sink

PIECE = 192 * 1024
"""Bytes of a record: what a batch of the relay holds."""


def emit(kind: Literal["profile", "snapshot"], step: int, data: bytes, sink: Sink) -> None:
    """The packed file as records; of one over the limit only its size."""
    parts = range(0, len(data), PIECE) if len(data) <= MAX_PROFILE_BYTES else range(0)
    for part, at in enumerate(parts):
        sink.emit(kind, data[at : at + PIECE], step=step, part=part, of=len(parts), size=len(data))
    if not parts:
        sink.emit(kind, b"", step=step, part=0, of=0, size=len(data))
