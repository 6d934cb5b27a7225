"""The operation that a rank is currently executing, for everything that records spans or memory.

The executor sets `micro_batch` for each operation; layers and collectives below add their spans here and declare
which new tensors are activations, without knowing the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from parallel_core.observe.memory import MemoryMeter
from parallel_core.observe.recorder import LANE_COMPUTE, SpanRecorder
from parallel_core.schedule.ir import Kind

_NOTHING = nullcontext()


def unnamed(text: str) -> AbstractContextManager[Any]:
    """Returns a context without annotation."""
    return _NOTHING


class _Discarded(SpanRecorder):
    """A recorder that records nothing."""

    def add(self, *span: Any) -> None:
        return


class Scope:
    """Span recorder, memory meter (None outside of metered steps) and current operation of one rank."""

    def __init__(self, recorder: SpanRecorder, stage: int = 0, replica: int = 0) -> None:
        self.recorder, self.stage, self.replica = recorder, stage, replica
        self.mark = recorder.mark
        self.micro_batch = -1
        self.version = 0
        self.meter: MemoryMeter | None = None
        self.named: Callable[[str], AbstractContextManager[Any]] = unnamed
        """Annotates operations and their parts: in a profiled step with the profiler's `record_function`."""
        self.moved: Callable[[], None] = lambda: None
        """Is called when a layer begins, forward or backward, so that a long operation does not look like a hang."""

    def span(self, kind: int, lane: int, start: Any, bytes: int = 0, end: Any = None) -> None:
        """Records a span of the current operation from `start` to `end`, two marks (no `end`: until now)."""
        end = self.mark() if end is None else end
        self.recorder.add(kind, lane, self.stage, self.micro_batch, start, end, bytes, self.replica, self.version)

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Context in which no spans are recorded, and marks cost nothing."""
        recorder, mark = self.recorder, self.mark
        self.recorder, self.mark = _Discarded(), int
        try:
            yield
        finally:
            self.recorder, self.mark = recorder, mark

    def keeping(self) -> AbstractContextManager[None]:
        """Returns a context in which new tensors count as activations."""
        return self.making("activations")

    def making(self, category: str) -> AbstractContextManager[None]:
        """Returns a context in which new tensors count as `category`."""
        return _NOTHING if self.meter is None else self.meter.category(category)

    @contextmanager
    def recomputing(self) -> Iterator[None]:
        """Context of a forward that is recomputed for its backward: with gradients, its tensors as activations, its
        time as a span R."""
        start = self.mark()
        with self.named("RECOMPUTE"), torch.enable_grad(), self.keeping():
            yield
        self.span(Kind.R, LANE_COMPUTE, start)

    def kept(self, tensor: torch.Tensor, category: str = "activations") -> None:
        """Counts an existing tensor as `category`: one that is kept for a backward (a stage's input, factors for W), or
        weights."""
        if self.meter is not None:
            self.meter.register(tensor, category)
