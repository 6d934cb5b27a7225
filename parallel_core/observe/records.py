"""The records that leave a rank, and the file they are appended to.

Each rank appends *frames* to its own `events-<rank>.bin` in the folder of its attempt. The file is the only hand-over:
it survives the death of every process, the worker's relay reads it from a byte offset (which is also the cursor kept
in the database), and `python -m parallel_core train` leaves the same file behind without any dashboard.

A frame = magic `TY` (2 bytes), header length (u4 LE), blob length (u4 LE), header (JSON, UTF-8), blob (raw bytes).
Every header has `kind`, `rank` and `t` (unix seconds, float). Kinds and their further keys:

    hello    pid, start_ticks, device, host, stage, replica, tensor, torch, params (local count), units [names]
    phase    phase: building | warmup | timed | done, step
    points   series: [[name, count], ...]; blob = the POINT rows of the series one after another
    spans    step, count, total; blob = `count` SPAN rows ("count of total": ranks may cap what they keep);
             clock_within: ns by which its times may be off those of rank 0 (on another host than rank 0 alone)
    memory   step, peak: {category: bytes at the instant of the peak}, peak_total, rss_delta, final: {category: bytes};
             blob = MEMORY rows (the curve), may be empty
    fault    error: type, message, traceback, step, op, cause: user_code | out_of_memory | no_progress
    exit     code: the last one of a rank that was not killed, the exit code it is about to leave with (see launch)
    checkpoint  step (steps done), bytes, seconds (to write it, beside training), blocked (seconds that training stood
             still), kept: [steps of all checkpoints of the run that are still there]; from rank 0
    generated  first (tokens of a sample that were told before), tokens (of each sample, behind those), prefill
             (seconds until the first), seconds (of each told here but the first of all), kv_bytes (of this rank): what
             a rank that generates text emits behind its hello, a few times a second, and nothing else
    links    software, device (cpu | cuda), links: rows of profile.curves.Link; what rank 0 of a run emits that times
             messages between two hosts, and nothing else
    profile  step, part, of, size; blob = piece `part` of `of` of the rank's gzipped Chrome trace of that step (`size`
             bytes in all); of = 0: it was too large to keep
    snapshot  the same of the CUDA allocator's history over that step (observe.snapshot)
    summary  steps, timed: {median, p10, p90, mean, n} (seconds a step, this rank), cpu_others (share 0..1 of the
             device time of the timed steps that processes other than the ranks of this run used), params_total,
             fingerprint: {step, checks, seconds (median of a check), parameters, samples} (see engine.fingerprint; the
             last two are 16 hexadecimal digits; no such key where nothing was compared),
             staleness: {mean, max} (updates by which this stage's gradients were late; no such key under flush),
             reference: {seconds, times, company, alone} (processor seconds of the reference work beside the timed
             steps, and how often it was done; how many times longer it took than on this rank's device alone, and how
             often that was measured: engine.beside; no such keys where they were not),
             peak: {flops_per_s (all devices of the run together), source (of this rank's)}
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

POINT = np.dtype([("step", "<i4"), ("time", "<f8"), ("value", "<f8")])
"""One metric point: step, unix seconds, value."""

SPAN = np.dtype(
    [
        ("kind", "u1"),  # schedule.ir.Kind
        ("lane", "u1"),  # LANES
        ("stage", "<i2"),
        ("micro_batch", "<i4"),
        ("replica", "<i2"),
        ("version", "<i4"),
        ("start", "<i8"),  # ns, CLOCK_MONOTONIC of rank 0's host
        ("end", "<i8"),
        ("bytes", "<i8"),
    ]
)
LANES = ("compute", "p2p", "collective", "host")

CATEGORIES = ("params", "grads", "optimizer", "activations", "buffers")
"""Memory by category, in the order charts stack them."""

MEMORY = np.dtype([("t", "<i8"), *[(name, "<i8") for name in CATEGORIES]])
"""One point of the memory curve: ns on the span clock, then live bytes of each category."""

_HEAD = struct.Struct("<2sII")
MAGIC = b"TY"
LAST_WINDOW = 1 << 20
"""How a rank ended stands in the last frames of its file: they are looked for in so many bytes."""

# Names of the metric series. Rank 0 alone emits the run-level ones; every rank emits RANK_SERIES. Loss scale and
# skipped steps (how many so far) exist in fp16 alone; mfu and hfu (see analysis.meters) from the first timed step on;
# staleness (mean of the step, in updates) where the pipeline does not flush; there each stage has its own loss scale
# and skips its own updates, and the run-level ones are those of the first stage: what overflows behind it reaches it.
RUN_SERIES = (
    *("loss", "grad_norm", "step_time", "lr", "tokens_per_s", "tflops", "mfu", "hfu"),
    *("loss_scale", "skipped_steps"),
)
TRACED_SERIES = ("bubble_share", "exposed_share", "recompute_share")
"""Emitted by no rank: whoever has the spans of all ranks makes one point of each traced step (analysis.meters)."""
RANK_SERIES = ("rank_step_time", "reference_time", "memory", "staleness", "stage_loss_scale", "stage_skipped")
REFERENCE_UNCOUNTED = 2
"""Times that the reference work is done before the one that `reference_time` tells (see observe.reference)."""


@dataclass(frozen=True)
class Frame:
    """A decoded frame; `end` is the byte offset just behind it in the stream it was read from."""

    header: dict[str, Any]
    blob: bytes
    end: int

    @property
    def kind(self) -> str:
        return str(self.header["kind"])


class Sink(Protocol):
    """Where a rank's records go."""

    def emit(self, kind: str, blob: bytes = b"", **header: Any) -> None: ...


