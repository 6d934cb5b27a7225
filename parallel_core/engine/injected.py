"""The effects of injected faults (`parallel_core.faults`) on one rank: the only module of the engine that knows them.

Without faults everything here is a no-op: `around` returns the function it was given, delays are 0.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from parallel_core.engine.device import Device
from parallel_core.faults.base import Fault
from parallel_core.schedule.ir import Op

BURN_SIDE = 96
"""Side of the matrices that a straggler multiplies to waste time: a product takes some tens of microseconds."""
Runner = Callable[[Op], int]


class Injected:
    """The faults of a run as they affect rank `rank`."""

    def __init__(self, faults: Sequence[Fault], rank: int, device: Device) -> None:
        self._faults, self._rank, self._device = faults, rank, device
        self._slowdown = max((fault.slowdown(rank) for fault in faults), default=1.0)
        self._launches = sum(fault.launches(rank) for fault in faults)
        self._burner = torch.zeros(BURN_SIDE, BURN_SIDE, device=device.torch)
        self._crumb = torch.zeros(8, device=device.torch)
        held = sum(fault.held_bytes(rank) for fault in faults)
        self.held = torch.ones(held, dtype=torch.uint8, device=device.torch) if held else None
        """Memory wasted by a fault, with every page touched; None without one."""

    def around(self, run: Runner) -> Runner:
        """Wraps `run`, the method of a compute operation, with the slowdown and the extra kernel launches of this
        rank's faults."""
        if self._slowdown == 1.0 and not self._launches:
            return run

        def slower(op: Op) -> int:
            start = self._busy()
            moved = run(op)
            self._burn(round((self._slowdown - 1) * (self._busy() - start)))
            for _ in range(self._launches):
                self._crumb.add_(1.0)
            return moved

        return slower

    def link_delay(self, peer: int) -> float:
        """Returns the seconds by which messages to the global rank `peer` are delayed."""
        return sum(fault.link_delay(self._rank, peer) for fault in self._faults)

    def collective_delay(self, axis: str) -> float:
        """Returns the seconds by which collectives over `axis` are delayed."""
        return sum(fault.collective_delay(axis) for fault in self._faults)

    def read(self) -> None:
        """Sleeps for the read delay of the faults; called while the rank reads a batch."""
        delay = sum(fault.read_delay(self._rank) for fault in self._faults)
        if delay:
            time.sleep(delay)

    def lr(self, lr: float, step: int) -> float:
        """Returns the learning rate of `step`, with the factors of the faults."""
        for fault in self._faults:
            lr *= fault.lr_factor(step)
        return lr

    @torch.no_grad()
    def flip(self, parameter: torch.Tensor, step: int) -> None:
        """Flips the lowest bit of the first element where a fault says so; autograd does not see it. Called after each
        step."""
        if any(fault.flips(self._rank, step) for fault in self._faults):
            parameter.data.view(-1)[:1].view(torch.uint8)[:1].bitwise_xor_(1)

    def _busy(self) -> int:
        """The device's computing time in ns: on a CPU that of the thread, so that waiting time is not slowed down."""
        if self._device.kind == "cpu":
            return time.thread_time_ns()
        self._device.synchronise()
        return time.monotonic_ns()

    def _burn(self, ns: int) -> None:
        end = self._busy() + ns
        while self._busy() < end:
            torch.mm(self._burner, self._burner, out=self._burner)


class LateWork:
    """A Work of torch.distributed that takes `delay` seconds longer, of which what the rank does before it waits hides
    its part, as over a slower network."""

    def __init__(self, work: Any, delay: float) -> None:
        self._work, self._delay, self._started = work, delay, time.monotonic()

    def wait(self) -> None:
        """Waits for the work, whose time, and that for other ranks, is not that of the delay; then for the rest of the
        delay."""
        hidden = time.monotonic() - self._started
        self._work.wait()
        time.sleep(max(0.0, self._delay - hidden))


def late(work: Any, delay: float) -> Any:
    """Returns `work`, made to take `delay` seconds longer from now on; unchanged without a delay."""
    return LateWork(work, delay) if delay else work


class _Message:
    """A send that a slow link has queued."""

    def __init__(self, send: Callable[[], Any]) -> None:
        self._send, self._sent = send, Future[Any]()

    def go(self) -> None:
        """Starts the real send; what it raises is raised in `wait`."""
        try:
            self._sent.set_result(self._send())
        except Exception as error:
            self._sent.set_exception(error)

    def wait(self) -> None:
        self._sent.result().wait()


class SlowLink:
    """A link that holds each message for `delay` seconds before it is sent, one after the other; the sender does not
    wait."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._waiting: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        threading.Thread(target=self._carry, name="slow-link", daemon=True).start()

    def isend(self, send: Callable[[], Any]) -> _Message:
        """Queues a message; `send()` starts the real send. The result can be waited for like its Work."""
        message = _Message(send)
        self._waiting.put(message)
        return message

    def _carry(self) -> None:
        while True:
            message = self._waiting.get()
            time.sleep(self._delay)
            message.go()
