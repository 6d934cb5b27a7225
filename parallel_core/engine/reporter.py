"""Reports what a rank does: turns its steps into the records of observe.records."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from parallel_core import early_end
from parallel_core.analysis.meters import Work
from parallel_core.analysis.quantities import plural_text, significant
from parallel_core.analysis.stats import summarise
from parallel_core.engine.clocks import Clock
from parallel_core.engine.device import Device
from parallel_core.engine.evaluation import Evaluated
from parallel_core.engine.fingerprint import Print
from parallel_core.engine.flat import FlatParameters
from parallel_core.engine.norm import Totals
from parallel_core.engine.peak import TotalPeak
from parallel_core.engine.profiled import is_profiled, profiled
from parallel_core.engine.reference_probe import ProbeReading
from parallel_core.engine.run_summary import RunSummary, hex64
from parallel_core.engine.snapshot import snapshotted
from parallel_core.engine.step_meter import StepMeter
from parallel_core.engine.step_times import StepTimes
from parallel_core.engine.stream import Staleness
from parallel_core.layout import Layout
from parallel_core.models.registry import parameter_shapes
from parallel_core.observe.memory import MemoryMeter
from parallel_core.observe.record_files import Sink
from parallel_core.observe.recorder import SpanRecorder
from parallel_core.observe.records import POINT
from parallel_core.observe.scope import Scope
from parallel_core.observe.trace_request import TraceRequest, TraceRequests
from parallel_core.observe.unix_time import UnixTime
from parallel_core.plan.chips import Peak
from parallel_core.processes import start_ticks
from parallel_core.spec import RunSpec
from parallel_core.version import version

log = logging.getLogger(__name__)

FLUSH_S = 0.25
"""Longest time in seconds before points are written, plus the rest of the current step."""
LOG_S = 5.0
"""Interval in seconds of the lines in a rank's log between those of the first and the last step."""


