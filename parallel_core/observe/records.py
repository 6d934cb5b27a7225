"""The records that a rank emits, and the file that they are appended to.

Each rank appends *frames* to its own `events-<rank>.bin` in the folder of its attempt. This file is the only way in
which records are passed on: it survives the death of every process, the worker's relay reads it from a byte offset
(which is also the cursor stored in the database), and `python -m parallel_core train` writes the same file without a
dashboard.

The stream of records goes on in a new file (*segment*) now and then: `events-<rank>.<base>.bin` begins with byte `base`
of the stream. Segments that are full are never written again by the rank, so that its worker, or `train`, can replace
one by a shorter one (observe.spool) when there is no room for all spans. Offsets in the stream stay as they were:
an `omitted` record takes the place of the frames that are gone, and says at which offset the next frame begins.

A frame = magic `TY` (2 bytes), header length (u4 LE), blob length (u4 LE), header (JSON, UTF-8), blob (raw bytes).
Every header has `kind`, `rank` and `t` (unix seconds, float). Kinds and their other keys:

    hello    pid, start_ticks, device, sharing (ranks on this GPU), number (that only ranks on this device of the host
             have; null where it is not bound to one), host, stage, replica, tensor, torch, version (of Trainyard; no
             such key in earlier ones), params (number of this rank's parameters), units [names], waits: true where the
             rank emits `waits`; from rank 0 of a run that trains also reads: {corpus: 16 hexadecimal digits of its
             content, weights: those of the weights, no such key where it begins from none}; of one that generates text
             {weights} or {checkpoint}
    phase    phase: building | warmup | timed | done, step
    points   series: [[name, count], ...]; blob = the POINT rows of the series one after another
    spans    step, count, total (a rank may keep only `count` of `total` spans); blob = `count` SPAN rows;
             clock_within: ns by which its times may differ from those of rank 0 (only on other hosts than rank 0's).
             waits: true where the rank emits `waits`, else no such key.
             In a benchmark with turns: step, contestant (its name), without count and total
    omitted  end (offset in the stream at which the next frame begins); blob = OMITTED rows: the steps whose spans
             have been dropped; also in place of `waits`, which have no rows
    waits    steps: number of steps; blob = as many STEP_SUM rows, then WAIT rows (analysis.step_waits); times as in
             spans, with clock_within. Those of the newest steps may come with a later record
    memory   step, peak: {category: bytes at the instant of the peak}, peak_total, rss_delta, final: {category: bytes};
             blob = MEMORY rows (the curve), may be empty
    fault    type, message, traceback, step, op, cause: user_code | out_of_memory | not_finite
    early    done, steps, minutes, saved (whether there is a checkpoint after `done` steps): the run left at its time
             limit (parallel_core.early_end)
    exit     code: the exit code with which the rank is about to end (see launch); its last record unless it is killed
    checkpoint  step (steps done), bytes, seconds (to write it, during training), blocked (seconds for which training
             stopped), kept: [steps of the run's checkpoints that exist], held_out (loss, or null); only from rank 0.
             Emitted again where held_out became known after the save
    generated  first (number of tokens of a sample in earlier records), tokens (the new ones of each sample), prefill
             (seconds until the first token), seconds (of each new token except the very first), collective and p2p
             (of those seconds, the ones in tensor-parallel collectives and in messages between stages; no such keys in
             earlier versions), kv_bytes (of this rank): emitted a few times a second, after hello, by ranks that
             generate text
    links    software, device (cpu | cuda), links: rows of profile.curves.Link; from rank 0 of a run that times messages
             between two hosts
    profile  step, part, of, size; blob = piece `part` of `of` of the rank's gzipped Chrome trace of that step (`size`
             bytes in all); of = 0: it was too large to keep
    profile  of a profiling rank (profile.ranks), by `about`:
             device: name, torch; layers: row (profile.table.Layers), reference, paces; bytes: rows;
             fixed: busy, curves, reference; crowd: tp, ratio; own_shards: row, busy, reference;
             link: row (profile.curves.Link); fully_sharded: row
    snapshot  step, part, of, size as for profile; blob = piece of the CUDA allocator's history over that step
             (observe.snapshot)
    turns    seconds, cpu: {contestant: [seconds of each timed step]}, losses: {contestant: [that of each step, null
             where this rank does not know it]}, live: {contestant: bytes}; from the ranks of a benchmark with turns
             (bench.turns)
    summary  steps, timed: {median, p10, p90, mean, n} (seconds a step, this rank), cpu_others (share 0..1 of the
             device time of the timed steps that processes other than the ranks of this run used), other_processes
             (how many such processes were on one of the run's GPUs as the timed steps began or ended; null where the
             driver does not tell, and on CPUs), params_total,
             fingerprint: {step, checks, seconds (median of a check), parameters, samples} (see engine.fingerprint; the
             last two are 16 hexadecimal digits; no such key where nothing was compared),
             staleness: {mean, max} (updates by which this stage's gradients were late; no such key under flush),
             reference: {seconds, times, company, alone} (processor seconds of the reference work between the timed
             steps, and how often it was done; its time with all ranks at work relative to that on this rank's device
             alone, and how often that was measured: engine.reference_probe; no such keys where they were not),
             peak: {flops_per_s (of all devices of the run), source (of this rank's peak), devices (how many were
             counted: ranks that share a GPU or a core count as one; no such key in earlier versions, which summed over
             ranks)}, null without timed steps;
             of a rank that generates text only cpu_others and other_processes, over prefill and tokens, of its own
             device
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
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
OMITTED = np.dtype([("step", "<i4"), ("total", "<i4")])
"""A traced step of a rank without its spans: how many the rank had recorded."""

LANES = ("compute", "p2p", "collective", "host")

STEP_SUM = np.dtype(
    [
        ("step", "<i4"),
        ("count", "<u4"),  # WAIT rows of this step
        ("time", "<f8"),  # unix seconds at the end of the step
        ("total", "<i8"),  # ns, as all below
        ("waiting", "<i8"),  # in blocking collectives and RECVs: bubble or communication
        ("exposed", "<i8"),  # other communication that nothing hides
        ("recompute", "<i8"),
    ]
)
"""What a rank knows of its step without the others, see analysis.step_waits."""
WAIT = np.dtype([("kind", "u1"), ("stage", "<i2"), ("micro_batch", "<i4"), ("start", "<i8"), ("end", "<i8")])
"""A span in which a rank met another: a send, a receive or a blocking collective, and the flight before one behind
computation. Fields as in SPAN."""

CATEGORIES = ("params", "grads", "optimizer", "activations", "buffers")
"""Memory by category, in the order charts stack them."""

MEMORY = np.dtype([("t", "<i8"), *[(name, "<i8") for name in CATEGORIES]])
"""One point of the memory curve: ns on the span clock, then live bytes of each category."""

_HEAD = struct.Struct("<2sII")
_EVENTS = re.compile(r"events-(?P<rank>\d+)(\.(?P<base>\d+))?\.bin", re.ASCII)
MAGIC = b"TY"
LAST_WINDOW = 1 << 20
"""Bytes at the end of a rank's file in which `last_of` looks for the record of how the rank ended."""

