"""Measures the costs of a step outside of its layers: data, zeroing, gradient norm, optimizer, records, and the
overhead of each operation."""

from __future__ import annotations

import mmap
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from parallel_core.data.dataset import stand_in
from parallel_core.data.sampler import Sampler
from parallel_core.engine.device import Device
from parallel_core.engine.host_links import Channel, ChannelLayout
from parallel_core.engine.injected import Injected
from parallel_core.engine.norm import StepTotals, Totals
from parallel_core.engine.optimizer import FlatAdamW
from parallel_core.engine.reader import Reader
from parallel_core.engine.reporter import Reporter
from parallel_core.layout import Layout
from parallel_core.observe.progress import NO_STEPS, Progress
from parallel_core.observe.recorder import LANE_COMPUTE
from parallel_core.observe.scope import Scope
from parallel_core.profile.curves import Curve
from parallel_core.profile.layers import LayerBench
from parallel_core.profile.repeats import expected
from parallel_core.profile.table import Fixed
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec

_SMALL = 1024
"""Bytes of the smallest message that is measured."""


class _Nowhere:
    """A sink that discards records."""

    def emit(self, kind: str, blob: bytes = b"", **header: Any) -> None:
        return


class FixedBench:
    """Measures the fixed costs of steps, on ranks that hold half of the model and all of it.

    `once` is called after each pass through the layers, so that caches are in the same state as in a run: full of the
    layers' tensors.
    """

    def __init__(self, spec: RunSpec, device: Device, page: Progress) -> None:
        self._spec, self._device, self._page = spec, device, page
        units = spec.model.units()
        held = {len(part): part for part in (units[: max(1, len(units) // 2)], units)}
        self._ends = [_End(spec, part, device) for part in held.values()]
        dataset = stand_in(spec)
        self._recorder = device.recorder(0, 0)
        self._scope = Scope(self._recorder)
        self._reporter = Reporter(spec, 0, _Nowhere(), device)
        self._message = _Message(device) if device.backend == "gloo" else None
        self._readers = {}
        for samples in sorted({1, spec.train.global_batch}):
            train = spec.train.model_copy(update={"global_batch": samples})
            sampler = Sampler(spec.model_copy(update={"train": train}), dataset)
            faults = Injected(spec.inject, 0, device)
            self._readers[samples] = Reader(spec, sampler, (0,), units, device, Scope(self._recorder), faults)
        self._took: dict[int, dict[Fixed, dict[float, list[float]]]] = {}
        self._turns: Counter[int] = Counter()

    def warm(self, busy: int) -> None:
        """Does everything once without recording it."""
        self.once(busy, keep=False)

    def once(self, busy: int, keep: bool = True) -> None:
        """Measures everything once, while `busy` devices are busy."""
        found = self._took.setdefault(busy, {})
        turn = self._turns[busy] = self._turns[busy] + 1
        self._time(found, "operation", 0.0, self._operation, keep)
        if self._message is not None:
            self._time(found, "message", 0.0, self._message.put, keep)
            self._message.take()
        self._time(found, "report", 0.0, self._report, keep)
        left_out: tuple[Fixed, Fixed] = ("optimizer", "squares") if turn % 2 else ("scaled_optimizer", "norm")
        for end in self._ends:
            for name, act in end.acts.items():
                if name not in left_out:  # a step has one of each two, and the second would run with warm caches
                    self._time(found, name, float(end.elements), act, keep)
        self._recorder.begin_step(turn)
        samples = list(self._readers)[turn % len(self._readers)]  # here, too, the second would run with warm caches
        self._time(found, "data", float(samples), partial(self._readers[samples].read, turn), keep)

    def curves(self, busy: int) -> dict[Fixed, Curve]:
        """Returns the curve of each cost over elements or, for `data`, samples; those that depend on neither have a
        point at 0."""
        out: dict[Fixed, Curve] = {}
        for name, points in self._took[busy].items():
            sizes = sorted(points)
            out[name] = Curve(sizes=tuple(sizes), seconds=tuple(expected(points[size]) for size in sizes))
        return out

    def _report(self) -> None:
        """Reports about a step."""
        self._reporter.step(1, [Totals(1.0, 1.0)], 1.0, None, 1e-3, last=False)

    def _operation(self) -> None:
        """Does what an operation of a program costs in addition to its work: heartbeat and span."""
        self._page.at(NO_STEPS, "fixed costs")
        self._scope.span(Kind.F, LANE_COMPUTE, self._scope.mark())

    def _time(
        self,
        found: dict[Fixed, dict[float, list[float]]],
        name: Fixed,
        size: float,
        act: Callable[[], object],
        keep: bool,
    ) -> None:
        self._page.moved()
        self._device.synchronise()
        began = time.perf_counter()
        act()
        self._device.synchronise()
        if keep:
            found.setdefault(name, {}).setdefault(size, []).append(time.perf_counter() - began)


class _End:
    """Flat buffers of a rank that holds `units`, and what a step does with them; `scaled_optimizer` clips.

    The update is always AdamW's, from which that of SGD is predicted (`step_overheads.share_of_adamw`)."""

    def __init__(self, spec: RunSpec, units: Sequence[str], device: Device) -> None:
        self._bench = LayerBench(spec, [units], device)
        flat = self._bench.chunks.flat
        optimizer, totals = (
            FlatAdamW(flat, spec.train.model_copy(update={"optimizer": "adamw"})),
            StepTotals(spec, Layout.of(spec), flat, None, device),
        )
        self.elements = len(flat.grads)
        self.acts: dict[Fixed, Callable[[], object]] = {
            "norm": lambda: totals.gather(None),
            "squares": totals.squares,
            "optimizer": optimizer.step,
            "scaled_optimizer": lambda: optimizer.step(0.5),
            "zero": flat.grads.zero_,
        }


class _Message:
    """The smallest message to a stage on the same host through shared memory: its cost apart from its bytes."""

    def __init__(self, device: Device) -> None:
        layout = ChannelLayout(_SMALL)
        self._channel = Channel(mmap.mmap(-1, layout.length), layout)
        self._tensor = torch.zeros(_SMALL // 4, device=device.torch)

    @torch.no_grad()
    def put(self) -> None:
        self._channel.put(self._tensor)

    @torch.no_grad()
    def take(self) -> None:
        self._channel.take(self._tensor)