class Reporter:
    """Emits the records of one rank, and logs them in words; only rank 0 emits the run-level series."""

    def __init__(
        self, spec: RunSpec, rank: int, sink: Sink, device: Device, asked: TraceRequests | None = None
    ) -> None:
        self._spec, self._rank, self._sink, self._device, self._asked = spec, rank, sink, device, asked
        self._requested: TraceRequest | None = None
        self._points: dict[str, list[tuple[int, float, float]]] = {}
        self._summary = RunSummary()
        self._flushed = self._logged = 0.0
        self._now = UnixTime()
        self._work = Work.of(spec)
        self._peak: TotalPeak | None = None
        self.clock = Clock()
        """The clock to which times in records are converted."""
        self.meter: StepMeter | None = None
        """What reduces the spans of every step; None until there is a trainer."""
        self.others: Callable[[], float | None] = lambda: None
        """Returns the share of this rank's device that other processes used in its timed steps so far; None before the
        first, or if unknown."""

    def hello(
        self, flat: FlatParameters, units: tuple[str, ...], layout: Layout, reads: Mapping[str, str] | None = None
    ) -> None:
        """`reads`: the content of what the run reads (`inputs.reads`), on rank 0."""
        told: dict[str, Any] = {"reads": dict(reads)} if reads else {}
        place, params = layout.coords(self._rank), sum(slot.parameter.numel() for slot in flat)
        where = f"rank {self._rank}: stage {place.place}, replica {place.replica}, tensor {place.tensor}"
        log.info("%s; %d layers, %d parameters on %s", where, len(units), params, self._device.name)
        self._sink.emit(
            "hello",
            pid=os.getpid(),
            start_ticks=start_ticks(os.getpid()),
            device=self._device.name,
            sharing=self._device.sharing,
            number=self._device.number(),
            host=socket.gethostname(),
            stage=place.place,
            replica=place.replica,
            tensor=place.tensor,
            torch=torch.__version__,
            version=version(),
            params=params,
            units=list(units),
            **self._waits(),
            **told,
        )

    def profiled(self, step: int, scope: Scope) -> AbstractContextManager[None]:
        """A context for one step, in which torch.profiler records it if the spec or a user asks for that, or the CUDA
        allocator's history is recorded if a user asks for that."""
        self._requested = self._asked.at(step) if self._asked else None
        how = self._requested.how if self._requested else "spans"
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

    def requested(self, step: int) -> bool:
        """Whether a user asked for the spans of this step."""
        return self._requested is not None and self._requested.step == step and self._requested.how == "spans"

    def phase(self, phase: str, step: int) -> None:
        """Tells that a phase (building | warmup | timed | done) begins with this step."""
        log.info("%s at step %d", phase, step)
        self._sink.emit("phase", phase=phase, step=step)

    def peak(self, own: Peak, total: float, devices: int) -> None:
        """Sets the peak for utilisation: `own` = that of this rank's device, `total` = FLOP/s of all `devices`."""
        each, every = own.flops_per_s / 1e9, plural_text(devices, "device")
        log.info("peak %.4g GFLOP/s (%s), of %s together %.4g", each, own.source, every, total / 1e9)
        self._peak = TotalPeak(total, own.source, devices)

    def ended(self, traced: bool) -> None:
        """Ends the span of the step that has just been run; `traced` = whether its spans are to be emitted."""
        if self.meter is not None:
            self.meter.ended(traced)

    def spent(self) -> float:
        """Returns the seconds since the last call by which the reduction of steps held up the next one."""
        return self.meter.spent() if self.meter is not None else 0.0

    def step(
        self, step: int, known: Sequence[Totals], took: float, staleness: Staleness | None, lr: float, *, last: bool
    ) -> None:
        """Adds the points of one step and of the `known` totals. Writes them with the first and the last step, and
        whenever FLUSH_S have passed. `took` = the step's seconds."""
        now = self._now()
        values = {"rank_step_time": took}
        if staleness is not None:
            values["staleness"] = staleness.mean
            self._summary.add_staleness(staleness)
        if self._rank == 0:
            values |= {"step_time": took, "lr": lr, **self._speeds(took)}
        due = last or now - self._flushed >= FLUSH_S
        if due:
            values["memory"] = float(self._device.memory_used())
            if (others := self.others()) is not None:
                values["cpu_others"] = others
        self._add(step, now, values)
        for totals in known:
            if self._rank == 0:
                self._add(totals.step, now, self._of_all_ranks(totals))
            if staleness is not None and self._spec.train.precision == "fp16":
                own = {"stage_loss_scale": totals.loss_scale, "stage_skipped": float(totals.skipped)}
                self._add(totals.step, now, own)
        if due:
            self.flush(whole=last)
        if last or now - self._logged >= LOG_S:
            losses = [f", loss {totals.loss:.6g}" for totals in known if self._rank == 0]
            log.info("step %d: %s ms%s", step, significant(took * 1e3, 4), losses[-1] if losses else "")
            self._logged = now

    def _speeds(self, took: float) -> dict[str, float]:
        return self._work.speeds(took, self._peak.flops_per_s if self._peak else None)

    def reference(self, step: int, reading: ProbeReading) -> None:
        """Adds what the reference work after the step took."""
        self._add(step, self._now(), {"reference_time": reading.together})
        self._summary.add_reference(reading)

    def evaluated(self, found: Evaluated) -> None:
        """Adds the held-out loss after a step, which rank 0 alone reports. Writes it where no step follows."""
        if self._rank == 0:
            took = significant(found.seconds * 1e3, 4)
            log.info("step %d: held-out loss %.6g, in %s ms", found.step, found.loss, took)
            self._add(found.step, self._now(), {"eval_loss": found.loss, "eval_time": found.seconds})
            if found.step + 1 == self._spec.train.steps:
                self._write_points()

    def _of_all_ranks(self, totals: Totals) -> dict[str, float]:
        values = {"loss": totals.loss, "grad_norm": totals.grad_norm}
        if self._spec.train.precision == "fp16":
            values |= {"loss_scale": totals.loss_scale, "skipped_steps": float(totals.skipped)}
        return values

    def _add(self, step: int, now: float, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._points.setdefault(name, []).append((step, now, value))

    def flush(self, *, whole: bool) -> None:
        """Writes what has been added since the last time, if anything: points, and what the steps consisted of; of the
        newest steps a CUDA device is waited for only if `whole`."""
        if self.meter is not None:
            self.meter.emit(self._sink, self.clock, whole=whole)
        self._write_points()

    def _write_points(self) -> None:
        if not self._points:
            return
        blob = b"".join(np.array(rows, dtype=POINT).tobytes() for rows in self._points.values())
        self._sink.emit("points", blob, series=[[name, len(rows)] for name, rows in self._points.items()])
        self._points.clear()
        self._flushed = self._now()

    @contextmanager
    def flushed(self) -> Iterator[None]:
        """A context at whose end points are written, also after a fault (then not the spans: their clock may be that of
        a broken device)."""
        try:
            yield
        finally:
            self._write_points()

    def fingerprint(self, found: Print) -> None:
        """Keeps a check in which all replicas were equal, for the summary; rank 0 logs the fingerprint."""
        self._summary.add_check(found)
        if self._rank == 0:
            log.info("after step %d all replicas are equal: parameters %s", found.step, hex64(found.parameters))

    def spans(self, step: int, recorder: SpanRecorder) -> None:
        """Ends the recorder's step and emits its SPAN rows, in ns of rank 0's clock."""
        rows = recorder.end_step()
        self.clock.tie()
        moved = self.clock.moved(rows, "start", "end")
        more = {**self.clock.told(), **self._waits()}
        self._sink.emit("spans", moved.tobytes(), step=step, count=len(rows), total=recorder.total, **more)

    def memory(self, step: int, meter: MemoryMeter) -> None:
        """Emits what the meter saw of this step, in bytes, with the device's own peak."""
        self._sink.emit(
            "memory",
            self.clock.moved(meter.curve(), "t").tobytes(),
            step=step,
            peak=meter.peak,
            peak_total=meter.peak_total,
            rss_delta=self._device.memory_peak(),
            final=meter.final,
        )

    def _waits(self) -> dict[str, Any]:
        """The header's `waits`, if this rank emits such records; else {}."""
        return {} if self.meter is None else {"waits": True}

    def early(self, done: int, *, saved: bool) -> None:
        """Tells that the run ends after `done` steps, as its time is up; `saved`: whether there is a checkpoint."""
        train = self._spec.train
        about: dict[str, Any] = {"done": done, "steps": train.steps, "minutes": train.max_minutes, "saved": saved}
        log.info("%s", early_end.sentence(about))
        self._sink.emit(early_end.KIND, **about)

    def summary(self, times: StepTimes, others: float | None, processes: int | None, steps: int) -> None:
        """Sums up a run that has done `steps` steps; says nothing where none of them was timed. `others`: share of this
        rank's device (0..1) that other processes used; `processes`: how many there were; None where it is not known."""
        if not times.timed:
            return
        total = sum(int(np.prod(shape)) for shape in parameter_shapes(self._spec.model).values())
        timed = asdict(summarise(times.timed))
        peak = self._peak._asdict() if self._peak else None
        more = {**self._summary.entries(), "other_processes": processes}
        self._sink.emit("summary", steps=steps, timed=timed, cpu_others=others, params_total=total, peak=peak, **more)
