"""The analyst's lane for traces: reads uploaded files, each trace in a process of its own with a memory limit.

All state is in the row. A trace that was being read when the analyst died is claimed again (`analyst.claims`), at most
MAX_TRIES times.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from pathlib import Path

import numpy as np
from django.core.files.storage import default_storage
from django.db import transaction

from dashboard.analyst.child import Child
from dashboard.analyst.claims import claim
from dashboard.analyst.process import Work
from dashboard.traces import services
from dashboard.traces.models import Trace, TraceSpans, TraceState
from parallel_core.processes import EXIT_MEMORY

log = logging.getLogger(__name__)
AT_ONCE = 100
"""Tables that are written by one statement, so that many small tables are quick without many large ones in memory."""
MEMORY_BYTES = 4 << 30
"""Address space of the reading process; 5 million events take about 0.5 GB."""


def recover() -> None:
    """Queues again what an earlier analyst was reading; deletes uploads that were cut off, and what it had read of
    others and not deleted yet."""
    services.sweep()
    for trace in Trace.objects.filter(state__in=(TraceState.READY, TraceState.FAILED), files__isnull=False).distinct():
        services.drop_files(trace)
    Trace.objects.filter(state=TraceState.READING).update(state=TraceState.QUEUED)


def take() -> Work | None:
    """Claims the oldest queued trace and returns its work; None if none is queued."""
    queued = Trace.objects.filter(state=TraceState.QUEUED)
    return claim(queued, {"state": TraceState.READING, "read": 0}, _work, _give_up)


def _give_up(trace: Trace, why: str) -> None:
    _fail(trace, f"Reading it was {why}")


def _work(trace: Trace) -> Work:
    folder = Path(tempfile.mkdtemp(prefix="trainyard-trace-"))
    try:
        yield from _read(trace, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read(trace: Trace, folder: Path) -> Work:
    with Child("parallel_core.traces", [str(folder), *_named(trace, folder)], MEMORY_BYTES) as child:
        for line in child.lines():
            if line is not None and not _note(trace, json.loads(line)["read"]):
                return
            yield
        code = child.wait()
        if code == 0:
            _keep(trace, folder)
        elif code == EXIT_MEMORY:
            _fail(trace, f"It needs more than the {MEMORY_BYTES >> 30} GiB of memory that reading may take.")
        elif code < 0:  # killed; the next try may succeed
            Trace.objects.filter(pk=trace.pk).update(state=TraceState.QUEUED)
        else:
            log.warning("trace %s: %s", trace.pk, child.last_words())
            _fail(trace, f"It could not be read: {child.last_words()}"[:500])


def _note(trace: Trace, read: int) -> bool:
    """Stores the progress; False if the trace was deleted."""
    return bool(Trace.objects.filter(pk=trace.pk).update(read=read))


def _named(trace: Trace, folder: Path) -> list[str]:
    """Name and path of each file, one after the other: its own path if the storage has one, else a copy."""
    out: list[str] = []
    for file in trace.files.all():
        try:
            path = Path(default_storage.path(file.stored))
        except NotImplementedError:
            path = folder / f"file-{file.pk}"
            with default_storage.open(file.stored) as source, path.open("wb") as target:
                shutil.copyfileobj(source, target)
        out += [file.name, str(path)]
    return out


def _keep(trace: Trace, folder: Path) -> None:
    report = json.loads((folder / "report.json").read_text())
    ranks = report["ranks"]
    if not any(rank["steps"] for rank in ranks.values()):
        _fail(trace, " ".join(report["notes"]) or "There is nothing in it.")
        return
    done = {"state": TraceState.READY, "notes": report["notes"], "ranks": ranks, "read": trace.size}
    done["recorded"] = report["recorded"]
    with transaction.atomic():
        if not Trace.objects.filter(pk=trace.pk).update(**done):  # it has been deleted
            return
        TraceSpans.objects.filter(trace=trace).delete()
        for rank, found in ranks.items():
            steps = list(found["steps"].items())
            for i in range(0, len(steps), AT_ONCE):
                some = steps[i : i + AT_ONCE]
                TraceSpans.objects.bulk_create(_spans(trace, folder, int(rank), *one) for one in some)
    services.drop_files(trace)


def _spans(trace: Trace, folder: Path, rank: int, step: str, count: int) -> TraceSpans:
    data = np.load(folder / f"{rank}-{step}.npy", allow_pickle=False).tobytes()
    names = json.loads((folder / f"{rank}-{step}.json").read_text())
    return TraceSpans(trace=trace, rank=rank, step=int(step), count=count, data=data, names=names)


def _fail(trace: Trace, why: str) -> None:
    Trace.objects.filter(pk=trace.pk).update(state=TraceState.FAILED, detail=why)
    services.drop_files(trace)
