"""Bytes of an events file, decoded into what the database keeps. Pure: a bad batch changes nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parallel_core.analysis.generated import joined
from parallel_core.observe.records import MEMORY, POINT, SPAN, Frame, decode

MAX_SERIES_NAME = 60


@dataclass
class Decoded:
    """The records of one batch in order. `end` = offset behind the last whole frame."""

    end: int
    points: dict[str, list[np.ndarray]] = field(default_factory=dict)
    spans: list[tuple[dict[str, Any], bytes]] = field(default_factory=list)
    memory: list[tuple[dict[str, Any], bytes]] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)
    """hello, summary, phase: the newest of each."""
    fault: dict[str, Any] | None = None
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    profiles: list[tuple[dict[str, Any], bytes]] = field(default_factory=list)
    generated: list[dict[str, Any]] = field(default_factory=list)
    links: list[dict[str, Any]] = field(default_factory=list)


def decode_batch(data: bytes, start: int) -> Decoded:
    """Decodes bytes [start, start + len(data)) of a file. Raises ValueError where they are not records."""
    out = Decoded(end=start)
    for frame in decode(data, start):
        try:
            _add(out, frame)
        except (KeyError, TypeError) as error:
            raise ValueError(f"frame that ends at byte {frame.end} lacks or spoils {error}") from error
        out.end = frame.end
    return out


def _add(out: Decoded, frame: Frame) -> None:
    header = clean(frame.header)
    if frame.kind == "points":
        for name, rows in _series(frame):
            out.points.setdefault(name, []).append(rows)
    elif frame.kind == "spans":
        _require_rows(frame.blob, SPAN, int(header["count"]))
        numbers = {key: int(header[key]) for key in ("step", "count", "total")}
        if header.get("clock_within") is not None:
            numbers["clock_within"] = int(header["clock_within"])
        out.spans.append(({**numbers, "t": float(header["t"])}, frame.blob))
    elif frame.kind == "memory":
        _require_rows(frame.blob, MEMORY, len(frame.blob) // MEMORY.itemsize)
        out.memory.append(
            ({**header, "step": int(header["step"]), "peak_total": int(header["peak_total"])}, frame.blob)
        )
    elif frame.kind in ("hello", "summary"):
        out.info[frame.kind] = header
    elif frame.kind == "phase":
        out.info["phase"] = str(header["phase"])[:16]
    elif frame.kind == "checkpoint":
        sizes = {"step": int(header["step"]), "bytes": int(header["bytes"]), "seconds": float(header["seconds"])}
        out.checkpoints.append({**sizes, "kept": [int(step) for step in header["kept"]]})
    elif frame.kind in ("profile", "snapshot"):
        numbers = {key: int(header[key]) for key in ("step", "part", "of", "size")}
        out.profiles.append(({"kind": frame.kind, **numbers}, frame.blob))
    elif frame.kind == "generated":
        joined(None, {**header, "first": 0})  # raises where something is missing
        out.generated.append({**header, "first": int(header["first"])})
    elif frame.kind == "links":
        out.links.append({"software": str(header["software"]), "device": header["device"], "links": header["links"]})
    elif frame.kind == "fault":
        out.fault = header


def _series(frame: Frame) -> list[tuple[str, np.ndarray]]:
    counts = [(str(name), int(count)) for name, count in frame.header["series"]]
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


def clean(value: Any) -> Any:
    """JSON that both databases take: no NaN or infinity (None instead), no null characters in text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    return [clean(item) for item in value] if isinstance(value, list) else value
