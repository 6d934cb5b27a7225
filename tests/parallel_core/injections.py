"""Measures what injected faults do on a rank, from outside `engine.injected`: by its own clock and its own counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from parallel_core.engine import injected
from parallel_core.engine.injected import Injected, LateWork, Runner, SlowLink
from parallel_core.schedule.ir import Op


@dataclass
class Injections:
    """What faults did on a rank; times in seconds, a pair each: (without the fault, with it).

    operations: CPU time of compute operations of a rank whose faults change them. crumbs: tiny kernels that they
    launched. reads: time that reading a batch was held up. collectives, messages: time from their start to their end,
    of those that are late.
    """

    operations: list[tuple[float, float]] = field(default_factory=list)
    crumbs: int = 0
    reads: list[float] = field(default_factory=list)
    collectives: list[float] = field(default_factory=list)
    messages: list[float] = field(default_factory=list)


@contextmanager
def measured() -> Iterator[Injections]:
    """Measures the faults of a run that this process trains within the context."""
    out = Injections()
    seen: list[Injected] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Injected, "around", _around(out, seen))
        patch.setattr(Injected, "read", _read(out))
        patch.setattr(injected, "LateWork", _late_work(out))
        patch.setattr(SlowLink, "isend", _isend(out))
        yield out
    out.crumbs = sum(int(one._crumb[0]) for one in seen)


def _around(out: Injections, seen: list[Injected]) -> Callable[[Injected, Runner], Runner]:
    whole = Injected.around

    def around(self: Injected, run: Runner) -> Runner:
        plain = [0.0]

        def timed(op: Op) -> int:
            start = time.thread_time()
            moved = run(op)
            plain[0] = time.thread_time() - start
            return moved

        slower = whole(self, timed)
        if slower is timed:
            return run
        seen[:] = [self]

        def both(op: Op) -> int:
            start = time.thread_time()
            moved = slower(op)
            out.operations.append((plain[0], time.thread_time() - start))
            return moved

        return both

    return around


def _read(out: Injections) -> Callable[[Injected], None]:
    whole = Injected.read

    def read(self: Injected) -> None:
        start = time.monotonic()
        whole(self)
        out.reads.append(time.monotonic() - start)

    return read


def _late_work(out: Injections) -> type[LateWork]:
    class Timed(LateWork):
        def __init__(self, work: Any, delay: float) -> None:
            self._start = time.monotonic()
            super().__init__(work, delay)

        def wait(self) -> None:
            super().wait()
            out.collectives.append(time.monotonic() - self._start)

    return Timed


def _isend(out: Injections) -> Callable[[SlowLink, Callable[[], Any]], Any]:
    whole = SlowLink.isend

    def isend(self: SlowLink, send: Callable[[], Any]) -> Any:
        start = time.monotonic()

        def go() -> Any:
            out.messages.append(time.monotonic() - start)
            return send()

        return whole(self, go)

    return isend
