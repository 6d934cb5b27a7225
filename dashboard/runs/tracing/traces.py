"""One traced step of a run with what is known of it, for the tabs on time, causes and changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dashboard.runs import selectors
from dashboard.runs.models import Run, State
from dashboard.runs.places import NOWHERE, on_one_host, places_of
from dashboard.runs.standing import standing
from parallel_core.analysis.breakdown import Account, Breakdown, accounts
from parallel_core.analysis.diagnosis.case import REPLAYED
from parallel_core.analysis.disturbance import is_quiet
from parallel_core.analysis.export import About
from parallel_core.analysis.quantities import count_text
from parallel_core.faults import trained
from parallel_core.layout import Layout
from parallel_core.schedule import build
from parallel_core.simulate.measured import Measured, measure
from parallel_core.spec import RunSpec

STREAMED = "some of this step's work was done in the step before: its pipeline never flushes."
"""Why there is no plan, replay or critical path of a step."""


@dataclass(frozen=True)
class Trace:
    """`spans` by global rank; `total` = number of spans recorded, at least as many as were kept."""

    run: Run
    step: int
    spans: Mapping[int, np.ndarray]
    total: int

    @cached_property
    def spec(self) -> RunSpec:
        return RunSpec.stored(self.run.spec)

    @cached_property
    def trained(self) -> RunSpec:
        """The spec that was trained, with what injected faults change in it."""
        return trained(self.spec)

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(self.trained)

    @property
    def about(self) -> About:
        """What its exported file contains in addition to the spans."""
        spec, others = self.spec.model_dump(mode="json"), (self.run.summary or {}).get("cpu_others")
        return About(self.step, spec, f"run {self.run.pk}", self.total, others, self.spec.train.device)

    @cached_property
    def accounts(self) -> dict[int, Account]:
        return accounts(self.spans, self.layout)

    @cached_property
    def measured(self) -> Measured:
        """Raises ValueError if the step is incomplete, part of a stream without flushes, or too long to be replayed."""
        if len(self.spans) < self.layout.world and (said := selectors.missing_text(self.run, self.step)):
            raise ValueError(said)
        return measured(self.trained, self.spans, self.layout, on_one_host(self.run))

    @property
    def kept(self) -> int:
        return sum(map(len, self.spans.values()))

    @property
    def whole(self) -> bool:
        """Whether every span of every rank is here."""
        return len(self.spans) == self.layout.world and self.kept == self.total


def measured(spec: RunSpec, spans: Mapping[int, np.ndarray], layout: Layout, one_host: bool = False) -> Measured:
    """The measured costs of the step with these `spans`; raises ValueError as `Trace.measured` does. `one_host`:
    whether all ranks are known to be on one."""
    kept = sum(map(len, spans.values()))
    if not spec.parallel.flushes:
        raise ValueError(STREAMED)
    if kept > REPLAYED:
        raise ValueError(f"this step has {count_text(kept)} spans; up to {count_text(REPLAYED)} are replayed.")
    if kept < spec.parallel.stages * spec.parallel.per_step:  # before building a far longer schedule
        raise ValueError("the spans of this step are not whole: every micro-batch passes every stage.")
    return measure(build(spec), spans, layout, one_host)


def trace(run: Run, step: int | None) -> Trace | None:
    """The trace of `step`, or of the newest step that has arrived from every rank; None if there is none."""
    shown = selectors.newest_traced_step(run) if step is None else step
    if shown is None:
        return None
    spans, total = selectors.spans_and_total(run, shown)
    return Trace(run, shown, spans, total) if any(map(len, spans.values())) else None


def typical(run: Run) -> Trace | None:
    """The trace of the step that stands for the run, else of the newest."""
    return trace(run, selectors.typical_step(run))


def of_speedup(shown: Trace, asked: int | None) -> Trace:
    """The traced step that a speedup is said of where `shown` is on the page: that one where it was `asked` for, else
    the run's typical one, as the newest may have been held up."""
    return shown if asked is not None else typical(shown.run) or shown


def baseline(run: Run) -> tuple[Run, Breakdown] | None:
    """The one-device run of the same study that did the same work, and the breakdown of its traced step; None if there
    is none.

    It succeeded, was not broken on purpose, represents its setting, and is not known to have run on other machines; of
    several an undisturbed one, then the first.
    """
    study = run.study
    if study is None or run.shares_hosts:
        return None
    mine = RunSpec.stored(run.spec)
    singles = _nearby(run, standing(study.runs.filter(devices=1).exclude(pk=run.pk).order_by("position", "pk")))
    found = [other for other in singles if _is_single_of(other, mine)]
    quiet = [other for other in found if is_quiet(other.summary)]
    best = next(iter(quiet or found), None)
    return (best, Breakdown(**best.summary["breakdown"])) if best else None


def _nearby(run: Run, others: Sequence[Run]) -> list[Run]:
    """Those of the others that are not known to have run on other machines."""
    places = places_of([run, *others])
    own = places.get(run.pk, NOWHERE)
    return [other for other in others if not own.elsewhere(places.get(other.pk, NOWHERE))]


def _is_single_of(other: Run, mine: RunSpec) -> bool:
    """Whether a run on one device is the undivided form of `mine`, and has a traced step that stands for it."""
    if other.state != State.SUCCEEDED or other.injected or not other.summary.get("breakdown"):
        return False
    spec = RunSpec.stored(other.spec)
    plain = spec.parallel.micro_batches == 1 and spec.parallel.recompute == "none"
    work = [(one.model, one.train.global_batch, one.train.precision, one.train.device) for one in (spec, mine)]
    return plain and work[0] == work[1]
