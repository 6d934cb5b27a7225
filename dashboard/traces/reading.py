"""The analyst: reads uploaded traces, one after the other, each in a process of its own with a limit of memory.

The row is the truth: a trace is claimed by one conditional update, and one that was being read when the analyst died is
claimed again, twice at most.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np
from django.core.files.storage import default_storage
from django.db import transaction

from dashboard.control.lock import lock_of_database
from dashboard.traces import services
from dashboard.traces.models import Trace, TraceSpans, TraceState
from dashboard.yard.processes import die_with_parent
from parallel_core.traces import EXIT_MEMORY

log = logging.getLogger(__name__)
POLL_S = 0.5
MAX_TRIES = 3
MEMORY_BYTES = 4 << 30
"""Address space of the process that reads; 5 million events take about 0.5 GB."""


class Analyst:
    """Reads what is queued until stopped; a second one waits for the lock."""

    def __init__(self) -> None:
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        """Works until stopped."""
        lock, mine = lock_of_database("analyst"), False
        while not self._stopping.is_set():
            if not lock.hold():
                self._stopping.wait(POLL_S)
                continue
            if not mine:
                mine = True
                Trace.objects.filter(state=TraceState.READING).update(state=TraceState.QUEUED)
            if not read_next(self._stopping.is_set):
                self._stopping.wait(POLL_S)
        lock.release()


def read_next(stopping: Callable[[], bool] = lambda: False) -> bool:
    """Reads the oldest queued trace; False where none is queued."""
    trace = Trace.objects.filter(state=TraceState.QUEUED).order_by("pk").first()
    if trace is None:
        return False
    changes = {"state": TraceState.READING, "tries": trace.tries + 1, "read": 0}
    if not Trace.objects.filter(pk=trace.pk, state=TraceState.QUEUED).update(**changes):
        return True
    if trace.tries >= MAX_TRIES:
        _fail(trace, f"Reading it ended the analyst {trace.tries} times.")
        return True
    folder = Path(tempfile.mkdtemp(prefix="trainyard-trace-"))
    try:
        _read(trace, folder, stopping)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return True


def _read(trace: Trace, folder: Path, stopping: Callable[[], bool]) -> None:
    with (folder / "errors.txt").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "parallel_core.traces", str(folder), *_named(trace, folder)],
            stdout=subprocess.PIPE,
            stderr=errors,
            preexec_fn=_bounded(),
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
    assert process.stdout is not None
    with process:
        if not _follow(trace, process.stdout, stopping):
            process.kill()
            return
    if process.returncode == 0:
        _keep(trace, folder)
    elif process.returncode == EXIT_MEMORY:
        _fail(trace, f"It needs more than the {MEMORY_BYTES >> 30} GiB of memory that reading may take.")
    else:
        last = (folder / "errors.txt").read_text(errors="replace").strip().splitlines()[-1:]
        log.warning("trace %s: %s", trace.pk, last)
        _fail(trace, f"It could not be read: {last[0] if last else f'exit code {process.returncode}'}"[:500])


def _bounded() -> Callable[[], None]:
    """What the reading process does first: it dies with the analyst, and cannot take all memory."""
    die = die_with_parent()

    def first() -> None:
        if die:
            die()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        os.nice(10)

    return first


def _named(trace: Trace, folder: Path) -> list[str]:
    """NAME=PATH of each file: its own path where the storage has one, else a copy."""
    out = []
    for file in trace.files.all():
        try:
            path = Path(default_storage.path(file.stored))
        except NotImplementedError:
            path = folder / f"file-{file.pk}"
            with default_storage.open(file.stored) as source, path.open("wb") as target:
                shutil.copyfileobj(source, target)
        out.append(f"{file.name}={path}")
    return out


def _follow(trace: Trace, lines: IO[bytes], stopping: Callable[[], bool]) -> bool:
    """Notes progress until the process has said all; False where the trace was deleted or the analyst shall stop."""
    for line in lines:
        if stopping() or not Trace.objects.filter(pk=trace.pk).update(read=json.loads(line)["read"]):
            return False
    return True


def _keep(trace: Trace, folder: Path) -> None:
    report = json.loads((folder / "report.json").read_text())
    ranks = report["ranks"]
    if not any(rank["steps"] for rank in ranks.values()):
        _fail(trace, " ".join(report["notes"]) or "There is nothing in it.")
        return
    with transaction.atomic():
        TraceSpans.objects.filter(trace=trace).delete()
        for rank, found in ranks.items():
            for step, count in found["steps"].items():
                data = np.load(folder / f"{rank}-{step}.npy", allow_pickle=False).tobytes()
                names = json.loads((folder / f"{rank}-{step}.json").read_text())
                key = {"trace": trace, "rank": int(rank), "step": int(step)}
                TraceSpans.objects.create(**key, count=count, data=data, names=names)
        done = {"state": TraceState.READY, "notes": report["notes"], "ranks": ranks, "read": trace.size}
        Trace.objects.filter(pk=trace.pk).update(**done)
    services.drop_files(trace)


def _fail(trace: Trace, why: str) -> None:
    Trace.objects.filter(pk=trace.pk).update(state=TraceState.FAILED, detail=why)
    services.drop_files(trace)
