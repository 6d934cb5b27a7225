"""Converts a snapshot of torch's CUDA allocator (torch.cuda.memory._snapshot, which documents its fields) to bytes and
back.

Every allocation has its whole stack, and most stacks are equal: in the file each frame and each stack is stored once.
The format is JSON, so that no pickle is ever read; a pickle is only written for the public viewer
(pytorch.org/memory_viz), which needs it.
"""

from __future__ import annotations

import json
import pickle
import zlib
from typing import Any

Snapshot = dict[str, Any]
STACK = "frames"
"""The field of torch's entries and blocks that holds their stack, innermost frame first."""
PAIRS = ("pool_id", "segment_pool_id")
"""Fields that are tuples in torch's dictionary."""
MAX_JSON_BYTES = 256 * 1024 * 1024
"""Limit of decompression in bytes: a step of a large model needs about 10 MB."""
_GZIP = 31
"""zlib's window bits for the gzip format."""
VIEWER_PROTOCOL = 4
"""Newest pickle protocol that the public viewer reads."""


class _Stacks:
    """Numbers frames and stacks, each of which is stored once."""

    def __init__(self) -> None:
        self.frames: dict[tuple[tuple[str, Any], ...], int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}

    def number(self, stack: list[dict[str, Any]]) -> int:
        keys = (tuple(frame.items()) for frame in stack)
        numbers = tuple(self.frames.setdefault(key, len(self.frames)) for key in keys)
        return self.stacks.setdefault(numbers, len(self.stacks))

    def named(self, value: Any) -> Any:
        """Returns `value` with each stack replaced by its number."""
        if isinstance(value, dict):
            return {k: self.number(v) if k == STACK else self.named(v) for k, v in value.items()}
        return [self.named(item) for item in value] if isinstance(value, list | tuple) else value


def packed(snapshot: Snapshot) -> bytes:
    """Returns gzipped JSON: `frames`, `stacks` (lists of frame numbers) and `snapshot`, in which stacks are numbers."""
    stacks = _Stacks()
    body = stacks.named(snapshot)
    text = {"frames": [dict(frame) for frame in stacks.frames], "stacks": [*stacks.stacks], "snapshot": body}
    zipped = zlib.compressobj(6, wbits=_GZIP)
    return zipped.compress(json.dumps(text, separators=(",", ":")).encode()) + zipped.flush()


def unpacked(data: bytes) -> Snapshot:
    """Returns the snapshot given to `packed`. Raises ValueError where the data is invalid."""
    try:
        zipped = zlib.decompressobj(wbits=_GZIP)
        text = zipped.decompress(data, MAX_JSON_BYTES)
        if zipped.unconsumed_tail:
            raise ValueError(f"more than {MAX_JSON_BYTES >> 20} MiB when unpacked")
        found = json.loads(text)
        stacks = [[found["frames"][number] for number in stack] for stack in found["stacks"]]
        back = _expanded(found["snapshot"], stacks)
    except (zlib.error, ValueError, KeyError, IndexError, TypeError) as error:
        raise ValueError(f"This is no snapshot of the allocator: {error}") from error
    if not isinstance(back, dict) or not {"segments", "device_traces"} <= back.keys():
        raise ValueError("This is no snapshot of the allocator: it lacks segments or device_traces.")
    return back


def _expanded(value: Any, stacks: list[list[dict[str, Any]]]) -> Any:
    if isinstance(value, dict):
        return {k: _field(k, v, stacks) for k, v in value.items()}
    return [_expanded(item, stacks) for item in value] if isinstance(value, list) else value


def _field(name: str, value: Any, stacks: list[list[dict[str, Any]]]) -> Any:
    if name == STACK:
        return stacks[value]
    return tuple(value) if name in PAIRS else _expanded(value, stacks)


def for_viewer(snapshot: Snapshot) -> bytes:
    """Returns what torch.cuda.memory._dump_snapshot would have written: for other tools, never read here."""
    return pickle.dumps(snapshot, protocol=VIEWER_PROTOCOL)
