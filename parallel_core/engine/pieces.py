"""Splits a blob too large for one record into numbered records."""

from __future__ import annotations

from typing import Literal

from parallel_core.limits import MAX_PROFILE_BYTES
from parallel_core.observe.record_files import Sink

PIECE = 192 * 1024
"""Bytes per record: the capacity of one batch of the relay."""


def emit(kind: Literal["profile", "snapshot"], step: int, data: bytes, sink: Sink) -> None:
    """Emits the compressed file `data` as records; if it is over MAX_PROFILE_BYTES, only its size."""
    parts = range(0, len(data), PIECE) if len(data) <= MAX_PROFILE_BYTES else range(0)
    for part, at in enumerate(parts):
        sink.emit(kind, data[at : at + PIECE], step=step, part=part, of=len(parts), size=len(data))
    if not parts:
        sink.emit(kind, b"", step=step, part=0, of=0, size=len(data))
