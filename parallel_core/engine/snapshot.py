"""The history of the CUDA allocator over one step, as records: who allocated what, and when it was freed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from parallel_core.engine.device import Device
from parallel_core.engine.pieces import emit
from parallel_core.observe.records import Sink
from parallel_core.observe.snapshot import packed

MAX_EVENTS = 500_000
"""Kept of a step, the newest: torch's default is no limit, at a kilobyte or more of host memory each."""


@contextmanager
def snapshotted(step: int, device: Device, sink: Sink) -> Iterator[None]:
    """The allocations of what runs inside, with the Python stack of each; then the snapshot is emitted. Where memory
    runs out inside, it is emitted too: that is when it says most. Only on CUDA.

    The calls are private to torch but documented (docs.pytorch.org, "Understanding CUDA Memory Usage").
    """
    record = torch.cuda.memory._record_memory_history
    device.synchronise()
    record("all", context="alloc", stacks="python", max_entries=MAX_EVENTS, clear_history=True)
    try:
        try:
            yield
            device.synchronise()
        except torch.OutOfMemoryError:
            emit("snapshot", step, packed(torch.cuda.memory._snapshot()), sink)
            raise
        emit("snapshot", step, packed(torch.cuda.memory._snapshot()), sink)
    finally:
        record(None)