class FileSink:
    """Appends frames to `events-<rank>.bin`; each `emit` is one write(), so a kill leaves at most one torn frame.

    A write may come short, as on a full disk. Then the rest follows or, where it cannot, the beginning is taken back:
    readers stop at a torn frame, and would find nothing of what is appended behind it.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self._file: IO[bytes] = events_path(folder, rank).open("ab", buffering=0)
        self._alone = threading.Lock()  # a checkpoint is told by a thread of its own

    def emit(self, kind: str, blob: bytes = b"", **header: Any) -> None:
        rest = memoryview(encode({"kind": kind, "rank": self.rank, "t": time.time(), **header}, blob))
        with self._alone:
            begin = self._file.seek(0, os.SEEK_END)
            try:
                while rest:
                    rest = rest[self._file.write(rest) :]
            except OSError:
                self._file.truncate(begin)
                raise

    def close(self) -> None:
        self._file.close()


def events_path(folder: Path, rank: int) -> Path:
    return folder / f"events-{rank}.bin"


def log_path(folder: Path, rank: int) -> Path:
    """Where the rank's stdout and stderr go (both, in order)."""
    return folder / f"log-{rank}.txt"


def encode(header: dict[str, Any], blob: bytes = b"") -> bytes:
    head = json.dumps(header, separators=(",", ":"), allow_nan=True).encode()
    return _HEAD.pack(MAGIC, len(head), len(blob)) + head + blob


def decode(data: bytes | memoryview, base: int = 0) -> Iterator[Frame]:
    """Whole frames in `data`, which starts at byte `base` of its stream; stops before a torn tail.

    Raises ValueError where the bytes at a frame boundary are not a frame.
    """
    at, view = 0, memoryview(data)
    while at + _HEAD.size <= len(view):
        magic, head, blob = _HEAD.unpack_from(view, at)
        if magic != MAGIC:
            raise ValueError(f"not a record frame at byte {base + at}")
        end = at + _HEAD.size + head + blob
        if end > len(view):
            return
        start = at + _HEAD.size
        yield Frame(json.loads(bytes(view[start : start + head])), bytes(view[start + head : end]), base + end)
        at = end


def read_file(path: Path) -> list[Frame]:
    """All whole frames of a rank's file (an absent file has none)."""
    return list(decode(path.read_bytes())) if path.exists() else []


def last_of(folder: Path, rank: int, kind: str) -> dict[str, Any] | None:
    """Header of the last frame of that kind near the end of a rank's file, without reading all of it."""
    with contextlib.suppress(OSError, ValueError), events_path(folder, rank).open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_WINDOW))
        data = file.read()
        at = data.rfind(b'{"kind":"%s"' % kind.encode())
        begin = data.rfind(MAGIC, 0, at) if at > 0 else -1
        if begin >= 0:
            return next((frame.header for frame in decode(data[begin:])), None)
    return None