# Names of the metric series. Only rank 0 emits the run-level ones; every rank emits RANK_SERIES. Loss scale and skipped
# steps (the number so far) exist only in fp16; mfu and hfu (see analysis.meters) from the first timed step on;
# staleness (mean of the step, in updates) only if the pipeline does not flush. Then each stage has its own loss scale
# and skips its own updates, and the run-level ones are those of the first stage, which overflows of later ones reach.
# cpu_others, a few times a second: the share of this rank's device that other processes used in the timed steps of this
# attempt so far, as that of the summary at its end; an attempt that is cut off has no summary. eval_loss and eval_time
# (seconds, of no step): of the evaluations of held-out samples, after the steps in which there was one.
RUN_SERIES = (
    *("loss", "grad_norm", "step_time", "lr", "tokens_per_s", "tflops", "mfu", "hfu"),
    *("loss_scale", "skipped_steps"),
    *("eval_loss", "eval_time"),
)
SPARSE_SERIES = ("eval_loss", "eval_time")
"""Series that have points in a few steps alone."""
SHARE_SERIES = ("bubble_share", "exposed_share", "recompute_share")
"""Series that no rank emits: computed from what all ranks recorded of a step (analysis.meters). One point for each step
with `waits` records of all ranks; without such records, for each traced step."""
RANK_SERIES = (
    *("rank_step_time", "reference_time", "memory", "cpu_others"),
    *("staleness", "stage_loss_scale", "stage_skipped"),
)
REFERENCE_UNCOUNTED = 2
"""Repeats of the reference work before the one whose time is in `reference_time` (see observe.reference)."""


