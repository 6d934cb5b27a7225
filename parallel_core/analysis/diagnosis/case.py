"""The data that rules judge, and their findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from parallel_core.analysis import waits
from parallel_core.analysis.breakdown import Account, accounts
from parallel_core.analysis.rows import last_end
from parallel_core.layout import Layout
from parallel_core.outline import outline_of
from parallel_core.plan.strategy import step_flops
from parallel_core.schedule import build
from parallel_core.schedule.ir import COMPUTE, Kind
from parallel_core.simulate.measured import Cost, Measured, measure
from parallel_core.simulate.replay import Change, replay, replay_as
from parallel_core.spec import RunSpec

Floats = NDArray[np.float64]
Step = Mapping[int, NDArray[np.void]]
"""SPAN rows of every global rank in one step."""
REPLAYED = 40_000
"""Most spans of a step that is replayed: replaying more takes seconds."""
NO_POINTS: Floats = np.empty(0)


@dataclass(frozen=True)
class Finding:
    """One problem: three sentences, and its cost (one of the effects, or neither)."""

    rule: str
    title: str
    """What is wrong, number first."""
    evidence: str
    change: str
    """What to do about it."""
    effect_ns: int = 0
    """Upper bound on the nanoseconds of a step that the change would save."""
    effect_bytes: int = 0
    tab: str = "timeline"
    """Tab of a run's page that shows it."""
    rank: int | None = None
    urgent: bool = False
    """Sorted before all time effects: the run does not do what it was meant to."""


