"""Records the history of the CUDA allocator over one step: what allocated memory, and when it was freed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from parallel_core.engine.device import Device
from parallel_core.engine.pieces import emit
from parallel_core.observe.record_files import Sink
from parallel_core.observe.snapshot import packed

MAX_EVENTS = 500_000
"""Most events kept of a step, the newest ones: torch's default is no limit, at a kilobyte or more each."""


@contextmanager
def snapshotted(step: int, device: Device, sink: Sink) -> Iterator[None]:
    """Records the allocations of what runs inside, with Python stacks, then emits the snapshot. Only on CUDA.

    The snapshot is also emitted where memory runs out inside, which is when it is most useful. The calls are private
    to torch but documented (docs.pytorch.org, "Understanding CUDA Memory Usage").
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