@dataclass(frozen=True)
class Frame:
    """A decoded frame; `end` is the byte offset of its end in the stream that it was read from, `size` its bytes."""

    header: dict[str, Any]
    blob: bytes
    end: int
    size: int = 0

    @property
    def kind(self) -> str:
        return str(self.header["kind"])


class Sink(Protocol):
    """Receives the records of a rank."""

    def emit(self, kind: str, blob: bytes = b"", **header: Any) -> None:
        """Adds a record of a kind and with the keys that the top of this file lists. Raises OSError if it cannot be
        written, as on a full disk; nothing of it is there then."""


class FileSink:
    """Appends frames to a rank's events. An `emit` is usually one write(), so a kill leaves at most one torn frame.

    If a write is short, as on a full disk, the rest is written next; if that fails, the file is truncated to before the
    frame, as readers stop at a torn frame and would miss everything appended after it.
    """

    def __init__(self, folder: Path, rank: int, segment: int | None = None) -> None:
        """`segment`: bytes after which the stream goes on in a new file; None = all of it in one."""
        self.rank = rank
        self._folder, self._segment, self._base = folder, segment, 0
        self._file: IO[bytes] = events_path(folder, rank).open("ab", buffering=0)
        self._alone = threading.Lock()  # checkpoint records are emitted by another thread

    def emit(self, kind: str, blob: bytes = b"", **header: Any) -> None:
        rest = memoryview(encode({"kind": kind, "rank": self.rank, "t": time.time(), **header}, blob))
        with self._alone:
            begin = self._file.seek(0, os.SEEK_END)
            if self._segment is not None and begin >= self._segment:
                self._go_on_at(self._base + begin)
                begin = 0
            try:
                while rest:
                    rest = rest[self._file.write(rest) :]
            except OSError:
                self._file.truncate(begin)
                raise

    def _go_on_at(self, base: int) -> None:
        following = events_path(self._folder, self.rank, base).open("ab", buffering=0)
        self._file.close()
        self._file, self._base = following, base

    def close(self) -> None:
        self._file.close()


def events_path(folder: Path, rank: int, base: int = 0) -> Path:
    """The file of a rank's events that begins with byte `base` of their stream."""
    return folder / (f"events-{rank}.{base}.bin" if base else f"events-{rank}.bin")


def segments(folder: Path, rank: int) -> list[tuple[int, Path]]:
    """(offset of its first byte in the stream, file) of each file of a rank's events, in order."""
    return [(base, Path(entry)) for base, entry in segments_by_rank(folder).get(rank, [])]


def segments_by_rank(folder: Path) -> dict[int, list[tuple[int, os.DirEntry[str]]]]:
    """rank -> (offset of its first byte in the stream, file) of each file of its events, in order; {} without a folder.

    Reads the folder once, however many ranks and files it has."""
    found: dict[int, list[tuple[int, os.DirEntry[str]]]] = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if name := _EVENTS.fullmatch(entry.name):
                found.setdefault(int(name["rank"]), []).append((int(name["base"] or 0), entry))
    return {rank: sorted(files, key=itemgetter(0)) for rank, files in found.items()}


def log_path(folder: Path, rank: int) -> Path:
    """The file that the rank's stdout and stderr are written to, in order."""
    return folder / f"log-{rank}.txt"


def encode(header: dict[str, Any], blob: bytes = b"") -> bytes:
    """The bytes of a frame, as the top of this file describes it."""
    head = json.dumps(header, separators=(",", ":"), allow_nan=True).encode()
    return _HEAD.pack(MAGIC, len(head), len(blob)) + head + blob


