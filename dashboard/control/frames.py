"""Decodes bytes of an events file into what the database keeps. Pure functions: a bad batch changes nothing."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dashboard.json_values import clean
from parallel_core.analysis.generated import joined
from parallel_core.analysis.step_waits import StepWaits
from parallel_core.observe.record_files import Frame, decode
from parallel_core.observe.records import MEMORY, OMITTED, POINT, SPAN

log = logging.getLogger(__name__)

MAX_SERIES_NAME = 60
MAX_WHY = 200
WIDE = ("bytes", "size", "peak_total", "rss_delta", "clock_within")
"""Numbers of headers that the database keeps in 64 bits, not in 32."""
Header = dict[str, Any]


@dataclass
class Decoded:
    """The records of one batch, in order. `end` = offset after the last whole frame."""

    end: int
    points: dict[str, list[np.ndarray]] = field(default_factory=dict)
    spans: list[tuple[dict[str, Any], bytes]] = field(default_factory=list)
    omitted: list[tuple[int, int]] = field(default_factory=list)
    """(step, spans recorded) of traced steps whose spans the worker has dropped."""
    dropped: bool = False
    """Whether the worker has dropped spans or `waits` of these bytes; the latter have no rows in `omitted`."""
    waits: list[StepWaits] = field(default_factory=list)
    memory: list[tuple[dict[str, Any], bytes]] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)
    """hello, summary, phase: the newest of each."""
    fault: dict[str, Any] | None = None
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[dict[str, Any]] = field(default_factory=list)
    profiles: list[tuple[dict[str, Any], bytes]] = field(default_factory=list)
    generated: list[dict[str, Any]] = field(default_factory=list)
    links: list[dict[str, Any]] = field(default_factory=list)


def decode_batch(data: bytes, start: int, stored: int = 0) -> Decoded:
    """Decodes a file's bytes from `start` on; leaves out records that end at or below `stored`. Raises ValueError if
    they are not records."""
    out = Decoded(end=max(start, stored))
    for frame in decode(data, start):
        if frame.end <= stored:
            continue
        try:
            _add(out, frame)
        except (AttributeError, KeyError, OverflowError, RecursionError, TypeError) as error:
            raise ValueError(f"frame that ends at byte {frame.end} lacks or spoils {error}") from error
        out.end = frame.end
    return out


def _add(out: Decoded, frame: Frame) -> None:
    """Adds a frame to `out`; ignores frames of unknown kinds, which a newer engine may write."""
    if add := _ADDERS.get(frame.kind):
        add(out, frame, clean(frame.header))


def _points(out: Decoded, frame: Frame, header: Header) -> None:
    for name, rows in _series(frame, header):
        out.points.setdefault(name, []).append(rows)


def _spans(out: Decoded, frame: Frame, header: Header) -> None:
    numbers = _numbers(header, "step", "count", "total")
    _require_rows(frame.blob, SPAN, numbers["count"])
    if header.get("clock_within") is not None:
        numbers |= _numbers(header, "clock_within")
    out.spans.append(({**numbers, "t": float(header["t"]), "waits": bool(header.get("waits"))}, frame.blob))


def _waits(out: Decoded, frame: Frame, header: Header) -> None:
    """A frame that cannot be read costs its own steps their shares, and no other record of the batch."""
    try:
        out.waits.append(StepWaits.unpack(frame.blob, _numbers(header, "steps")["steps"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        log.warning("no shares of some steps of rank %s: %r", header.get("rank"), error)


def _omitted(out: Decoded, frame: Frame, header: Header) -> None:
    _require_rows(frame.blob, OMITTED, len(frame.blob) // OMITTED.itemsize)
    out.dropped = True
    out.omitted += np.frombuffer(frame.blob, OMITTED).tolist()


def _memory(out: Decoded, frame: Frame, header: Header) -> None:
    _require_rows(frame.blob, MEMORY, len(frame.blob) // MEMORY.itemsize)
    told = {**header, "rss_delta": header.get("rss_delta") or 0}
    out.memory.append(({**told, **_numbers(told, "step", "peak_total", "rss_delta")}, frame.blob))


def _keep_newest(out: Decoded, frame: Frame, header: Header) -> None:
    out.info[frame.kind] = header


def _phase(out: Decoded, frame: Frame, header: Header) -> None:
    out.info["phase"] = str(header["phase"])[:16]


def _checkpoint(out: Decoded, frame: Frame, header: Header) -> None:
    sizes = {**_numbers(header, "step", "bytes"), "seconds": float(header["seconds"])}
    held_out = header.get("held_out")  # workers of earlier versions do not send it
    known = None if held_out is None or not math.isfinite(held_out) else float(held_out)
    sizes["blocked"] = float(header.get("blocked") or 0.0)
    out.checkpoints.append({**sizes, "held_out": known, "kept": [_number("step", step) for step in header["kept"]]})


def _left_out(out: Decoded, frame: Frame, header: Header) -> None:
    last = header.get("last") is True  # workers of earlier versions do not send it
    out.left_out.append({**_numbers(header, "step"), "why": str(header["why"])[:MAX_WHY], "last": last})


def _profile(out: Decoded, frame: Frame, header: Header) -> None:
    out.profiles.append(({"kind": frame.kind, **_numbers(header, "step", "part", "of", "size")}, frame.blob))


def _generated(out: Decoded, frame: Frame, header: Header) -> None:
    joined(None, {**header, "first": 0})  # raises if something is missing
    out.generated.append({**header, **_numbers(header, "first")})


def _links(out: Decoded, frame: Frame, header: Header) -> None:
    out.links.append({"software": str(header["software"]), "device": header["device"], "links": header["links"]})


def _fault(out: Decoded, frame: Frame, header: Header) -> None:
    out.fault = header


_ADDERS: dict[str, Callable[[Decoded, Frame, Header], None]] = {
    "points": _points,
    "spans": _spans,
    "omitted": _omitted,
    "waits": _waits,
    "memory": _memory,
    "hello": _keep_newest,
    "summary": _keep_newest,
    "phase": _phase,
    "checkpoint": _checkpoint,
    "left_out": _left_out,
    "profile": _profile,
    "snapshot": _profile,
    "generated": _generated,
    "links": _links,
    "fault": _fault,
}


def _numbers(header: Header, *names: str) -> Header:
    """The named entries of the header as integers."""
    return {name: _number(name, header[name]) for name in names}


def _number(name: str, value: Any) -> int:
    """Raises ValueError where the database has no room for it: the whole transaction would fail, and so whenever the
    worker is asked for these bytes again."""
    number = int(value)
    if not abs(number) < 1 << (63 if name in WIDE else 31):
        raise ValueError(f"the {name} {number} is too large")
    return number


def _series(frame: Frame, header: Header) -> list[tuple[str, np.ndarray]]:
    """Returns (name, POINT rows) of each series in the frame. Raises ValueError where names, counts and bytes do not
    fit."""
    counts = [(str(name), int(count)) for name, count in header["series"]]
    if any(len(name) > MAX_SERIES_NAME or count < 0 for name, count in counts):
        raise ValueError(f"bad series in the frame that ends at byte {frame.end}")
    _require_rows(frame.blob, POINT, sum(count for _, count in counts))
    rows, at, out = np.frombuffer(frame.blob, POINT), 0, []
    for name, count in counts:
        if count:
            out.append((name, rows[at : at + count]))
        at += count
    return out


def _require_rows(blob: bytes, dtype: np.dtype, count: int) -> None:
    if len(blob) != count * dtype.itemsize:
        raise ValueError(f"{len(blob)} bytes are not {count} rows of {dtype.itemsize}")
