"""Which run of a study trained best, where its runs differ in how they train, or all left at one time limit."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dashboard.runs.models import Attempt, Run, State
from dashboard.studies.comparability import trained_differently, update_rules
from parallel_core.analysis.quantities import LOSS_DIGITS, listed_text, loss_text
from parallel_core.analysis.sentences import shortened
from parallel_core.spec import RunSpec

LEFT = "time_limit"
"""The cause of a run that left at its time limit."""
HELD_OUT, FINAL = "held-out loss", "final loss"
BY_TIME = frozenset({"scaling", "postmortem"})
Order = tuple[int, float]


@dataclass(frozen=True)
class Ranking:
    """Runs that succeeded, by their lowest held-out loss, or by their final loss where none evaluates one."""

    what: str
    """HELD_OUT or FINAL."""
    values: Mapping[int, float]
    """By run, lowest first; those that have none, or whose loss is not finite, are not here."""
    settings: Mapping[int, Any]
    """By run: equal for runs that train the same."""
    finals: Mapping[int, float]
    """Final losses by run, of those without a value."""
    early: Collection[int] = ()
    """Runs that left at their time limit, beside others that trained all their steps."""
    within: str = ""
    """`in 30 minutes`, where all left at this time limit, so that equal time and not equal steps is compared."""

    def order(self, run: Run) -> Order:
        """The run's place: lower values first, then runs without one, those that left at their time limit, and those
        whose loss is not finite."""
        if run.pk in self.values:
            return 0, self.values[run.pk]
        if run.pk in self.early:
            return 2, 0.0
        return (1, self.finals[run.pk]) if run.pk in self.finals else (3, 0.0)

    @property
    def best(self) -> int:
        """The run with the lowest value."""
        return next(iter(self.values))

    def lowest(self, labels: Mapping[int, str]) -> str:
        """The `labels`, by run, of those that train as the best one does and reach the same to LOSS_DIGITS digits, of
        more than two the first: how they are split, and rounding, decides which of them is the lowest."""
        of_best = self.settings[self.best], loss_text(self.values[self.best])
        alike = [pk for pk, value in self.values.items() if (self.settings[pk], loss_text(value)) == of_best]
        found = [labels[pk] for pk in alike if pk in labels]
        return listed_text(shortened(found)) if found else ""

    @property
    def following(self) -> int | None:
        """The best run that trained by another setting; None if there is none."""
        return next((pk for pk in self.values if self.settings[pk] != self.settings[self.best]), None)

    def rival(self) -> str:
        """How close the next setting comes, as a clause."""
        if self.following is None:
            left = "that is finite and trained all its steps" if self.early else "that is finite"
            return f"no other setting has one {left}"
        own, other = (loss_text(self.values[pk]) for pk in (self.best, self.following))
        return f"next {other}" if own != other else f"the next is equal to {LOSS_DIGITS} digits"

    @property
    def named(self) -> str:
        """What is lowest, in words."""
        return f"{self.what} {self.within}".rstrip()

    def sentence(self, label: str, so_far: bool) -> str:
        """The finding on the best run, called `label`."""
        value = loss_text(self.values[self.best])
        return f"Lowest {self.named}{' so far' if so_far else ''}: {value}, {label}; {self.rival()}."


def ranks(kind: str) -> bool:
    """Whether studies of the kind compare what training reaches, where their runs differ in that: not those that make
    batches grow with the devices, nor those that break runs on purpose."""
    return kind not in BY_TIME


def lowest_held_out(run: Run) -> float | None:
    """The lowest held-out loss of a run that has ended; None if it evaluated none, or the last one is not finite."""
    found = run.summary.get("held_out") if run.summary else None
    return float(found.get("best", found)["loss"]) if found else None


def ranking(runs: Sequence[Run], specs: Mapping[int, RunSpec]) -> Ranking | None:
    """The ranking of those of `runs` that succeeded; None unless they train the same task, any has a finite loss, and
    they differ in how they train or all left at one time limit.

    Held-out losses rank them only if all have one, of the same samples. Runs that left at their time limit do not
    count beside others: they trained fewer steps than they were to. If all left, their losses are those of equal time,
    to which the speed of a split contributes.
    """
    done = [run for run in runs if run.state == State.SUCCEEDED]
    fields = trained_differently([specs[run.pk] for run in done]) if done else []
    minutes = _one_limit(done, specs)
    if not (fields or minutes) or len({_task(specs[run.pk]) for run in done}) > 1:
        return None
    finite = [run for run in done if not run.diverged and (minutes or run.cause != LEFT)]
    finals = {run.pk: loss for run in finite if (loss := run.summary.get("final_loss")) is not None}
    held = {run.pk: loss for run in finite if (loss := lowest_held_out(run)) is not None}
    same = held.keys() == finals.keys() and len({specs[pk].train.held_out for pk in held}) == 1
    what, values = (HELD_OUT, held) if same else (FINAL, finals)
    values = {pk: value for pk, value in sorted(values.items(), key=lambda each: each[1]) if math.isfinite(value)}
    if not values:
        return None
    settings = {pk: _setting(specs[pk], fields, whole=bool(minutes)) for pk in values}
    early: set[int] = set() if minutes else {run.pk for run in done if run.cause == LEFT}
    rest = {pk: loss for pk, loss in finals.items() if pk not in values}
    within = f"in {minutes:g} minute{'' if minutes == 1 else 's'}" if minutes else ""
    return Ranking(what, values, settings, rest, early, within)


def _one_limit(done: Sequence[Run], specs: Mapping[int, RunSpec]) -> float:
    """Minutes of the time limit at which all of several runs left; 0 if any did not, the limits differ, any shared its
    host with others, or any began at a checkpoint: each attempt has the whole limit again."""
    limits = {specs[run.pk].train.max_minutes if run.cause == LEFT else 0.0 for run in done}
    if len(done) < 2 or len(limits) > 1 or limits == {0.0} or any(run.shares_hosts for run in done):
        return 0.0
    resumed = Attempt.objects.filter(run__in=[run.pk for run in done], begins__step__gt=0)
    return 0.0 if resumed.exists() else limits.pop()


def _task(spec: RunSpec) -> tuple[str, int, str]:
    """What must be equal for losses to be of one quantity."""
    return spec.model.kind, spec.model.vocab, spec.train.corpus


def _setting(spec: RunSpec, fields: Sequence[str], *, whole: bool) -> tuple[Any, ...]:
    """What makes a run another one to compare: `whole` where its speed counts, to which the split, the precision and
    the like contribute."""
    if whole:
        return spec.model, spec.parallel, spec.train
    return spec.model, update_rules(spec), *(getattr(spec.train, field) for field in fields)
