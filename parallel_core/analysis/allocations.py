"""Analyses a snapshot of the CUDA allocator's history: bytes over time, and what was alive at the peak.

The history covers the time since recording was switched on. Earlier allocations appear only if they are freed during it
or are in a segment at its end: they count from the start, and mostly have no stack. Sizes are those requested; the
allocator rounds each up (to 512 bytes), so its own count is a little larger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_LISTED = 20
_DEVICE = 0
"""A rank sees its own device alone, as number 0."""
_FREED = "free_completed"
"""Not free_requested: until free_completed another stream may still use the block, and its bytes are not reused."""


class Frame(NamedTuple):
    """One frame of a stack trace."""

    filename: str
    line: int
    name: str


class Alive(NamedTuple):
    """Blocks alive at the peak that one place in the code allocated; no frames: they are older than the recording."""

    bytes: int
    blocks: int
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class Allocations:
    """`us` and `bytes`: microseconds since the first event and bytes in use after each event. `before`: bytes in use at
    the start; `peak`: most bytes, at `peak_us`. `alive`: blocks at the peak, largest first, MOST_LISTED of `places`."""

    us: NDArray[np.int64]
    bytes: NDArray[np.int64]
    before: int
    peak: int
    peak_us: int
    alive: tuple[Alive, ...]
    places: int
    rounded: int
    """Bytes added by the allocator's rounding at the end of the recording."""


class _Block(NamedTuple):
    """Bytes in use from event `begun` to event `ended`; -1: since before the first, or beyond the last event."""

    bytes: int
    begun: int
    ended: int
    frames: tuple[Frame, ...]


def allocations(snapshot: Mapping[str, Any]) -> Allocations:
    """Allocations of the rank that took it. Raises ValueError for a missing field, or if nothing was recorded."""
    try:
        events = [e for e in snapshot["device_traces"][_DEVICE] if e["action"] in ("alloc", _FREED)]
        at_end = [
            block
            for segment in snapshot["segments"]
            if segment["device"] == _DEVICE
            for block in segment["blocks"]
            if block["state"].startswith("active")
        ]
        times = np.array([event["time_us"] for event in events], np.int64)
        blocks = _blocks(events, at_end)
        rounded = sum(block["size"] - block["requested_size"] for block in at_end)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"the snapshot lacks or spoils {error}") from error
    if not events:
        raise ValueError("nothing was allocated or freed")
    return _account(times - times[0], blocks, rounded)


def _blocks(events: list[Any], at_end: list[Any]) -> list[_Block]:
    done: list[_Block] = []
    live: dict[int, tuple[int, int, tuple[Frame, ...]]] = {}
    for i, event in enumerate(events):
        if event["action"] == "alloc":
            live[event["addr"]] = (event["size"], i, _stack(event))
        else:
            size, begun, frames = live.pop(event["addr"], (event["size"], -1, _stack(event)))
            done.append(_Block(size, begun, i, frames))
    older = [_Block(b["requested_size"], -1, -1, _stack(b)) for b in at_end if b["address"] not in live]
    return [*done, *older, *(_Block(size, begun, -1, frames) for size, begun, frames in live.values())]


def _stack(entry: Mapping[str, Any]) -> tuple[Frame, ...]:
    return tuple(Frame(str(f["filename"]), int(f["line"]), str(f["name"])) for f in entry.get("frames", ()))


def _account(us: NDArray[np.int64], blocks: list[_Block], rounded: int) -> Allocations:
    change = np.zeros(len(us), np.int64)
    before = sum(block.bytes for block in blocks if block.begun < 0)
    for block in blocks:
        if block.begun >= 0:
            change[block.begun] += block.bytes
        if block.ended >= 0:
            change[block.ended] -= block.bytes
    in_use = before + np.cumsum(change)
    top = int(in_use.argmax())
    if before > in_use[top]:  # the first event freed, and nothing came near what had been there
        top = -1
    found = _alive([b for b in blocks if b.begun <= top and not 0 <= b.ended <= top])
    peak, at = (int(in_use[top]), int(us[top])) if top >= 0 else (before, 0)
    return Allocations(us, in_use, before, peak, at, tuple(found[:MOST_LISTED]), len(found), rounded)


def _alive(blocks: list[_Block]) -> list[Alive]:
    by_place: dict[tuple[Frame, ...], list[int]] = {}
    for block in blocks:
        by_place.setdefault(block.frames, []).append(block.bytes)
    found = (Alive(sum(sizes), len(sizes), frames) for frames, sizes in by_place.items())
    return sorted(found, key=lambda alive: -alive.bytes)


def place(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost frame outside torch; the first frame if there is none; None without a stack."""
    ours = (frame for frame in frames if "/torch/" not in frame.filename)
    return next(ours, frames[0] if frames else None)
