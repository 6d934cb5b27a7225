"""What a rank tells the outside: turns steps into the frames of observe.records."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from parallel_core.analysis.meters import Work
from parallel_core.analysis.stats import summarise
from parallel_core.engine.clocks import Clock
from parallel_core.engine.device import Device
from parallel_core.engine.fingerprint import Print
from parallel_core.engine.flat import FlatParameters
from parallel_core.engine.norm import Totals
from parallel_core.engine.profiled import is_profiled, profiled
from parallel_core.engine.reference_probe import ProbeReading
from parallel_core.engine.snapshot import snapshotted
from parallel_core.engine.stream import Staleness
from parallel_core.layout import Layout
from parallel_core.models.registry import parameter_shapes
from parallel_core.observe.memory import MemoryMeter
from parallel_core.observe.recorder import SpanRecorder
from parallel_core.observe.records import POINT, Sink
from parallel_core.observe.scope import Scope
from parallel_core.observe.trace_request import TraceRequest, TraceRequests
from parallel_core.plan.chips import Peak
from parallel_core.processes import start_ticks
from parallel_core.profile.repeats import expected
from parallel_core.spec import RunSpec

log = logging.getLogger(__name__)

FLUSH_S = 0.25
"""Points wait at most this long (and the end of the step that is under way)."""
LOG_S = 5.0
"""A rank's log gets the first step, the last one, and between them a line this often."""


class StepTimes:
    """Wall time from the end of one step to the end of the next; those after `warmup` steps are kept."""

    def __init__(self, warmup: int) -> None:
        self.timed: list[float] = []
        self._warmup, self._count = warmup, 0
        self._last = time.perf_counter()

    def restart(self) -> None:
        """The next step is measured from now."""
        self._last = time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """So long the rank did something else since the last step: no part of the next one."""
        self._last += seconds

    def ended(self) -> float:
        """A step has ended: its seconds."""
        now = time.perf_counter()
        took, self._last = now - self._last, now
        if self._count >= self._warmup:
            self.timed.append(took)
        self._count += 1
        return took


