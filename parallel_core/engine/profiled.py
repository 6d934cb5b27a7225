"""One step under torch.profiler, as records: the Chrome trace of a rank, packed, in pieces.

The trace goes the way of all records (one file a rank, relayed by offset, stored once), because a step's is a few
hundred kilobytes packed. Every operation of the program is annotated as its text (`1F3`), the step as `ProfilerStep#`,
so that stages and micro-batches are certain where the trace is read again.
"""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, record_function

from parallel_core.engine.device import Device
from parallel_core.engine.pieces import emit
from parallel_core.observe.records import Sink
from parallel_core.observe.scope import Scope, unnamed
from parallel_core.spec import RunSpec


def is_profiled(spec: RunSpec, step: int, rank: int) -> bool:
    """Whether the profiler looks at this step of this rank."""
    ranks = spec.trace.profile_ranks
    return step in spec.trace.profile_steps and (ranks is None or rank in ranks)


@contextmanager
def profiled(step: int, scope: Scope, device: Device, sink: Sink) -> Iterator[None]:
    """What runs inside is profiled and annotated; then its trace is emitted. It takes longer than a usual step."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.kind == "cuda" else [])]
    with profile(activities=activities) as profiler:
        scope.named = record_function
        try:
            with record_function(f"ProfilerStep#{step}"):
                yield
                device.synchronise()
        finally:
            scope.named = unnamed
    with tempfile.TemporaryDirectory(prefix="trainyard-profile-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        emit("profile", step, gzip.compress(path.read_bytes(), 6), sink)
