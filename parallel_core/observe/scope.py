"""What a rank is doing right now, for whoever has something to record about it.

The executor moves `micro_batch` with each operation; layers and collectives underneath add their spans here and say
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
    """No annotation."""
    return _NOTHING


class Scope:
    """Recorder, meter (None outside metered steps) and place of one rank."""

    def __init__(self, recorder: SpanRecorder, stage: int = 0, replica: int = 0) -> None:
        self.recorder, self.stage, self.replica = recorder, stage, replica
        self.mark = recorder.mark
        self.micro_batch = -1
        self.version = 0
        self.meter: MemoryMeter | None = None
        self.named: Callable[[str], AbstractContextManager[Any]] = unnamed
        """Around each operation, and what stands inside: in a profiled step the profiler's annotation of that text."""

    def span(self, kind: int, lane: int, start: Any, bytes: int = 0) -> None:
        """A span of the current operation from `start` (a mark) until now."""
        end = self.mark()
        self.recorder.add(kind, lane, self.stage, self.micro_batch, start, end, bytes, self.replica, self.version)

    def keeping(self) -> AbstractContextManager[None]:
        """New tensors inside are activations."""
        return self.making("activations")

    def making(self, category: str) -> AbstractContextManager[None]:
        """New tensors inside are of `category`."""
        return _NOTHING if self.meter is None else self.meter.category(category)

    @contextmanager
    def recomputing(self) -> Iterator[None]:
        """A forward that is run again for its backward: with a graph, its tensors activations, its time a span R."""
        start = self.mark()
        with self.named("RECOMPUTE"), torch.enable_grad(), self.keeping():
            yield
        self.span(Kind.R, LANE_COMPUTE, start)

    def kept(self, tensor: torch.Tensor, category: str = "activations") -> None:
        """The tensor, whatever it was made as, is kept for a backward: a stage's input, what W needs, weights."""
        if self.meter is not None:
            self.meter.register(tensor, category)