class Reporter:
    """Emits the records of one rank, and says the same in words in its log; run-level series come from rank 0 alone."""

    def __init__(
        self, spec: RunSpec, rank: int, sink: Sink, device: Device, asked: TraceRequests | None = None
    ) -> None:
        self._spec, self._rank, self._sink, self._device, self._asked = spec, rank, sink, device, asked
        self._wish: TraceRequest | None = None
        self._points: dict[str, list[tuple[int, float, float]]] = {}
        self._stale: list[Staleness] = []
        self._flushed = self._logged = 0.0
        self._work = Work.of(spec)
        self._peak: Peak | None = None
        self._print: Print | None = None
        self.clock = Clock()
        """What times that leave the rank are told by."""
        self._checks: list[float] = []
        self._references: list[float] = []
        self._company: list[float] = []

    def hello(self, flat: FlatParameters, units: tuple[str, ...], layout: Layout) -> None:
        place, params = layout.coords(self._rank), sum(slot.parameter.numel() for slot in flat)
        where = f"rank {self._rank}: stage {place.place}, replica {place.replica}, tensor {place.tensor}"
        log.info("%s; %d layers, %d parameters on %s", where, len(units), params, self._device.name)
        self._sink.emit(
            "hello",
            pid=os.getpid(),
            start_ticks=start_ticks(os.getpid()),
            device=self._device.name,
            sharing=self._device.sharing,
            host=socket.gethostname(),
            stage=place.place,
            replica=place.replica,
            tensor=place.tensor,
            torch=torch.__version__,
            params=params,
            units=list(units),
        )

    def profiled(self, step: int, scope: Scope) -> AbstractContextManager[None]:
        """Around a step: torch.profiler looks at it where the spec, or somebody by now, says so; or the allocator's
        history is kept."""
        self._wish = self._asked.at(step) if self._asked else None
        how = self._wish.how if self._wish else "spans"
        if how == "memory" and self._device.kind == "cuda":
            log.info("the allocations of step %d are recorded", step)
            return snapshotted(step, self._device, self._sink)
        if how != "profiler" and not is_profiled(self._spec, step, self._rank):
            return nullcontext()
        if self._device.backend == "nccl" and not self._spec.parallel.flushes:
            log.warning("step %d is not profiled: torch.profiler waits for messages of later steps", step)
            return nullcontext()
        log.info("step %d is profiled", step)
        return profiled(step, scope, self._device, self._sink)

    def wished(self, step: int) -> bool:
        """Whether somebody asked for the spans of this step; a profiled one ends only with its export."""
        return self._wish is not None and self._wish.step == step and self._wish.how == "spans"

    def phase(self, phase: str, step: int) -> None:
        log.info("%s at step %d", phase, step)
        self._sink.emit("phase", phase=phase, step=step)

    def peak(self, own: Peak, total: float) -> None:
        """What utilisation is held against from now on: `own` of this rank's device, FLOP/s `total` of all devices."""
        log.info("peak %.4g GFLOP/s (%s)", own.flops_per_s / 1e9, own.source)
        self._peak = Peak(total, own.source)

    def step(
        self, step: int, known: Sequence[Totals], took: float, staleness: Staleness | None, lr: float, *, last: bool
    ) -> None:
        """The points of one step, and of the `known` totals; written when FLUSH_S have passed, with the first step and
        with the last."""
        now = time.time()
        values = {"rank_step_time": took}
        if staleness is not None:
            values["staleness"] = staleness.mean
            self._stale.append(staleness)
        if self._rank == 0:
            values |= {"step_time": took, "lr": lr, **self._speeds(took)}
        due = last or now - self._flushed >= FLUSH_S
        if due:
            values["memory"] = float(self._device.memory_used())
        self._add(step, now, values)
        for totals in known:
            if self._rank == 0:
                self._add(totals.step, now, self._of_all_ranks(totals))
            if staleness is not None and self._spec.train.precision == "fp16":
                own = {"stage_loss_scale": totals.loss_scale, "stage_skipped": float(totals.skipped)}
                self._add(totals.step, now, own)
        if due:
            self.flush()
        if last or now - self._logged >= LOG_S:
            losses = [f", loss {totals.loss:.6g}" for totals in known if self._rank == 0]
            log.info("step %d: %.4g ms%s", step, took * 1e3, losses[-1] if losses else "")
            self._logged = now

    def _speeds(self, took: float) -> dict[str, float]:
        return self._work.speeds(took, self._peak.flops_per_s if self._peak else None)

    def reference(self, step: int, told: ProbeReading) -> None:
        """What the reference work took behind the step."""
        self._add(step, time.time(), {"reference_time": told.together})
        self._references.append(told.together)
        if told.alone:
            self._company.append(told.together / told.alone)

    def _of_all_ranks(self, totals: Totals) -> dict[str, float]:
        values = {"loss": totals.loss, "grad_norm": totals.grad_norm}
        if self._spec.train.precision == "fp16":
            values |= {"loss_scale": totals.loss_scale, "skipped_steps": float(totals.skipped)}
        return values

    def _add(self, step: int, now: float, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._points.setdefault(name, []).append((step, now, value))

    def flush(self) -> None:
        """Write the points that wait, if any: also those of the steps before a fault."""
        if not self._points:
            return
        blob = b"".join(np.array(rows, dtype=POINT).tobytes() for rows in self._points.values())
        self._sink.emit("points", blob, series=[[name, len(rows)] for name, rows in self._points.items()])
        self._points.clear()
        self._flushed = time.time()

    @contextmanager
    def flushed(self) -> Iterator[None]:
        """Whatever happens inside, no points of the steps before it are lost."""
        try:
            yield
        finally:
            self.flush()

    def fingerprint(self, found: Print) -> None:
        """All replicas were equal; of rank 0, which numbers they have."""
        self._print = found
        self._checks.append(found.seconds)
        if self._rank == 0:
            log.info("after step %d all replicas are equal: parameters %s", found.step, hex64(found.parameters))

    def spans(self, step: int, recorder: SpanRecorder) -> None:
        rows = recorder.end_step()
        self.clock.tie()
        moved = self.clock.moved(rows, "start", "end")
        self._sink.emit("spans", moved.tobytes(), step=step, count=len(rows), total=recorder.total, **self._within())

    def memory(self, step: int, meter: MemoryMeter) -> None:
        self._sink.emit(
            "memory",
            self.clock.moved(meter.curve(), "t").tobytes(),
            step=step,
            peak=meter.peak,
            peak_total=meter.peak_total,
            rss_delta=self._device.memory_peak(),
            final=meter.final,
        )

    def _within(self) -> dict[str, int]:
        """The header's `clock_within`, where the clock of another host was compared with that of rank 0."""
        return {} if self.clock.within is None else {"clock_within": self.clock.within}

    def summary(self, times: StepTimes, others: float | None) -> None:
        total = sum(int(np.prod(shape)) for shape in parameter_shapes(self._spec.model).values())
        timed = asdict(summarise(times.timed))
        peak = self._peak._asdict() if self._peak else None
        steps, more = self._spec.train.steps, {**self._equal(), **self._staleness(), **self._reference()}
        self._sink.emit("summary", steps=steps, timed=timed, cpu_others=others, params_total=total, peak=peak, **more)

    def _equal(self) -> dict[str, Any]:
        """The summary's `fingerprint`, where there is one."""
        found = self._print
        if found is None:
            return {}
        numbers = {"parameters": hex64(found.parameters), "samples": hex64(found.samples)}
        seconds = float(np.median(self._checks))
        return {"fingerprint": {"step": found.step, "checks": len(self._checks), "seconds": seconds, **numbers}}

    def _reference(self) -> dict[str, Any]:
        """The summary's `reference`, where the work was done."""
        if not self._references:
            return {}
        company = {"company": float(np.median(self._company)), "alone": len(self._company)} if self._company else {}
        return {"reference": {"seconds": expected(self._references), "times": len(self._references), **company}}

    def _staleness(self) -> dict[str, Any]:
        """The summary's `staleness`, mean and most over all steps, where anything can be stale."""
        if not self._stale:
            return {}
        mean = sum(step.mean for step in self._stale) / len(self._stale)
        return {"staleness": {"mean": mean, "max": max(step.most for step in self._stale)}}


def hex64(number: int) -> str:
    return f"{number:016x}"