def decode(data: bytes | memoryview, base: int = 0) -> Iterator[Frame]:
    """Yields the whole frames in `data`, which starts at byte `base` of its stream; stops at a torn frame at the end.

    If `base` is inside what an `omitted` record stands for, `data` may start with that record.

    Raises ValueError if the bytes at a frame boundary are not a frame.
    """
    at, view = 0, memoryview(data)
    while at + _HEAD.size <= len(view):
        head, blob = _sizes(view[at : at + _HEAD.size], base)
        start = at + _HEAD.size
        end = start + head + blob
        if end > len(view):
            return
        header, base = _header(bytes(view[start : start + head]), base, end - at)
        yield Frame(header, bytes(view[start + head : end]), base, end - at)
        at = end


def read_stream(folder: Path, rank: int) -> Iterator[Frame]:
    """Yields the whole frames of all files of a rank's events, in order."""
    for base, path in segments(folder, rank):
        yield from read_frames(path, base=base)


def read_frames(path: Path, block: int = 1 << 24, base: int = 0) -> Iterator[Frame]:
    """Yields the whole frames of a rank's file, which begins at byte `base` of their stream, as `decode`; none if there
    is no file. Reads about `block` bytes at a time."""
    if not path.exists():
        return
    with path.open("rb") as file:
        end, size = base, block
        while data := file.read(size):
            whole = 0
            for frame in decode(data, end):
                end, whole = frame.end, whole + frame.size
                yield frame
            if not whole and len(data) < size:
                return  # a torn frame
            size = block if whole else 2 * size
            file.seek(whole - len(data), os.SEEK_CUR)


def skim(file: IO[bytes], base: int = 0) -> Iterator[Frame]:
    """As `decode` of a whole `file`, but with empty blobs: only headers are read, so its size does not matter. Whoever
    iterates may read elsewhere in `file`."""
    at, length = 0, file.seek(0, os.SEEK_END)
    while at + _HEAD.size <= length:
        file.seek(at)
        head, blob = _sizes(file.read(_HEAD.size), base)
        size = _HEAD.size + head + blob
        if at + size > length:
            return
        header, base = _header(file.read(head), base, size)
        yield Frame(header, b"", base, size)
        at += size


def _sizes(head: bytes | memoryview, at: int) -> tuple[int, int]:
    """Bytes of header and blob of the frame that begins at byte `at` of its stream. Raises ValueError if none does."""
    magic, header, blob = _HEAD.unpack(head)
    if magic != MAGIC:
        raise ValueError(f"not a record frame at byte {at}")
    return header, blob


def _header(data: bytes, at: int, size: int) -> tuple[dict[str, Any], int]:
    """The header of the frame of `size` bytes at byte `at` of its stream, and the offset at which the next one begins.

    Raises ValueError if it is no header, also where its `end` is no offset behind it: readers would not get on."""
    try:
        header = json.loads(data)
    except RecursionError:
        header = None
    if not isinstance(header, dict) or "kind" not in header:
        raise ValueError(f"the frame at byte {at} has no header")
    end = header.get("end", at + size) if header["kind"] == "omitted" else at + size
    if type(end) is not int or not at < end < 1 << 63:
        raise ValueError(f"the frame at byte {at} cannot end at {end!r}")
    return header, end


def last_of(folder: Path, rank: int, kind: str) -> dict[str, Any] | None:
    """The header of the last frame of `kind` within LAST_WINDOW of the end of a rank's events; None without one."""
    window = LAST_WINDOW
    for _, path in reversed(segments(folder, rank)):
        with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - window))
            data = file.read()
            window -= len(data)
            if (found := _last_in(data, kind)) is not None:
                return found
        if window <= 0:
            break
    return None


def _last_in(data: bytes, kind: str) -> dict[str, Any] | None:
    """Raises ValueError if what precedes the word is no frame."""
    begin = data.rfind(b'{"kind":"%s"' % kind.encode()) - _HEAD.size
    return next((frame.header for frame in decode(data[begin:])), None) if begin >= 0 else None
