"""What pages say of all their runs together: the verdict, its warnings, and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter

from dashboard.charts.chart import Entry
from dashboard.runs.models import ENDED
from dashboard.runs.places import NOWHERE, Machines, Place
from dashboard.studies.comparability import tolerance, why_not
from dashboard.studies.overview import excluded, peaks
from dashboard.studies.overview.by_loss import Ranking
from dashboard.studies.overview.losses import Losses
from dashboard.studies.overview.rows import Row
from parallel_core.analysis import cautions, host_drift, sentences
from parallel_core.analysis.disturbance import DISTURBED_ABOVE
from parallel_core.analysis.parity import Parity
from parallel_core.analysis.parity_words import parity_sentence
from parallel_core.analysis.quantities import count_text, finished_text, plural_text, seconds_text
from parallel_core.analysis.sentences import Result
from parallel_core.outline import outline_of
from parallel_core.plan.room import Room

NO_SPEEDUP = "Another model has no speedup over the baseline."
SIDE_BY_SIDE = "These runs shared their hosts with other runs, so none is called faster than another."


@dataclass(frozen=True)
class Overview:
    """Rows in drawing order: finished ones fastest first (with a `ranking`, in its order), then running, queued, and
    those without a result."""

    rows: Sequence[Row]
    baseline: Row | None
    room: Room | None
    """Memory of a device of these runs."""
    losses: Losses = field(default_factory=Losses)
    places: Mapping[int, Place] = field(default_factory=dict)
    """By run: where it ran."""
    ranking: Ranking | None = None
    """The runs by their loss, where that is what the study compares."""
    others_open: bool = False
    """Whether runs that have no row here have not ended."""

    @property
    def by_time(self) -> list[Row]:
        """The rows with a final result, fastest first."""
        timed = [(row.entry.result.step.median, row) for row in self.rows if row.entry.done and row.entry.result]
        return [row for _, row in sorted(timed, key=itemgetter(0))]

    @cached_property
    def fields(self) -> str:
        """The fields that short names of the runs leave out; '' where all names are whole."""
        return next((row.entry.fields for row in self.rows if row.entry.fields), "")

    @property
    def own_cuts(self) -> bool:
        """Whether any run has cuts of its own, which no model of another depth could have."""
        return any(row.spec.parallel.cuts for row in self.rows)

    @property
    def limit(self) -> int | None:
        return self.room.whole if self.room else None

    @property
    def entries(self) -> list[Entry]:
        return [row.entry for row in self.rows]

    @property
    def results(self) -> list[Result]:
        """Results of the runs that succeeded."""
        return [row.entry.result for row in self.rows if row.entry.done and row.entry.result]

    @property
    def base(self) -> Result | None:
        return self.baseline.entry.result if self.baseline and self.baseline.entry.done else None

    @property
    def open(self) -> list[Row]:
        """Rows of the runs that have not ended."""
        return [row for row in self.rows if row.run.state not in ENDED]

    @property
    def verdict(self) -> list[str]:
        """What the study finds: which run trained best, if it compares that, and which is fastest."""
        times, front = self._of_times, self._before_lead
        return [*times[:front], *filter(None, (self.lead,)), *times[front:]]

    @property
    def _before_lead(self) -> int:
        """How many warnings are in front of the lowest loss: those on times, if it depends on the speed of the runs."""
        if self.base is None or not self.ranking or not self.ranking.within:
            return 0
        return 1 if self.side_by_side else self.warned_first

    @cached_property
    def lead(self) -> str:
        """Which runs reached the lowest loss; '' without a ranking by it."""
        who = self.ranking.lowest({row.run.pk: row.entry.label for row in self.rows}) if self.ranking else ""
        so_far = self.others_open or bool(self.open)
        return self.ranking.sentence(who, so_far=so_far) if self.ranking and who else ""

    @cached_property
    def _of_times(self) -> list[str]:
        if self.base is None:
            lost = excluded.diverged([r.label for r in self.results if r.diverged]) if self.lead else ""
            return [self._without_baseline(), *filter(None, (lost,)), *self.left_out]
        if self.no_race:
            return self.cautioned([self.no_race])
        alike = self.like_for_like.results
        told = min(alike, key=lambda r: r.step.median) if len(alike) > 1 else None
        return self.cautioned(sentences.verdict(alike, self.base), told)

    @property
    def side_by_side(self) -> bool:
        """Whether any run with a result belongs to a study whose runs share hosts."""
        return any(row.entry.done and row.run.shares_hosts for row in self.rows)

    @property
    def no_race(self) -> str:
        """Why no run is called faster than another: they shared hosts, or no other of the baseline's kind of model has
        finished, though others have; else ''."""
        if self.side_by_side and len(self.results) > 1:
            return SIDE_BY_SIDE
        if self.base is None or not len(self.like_for_like.results) == 1 < len(self.results):
            return ""
        step, label = seconds_text(self.base.step.median), self.base.label
        return f"{step} a step: no other run of the kind of model of {label} has finished."

    @property
    def on_times(self) -> str:
        """The first sentence on times of the verdict that is not a warning."""
        return self._of_times[self.warned_first if self.base is not None else 0]

    @property
    def headlines(self) -> int:
        """How many sentences of the verdict stand for it in a list: the first, or if that warns, also what it is
        about."""
        return 1 + (self._before_lead if self.lead else self.warned_first)

    def cautioned(self, said: Sequence[str], told: Result | None = None) -> list[str]:
        """The sentences with warnings about the measurements: in front, if all of them depend on it, else after them.

        `told` = the run of which the sentences already say whether its loss is finite. Of times that are not compared
        none warns.
        """
        diverged = excluded.diverged([r.label for r in self.results if r.diverged and r is not told])
        skipping = excluded.skipping([(row.entry.label, row.run) for row in self.rows if row.entry.done])
        if self.side_by_side:
            return [sentence for sentence in (*said, diverged, skipping, *self.left_out) if sentence]
        done = [entry for entry in self.entries if entry.done]
        used = cautions.disturbed([entry.others for entry in done], DISTURBED_ABOVE)
        warning = used or cautions.occupied([entry.label for entry in done if entry.processes])
        before, after = ([warning], [""]) if self.mostly_disturbed else ([self._baseline_warning], [warning])
        machines = self.machines
        (before if machines.mostly else after).append(machines.warning)
        (before if self._few_steps_in_all else after).append(cautions.few_steps(self.like_for_like.results))
        if not self.mostly_disturbed:
            after.append(host_drift.drift_warning(self.pace_spread, self._at_one_pace, hosts=bool(machines.moved)))
        after.append(host_drift.contention_warning(self.companies))
        after += [self._crowded, diverged, skipping, *self.left_out]
        return [sentence for sentence in (*before, *said, *after) if sentence]

    @property
    def _crowded(self) -> str:
        """How many runs had more devices than there are cores for them; '' if none."""
        study = self.baseline.run.study if self.baseline else None
        cores = study.shared_cores if study else 0
        done = [row for row in self.rows if row.entry.done]
        many = sum(row.run.devices > cores and row.spec.train.device == "cpu" for row in done)
        return cautions.crowded(many, len(done), cores) if cores else ""

    @property
    def left_out(self) -> list[str]:
        """Which runs are not compared because they ended without a result, and why."""
        return excluded.sentences([(row.entry.label, row.run) for row in self.rows])

    @property
    def _baseline_warning(self) -> str:
        return cautions.disturbed_baseline(self.base) if self.base else ""

    @property
    def warned_first(self) -> int:
        """The number of warnings before the first sentence of a verdict."""
        if self.side_by_side:
            return 0
        return (self.mostly_disturbed or bool(self._baseline_warning)) + self.machines.mostly + self._few_steps_in_all

    @property
    def _few_steps_in_all(self) -> bool:
        """Whether too few timed steps are part of every ratio over the baseline, as it has too few itself."""
        return self.base is not None and bool(cautions.few_steps(self.like_for_like.results)) and self.base.step.few

    @property
    def machines(self) -> Machines:
        """Where the runs that are held against the baseline ran: done, of its kind of model."""

        def placed(row: Row) -> tuple[str, Place]:
            return row.entry.label, self.places.get(row.run.pk, NOWHERE)

        others = [row for row in self.rows if row is not self.baseline and row.entry.done and row.alike]
        return Machines(placed(self.baseline) if self.baseline else ("", NOWHERE), list(map(placed, others)))

    @property
    def pace_spread(self) -> float | None:
        """See `host_drift.spread`."""
        return host_drift.spread([entry.pace for entry in self.entries if entry.pace])

    @property
    def companies(self) -> dict[int, float]:
        """See `host_drift.contention_by_ranks`; without one rank."""
        found = host_drift.contention_by_ranks(entry.pace for entry in self.entries if entry.pace)
        return {ranks: longer for ranks, longer in found.items() if ranks > 1}

    @property
    def _at_one_pace(self) -> tuple[str, float, str] | None:
        """(fastest run at the baseline's pace of the host, its speedup there, the baseline); None if not known, as the
        pace of any of them is not: at one pace it might be the fastest."""
        compared = [entry for entry in self.entries if entry.done and entry.speed]  # else of another kind of model
        gains = [(entry.at_pace or entry.speed.ratio, entry.label) for entry in compared if entry.speed]
        unknown = any(entry.drift is None for entry in compared)
        if self.base is None or unknown or not any(entry.at_pace for entry in compared):
            return None
        most, label = max(gains)
        return label, most, self.base.label

    @property
    def mostly_disturbed(self) -> bool:
        """Whether more than half of the runs that are done were disturbed."""
        done = [entry for entry in self.entries if entry.done]
        return 2 * sum(entry.disturbed for entry in done) > len(done)

    def _without_baseline(self) -> str:
        done, every = len(self.results), len(self.rows)
        if self.baseline is None:
            return f"{finished_text(done, every)}."
        label, yet = self.baseline.entry.label, "" if self.baseline.entry.ended else " yet"
        if every == 1:
            return f"The only run, {label}, has no result{yet}."
        return f"{finished_text(done, every)}; the baseline, {label}, has no result{yet}."

    @property
    def like_for_like(self) -> Overview:
        """Only the runs of the baseline's kind of model: others have no speedup, and cannot be beaten in time."""
        return replace(self, rows=[row for row in self.rows if row.alike])

    @property
    def source(self) -> str:
        """The line below every chart of measured times."""
        counts = sorted({r.step.n for r in self.results})
        few = plural_text(counts[0] if counts else 0, "step")
        steps = f"{count_text(counts[0])} to {count_text(counts[-1])} steps" if len(counts) > 1 else few
        skipped = sorted({row.spec.train.warmup_steps for row in self.rows})
        words = " or ".join(map(str, skipped)) or "0"
        return f"measured, {steps}, {words} skipped, {len(self.results)} of {plural_text(len(self.rows), 'run')}"

    @property
    def step_sentence(self) -> str:
        """How steps of other batches are scaled, and which runs have no speedup."""
        if self.baseline is None:
            return ""
        batch = self.baseline.spec.train.global_batch
        step = f"A step is {plural_text(batch, 'sample')}, the baseline's batch, also where the run's own differs."
        scaled, unlike = any(row.entry.scaled_to for row in self.rows), not all(row.alike for row in self.rows)
        return " ".join([step] * scaled + [NO_SPEEDUP] * unlike)

    @property
    def peak_sentence(self) -> str:
        """Over which peak the utilisation of these runs is computed."""
        return peaks.sentence(
            [row.run for row in self.rows], {row.run.pk: row.meters for row in self.rows if row.meters}
        )

    @property
    def _compared(self) -> list[Row]:
        """All runs except those that ended without a result; [] if the baseline did."""
        if self.baseline and self.baseline.entry.ended:
            return []
        return [row for row in self.rows if not row.entry.ended]

    @property
    def parities(self) -> dict[str, Parity]:
        """The parity of the runs that are compared with the baseline, by label."""
        others = [row for row in self._compared if row is not self.baseline]
        return {row.entry.label: row.parity for row in others if row.parity}

    @property
    def parity_sentence(self) -> str:
        if self.baseline is None or all(row is self.baseline for row in self._compared):
            return ""
        others = [row for row in self._compared if row is not self.baseline and row.run.pk in self.losses.held]
        if not self.parities and others and self.baseline.run.pk in self.losses.held:
            why = why_not(self.baseline.spec, [row.spec for row in others])
            return f"No other run is meant to compute what {self.baseline.entry.label} does: {why}."
        spec, label = self.baseline.spec, self.baseline.entry.label
        normed = outline_of(spec.model).batch_norm
        unlike = sum(row.parity is None for row in others)
        allowed = {row.entry.label: tolerance(spec, row.spec) for row in others}
        return parity_sentence(self.parities, label, allowed, normed, unlike, self.losses.every)
