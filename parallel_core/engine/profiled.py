"""Runs one step under torch.profiler and emits the rank's Chrome trace, gzipped, as records.

A trace is transported like all records (one file per rank, relayed by offset, stored once), since that of a step has
only a few hundred kilobytes compressed. Every operation of the program is annotated with its text (`1F3`), the step
with `ProfilerStep#`, so that stages and micro-batches are unambiguous when the trace is parsed again.
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
from parallel_core.observe.record_files import Sink
from parallel_core.observe.scope import Scope, unnamed
from parallel_core.spec import RunSpec


def is_profiled(spec: RunSpec, step: int, rank: int) -> bool:
    """Whether this step of this rank is profiled."""
    ranks = spec.trace.profile_ranks
    return step in spec.trace.profile_steps and (ranks is None or rank in ranks)


@contextmanager
def profiled(step: int, scope: Scope, device: Device, sink: Sink) -> Iterator[None]:
    """Profiles and annotates what runs inside, then emits its trace. The step takes longer than usual."""
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