@dataclass(frozen=True)
class Case:
    """A run as rules see it. `traced`: complete traced steps; curves are values by step, in order; sizes in bytes.

    `earlier`: a run to compare with, if there is one. Unknown data is empty or None: rules then find nothing.
    """

    spec: RunSpec
    traced: Sequence[Step] = ()
    _: KW_ONLY
    loss_steps: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    loss: Floats = field(default_factory=lambda: NO_POINTS)
    held_out_steps: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    held_out: Floats = field(default_factory=lambda: NO_POINTS)
    """Loss of held-out samples after each of `held_out_steps`."""
    grad_norm: Floats = field(default_factory=lambda: NO_POINTS)
    loss_scale: Floats = field(default_factory=lambda: NO_POINTS)
    skipped: Floats = field(default_factory=lambda: NO_POINTS)
    peaks: Mapping[int, int] = field(default_factory=dict)
    limit: int | None = None
    others: float | None = None
    earlier: Case | None = None
    lr: Floats = field(default_factory=lambda: NO_POINTS)
    """Learning rate applied in each update."""
    rate_before: float | None = None
    """Learning rate of the last step before the checkpoint that it goes on from."""
    hosts: Sequence[str] = ()
    """Host of each rank, if there are several."""
    paces: Mapping[int, float] = field(default_factory=dict)
    """Rank -> median seconds of the reference work, which never changes (`observe.reference`)."""
    checkpoints: frozenset[int] | None = None
    """Steps done at each checkpoint that is kept; None: unknown."""
    together: int = 1
    """The most ranks that share a device, on which they take turns."""
    timed_ns: int = 0
    """Nanoseconds of the median timed step; 0 where that is not known."""
    dropped: bool = False
    """Whether steps were traced of which spans were not kept."""

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(self.spec)

    @property
    def first_step(self) -> int:
        """The first step that has a loss, later than 0 in a run that goes on from a checkpoint; 0 without any."""
        return int(self.loss_steps[0]) if len(self.loss_steps) else 0

    def apart(self, *ranks: int) -> list[str]:
        """Hosts of these ranks if they are on several, else []."""
        found = list(dict.fromkeys(self.hosts[rank] for rank in ranks)) if self.hosts else []
        return found if len(found) > 1 else []

    def called(self, rank: int) -> int:
        """The rank that a finding names for one of the case's ranks."""
        return rank

    @cached_property
    def accounts(self) -> list[dict[int, Account]]:
        """Account of each rank, for each traced step."""
        return [accounts(step, self.layout) for step in self.traced]

    @cached_property
    def lengths(self) -> list[int]:
        """Nanoseconds of each traced step."""
        return [last_end(step) - waits.step_start(step) for step in self.traced]

    @property
    def step_ns(self) -> int:
        """Nanoseconds of the median traced step; 0 without any."""
        return int(np.median(self.lengths)) if self.traced else 0

    def share(self, *components: str) -> float:
        """Share of the step taken by `components` of the breakdown, 0 .. 1: mean over ranks, median over steps."""
        if not self.traced:
            return 0.0
        return float(np.median([np.mean([_share(a, components) for a in step.values()]) for step in self.accounts]))

    def of_rank(self, value: Callable[[int, Account], float]) -> dict[int, float]:
        """Rank -> median of `value` over the traced steps."""
        ranks = range(self.layout.world) if self.traced else ()
        return {rank: float(np.median([value(rank, step[rank]) for step in self.accounts])) for rank in ranks}

    @cached_property
    def gathers_aside(self) -> bool:
        """Whether waits for gathers of parameters are not told from work in its steps (`waits.gathers_aside`)."""
        return any(map(waits.gathers_aside, self.traced))

    @property
    def too_long(self) -> bool:
        """Whether its steps have too many spans to be replayed; rules that replay then find nothing."""
        return bool(self.traced) and max(sum(map(len, step.values())) for step in self.traced) > REPLAYED

    @cached_property
    def typical(self) -> Measured | None:
        """Costs of the traced step whose length is nearest the median. None if it cannot be replayed: incomplete, too
        long, of a pipeline that never flushes, whose steps are parts of a stream, or of ranks that share devices: where
        one waits another computes, and a replay would fill that time once more."""
        if not self.traced or self.too_long or self.together > 1 or not self.spec.parallel.flushes:
            return None
        nearest = int(np.abs(np.array(self.lengths) - self.step_ns).argmin())
        try:
            return measure(build(self.spec), self.traced[nearest], self.layout, one_host=not self.hosts)
        except ValueError:
            return None

    def saved(self, change: Change) -> int:
        """Nanoseconds that `change` would take off the typical step; 0 if no valid run has that change."""
        if self.typical is None:
            return 0
        try:
            return max(0, round(self.typical.step - replay(self.spec, self.typical, change).step))
        except ValidationError:
            return 0

    def saved_by_cuts(self, after: RunSpec) -> int:
        """Nanoseconds that `after`, which differs in its cuts alone, would take off the typical step: each layer takes
        its part of its stage's time by FLOPs, recomputation included."""
        if self.typical is None:
            return 0
        same = Change(schedule=self.spec.parallel.schedule)
        made = replay_as(after, self.spec, self.typical, same, step_flops(self.spec))
        return max(0, round(self.typical.step - made.step))

    def saved_by_pace(self, rank: int, factor: float) -> int | None:
        """Nanoseconds that the typical step would be shorter if `rank`, with its tensor group, computed in 1 / `factor`
        of the time. None if that cannot be replayed, or if ranks wait for each other within operations: of such a wait
        is not known which of them it is for."""
        split = self.spec.parallel
        if self.typical is None or split.zero > 1 or outline_of(self.spec.model).batch_norm:
            return None
        at = self.layout.coords(rank)
        own = (set(self.layout.stages_of(at.place)), at.replica)
        ops = {
            key: _faster(cost, factor) if key[0] in COMPUTE and key[1] in own[0] and key[3] == own[1] else cost
            for key, cost in self.typical.ops.items()
        }
        made = replay(self.spec, dataclasses.replace(self.typical, ops=ops), Change())
        return max(0, round(self.typical.step - made.step))

    def slower_device(self, rank: int, others: Sequence[int]) -> float | None:
        """Slowdown of the device of `rank` in the reference work, against the median of `others`; None if one of them
        did not run it."""
        known = [self.paces[other] for other in others if self.paces.get(other)]
        if not known or len(known) < len(others) or not self.paces.get(rank):
            return None
        return self.paces[rank] / float(np.median(known))

    def spent(self, rank: int, *kinds: Kind) -> int:
        """Median over the steps of the nanoseconds in collectives of these kinds, each since its last rank came to it:
        which of them is late may change from one to the next."""
        sums = [
            sum(_since_all_came(step[rank], kind, came.get((rank, kind))) for kind in kinds)
            for step, came in zip(self._ordered, self._arrivals, strict=True)
        ]
        return int(np.median(sums)) if sums else 0

    @cached_property
    def _ordered(self) -> list[Step]:
        return [waits.ordered(step) for step in self.traced]

    @cached_property
    def _arrivals(self) -> list[dict[tuple[int, Kind], waits.Causes]]:
        return [waits.arrivals(step, self.layout) for step in self._ordered]


def _since_all_came(rows: NDArray[np.void], kind: Kind, came: waits.Causes | None) -> int:
    own = waits.of_kinds(rows, kind)
    begun = own["start"] if came is None else np.clip(came.at, own["start"], own["end"])
    return int((own["end"] - begun).sum())


def _faster(cost: Cost, factor: float) -> Cost:
    return cost._replace(work=cost.work / factor, again=cost.again / factor)


def paces(took: Mapping[int, Floats]) -> dict[int, float]:
    """Rank -> median of `took`, the seconds of the reference work, for ranks that ran it."""
    return {rank: float(np.median(seconds)) for rank, seconds in took.items() if len(seconds)}


def _share(account: Account, components: Sequence[str]) -> float:
    return sum(account.parts.share(name) for name in components)
