"""Makes a run's entry for charts and tables from its row and spec: measured, predicted, and what the run is doing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from dashboard.charts.chart import Entry
from dashboard.runs.form.form_words import in_ended_words
from dashboard.runs.memory_limits import device_memory
from dashboard.runs.models import ENDED, Attempt, Run, State
from dashboard.runs.places import NOWHERE, Place
from dashboard.runs.selectors import timed
from dashboard.runs.waiting.queue import everyone_waiting, told_closely
from dashboard.studies.overview.excluded import ended_of
from dashboard.studies.overview.names import WHOLE, Short
from parallel_core.analysis.breakdown import Breakdown
from parallel_core.analysis.disturbance import DISTURBED_ABOVE
from parallel_core.analysis.host_drift import Pace, drifts
from parallel_core.analysis.quantities import count_text, steps_text
from parallel_core.analysis.sentences import Result
from parallel_core.analysis.stats import Speedup, Stats, speedup
from parallel_core.plan.capacity import fixed_depth, largest_layers, walked_in_search
from parallel_core.plan.memory import MOST_WALKED, counted, worst_stage
from parallel_core.plan.room import Room
from parallel_core.plan.strategy import family, ideal_speedup, recompute_share
from parallel_core.spec import RunSpec


@dataclass(frozen=True)
class Setting:
    """What the runs of one page share: the baseline, the memory of a device, and why queued runs wait."""

    base: Run
    base_spec: RunSpec
    base_step: Stats | None
    waits: Mapping[int, str]
    room: Room | None = None
    """Memory of a device of these runs, or the cap of their specs."""
    details: bool = True
    """If False, only the run's row is read, and nothing is predicted."""
    cores: int = 0
    """Number of cores shared by all devices; 0 if each device has its own."""
    drift: Mapping[int, float | None] = field(default_factory=dict)
    """By run: see `Entry.drift`."""
    places: Mapping[int, Place] = field(default_factory=dict)
    """By run: where it ran."""

    def ideal(self, spec: RunSpec) -> float:
        """An upper bound of the speedup over one device: what the strategy allows, or the cores if they allow less.

        The two are not multiplied: a rank that idles in the bubble leaves its core to the others.
        """
        own = ideal_speedup(spec)
        shared = self.cores and spec.train.device == "cpu"
        return min(own, self.cores / (1 + recompute_share(spec))) if shared else own

    def ideals(self, run: Run, spec: RunSpec) -> tuple[float | None, float | None]:
        """The ideal speedup over one device, and over the baseline. None where more than the split differs from the
        baseline (model, batch, precision or device), as nothing bounds what that changes."""
        base = self.base_spec
        if any(part(spec) != part(base) for part in _BOUNDED) or self._on_other_devices(run):
            return None, None
        own = self.ideal(spec)
        return own, own / self._ideal_of_base

    @cached_property
    def _ideal_of_base(self) -> float:
        return self.ideal(self.base_spec)

    def _on_other_devices(self, run: Run) -> bool:
        own, base = (self.places.get(one.pk, NOWHERE) for one in (run, self.base))
        return own.other_devices(base)


_BOUNDED: tuple[Callable[[RunSpec], object], ...] = (
    lambda spec: spec.model,
    lambda spec: spec.train.global_batch,
    lambda spec: spec.train.precision,
    lambda spec: spec.train.device,
)
"""What two runs must share so that splitting alone decides between them."""


def entry_of(run: Run, spec: RunSpec, label: str, setting: Setting, short: Short = WHOLE, whole: str = "") -> Entry:
    """`short`: see `Entry.short`; `whole`: the label with all of its words; '' = as it is."""
    own = own_step(run, setting.details)
    step = scaled(own, spec, setting.base_spec)
    done = run.state == State.SUCCEEDED
    alone, ideal = setting.ideals(run, spec)
    baseline, base_batch = run.pk == setting.base.pk, setting.base_spec.train.global_batch
    broken = ", broken" if run.injected and not label.startswith("Broken") else ""
    whole = f"{whole}{broken}" if whole not in ("", label) else ""
    name, label = short.names.get(label, ""), f"{label}{broken}"
    return Entry(
        label=label,
        short=f"{name}{broken}" if name else "",
        fields=short.fields if name else "",
        whole=whole,
        family=family(spec),
        recompute=spec.parallel.recompute != "none",
        baseline=baseline,
        result=_result(run, spec, label, step, alone) if step else None,
        speed=_gain(run, spec, step, setting),
        ideal=ideal,
        others=run.summary.get("cpu_others"),
        processes=run.summary.get("other_processes") or 0,
        pace=pace_of(run),
        drift=setting.drift.get(run.pk),
        done=done,
        ended=ended_of(run),
        status="" if done else _status(run, spec, setting.waits.get(run.pk, "")),
        twin=twin_of(spec) if setting.details else "",
        worst_rank=(run.summary.get("memory") or {}).get("rank"),
        own=own,
        scaled_to=base_batch if spec.train.global_batch != base_batch else None,
        traced_median=_raw_median(run),
        predicted=worst_stage(spec).total if setting.details and counted(spec) else None,
        layers=spec.model.layers,
        largest=_largest(spec, setting),
        no_largest=_no_largest(spec) if setting.details else "",
    )


def _gain(run: Run, spec: RunSpec, step: Stats | None, setting: Setting) -> Speedup | None:
    """The speedup of a run with this step over the baseline, itself included; None where none is shown."""
    if step is None or setting.base_step is None or spec.model.kind != setting.base_spec.model.kind:
        return None  # there is no speedup between different kinds
    if (run.state in ENDED and run.state != State.SUCCEEDED) or run.shares_hosts or setting.base.shares_hosts:
        return None
    gain = speedup(setting.base_step, step)
    return replace(gain, within_noise=False) if run.pk == setting.base.pk else gain


def _result(run: Run, spec: RunSpec, label: str, step: Stats, ideal: float | None) -> Result:
    slowed = next((fault.title.lower() for fault in spec.inject if fault.slows), "")
    parts = _memory(run), _breakdown(run), run.devices, taken_of(run)
    return Result(label, step, ideal, *parts, diverged=run.diverged, slowed_by=slowed)


def taken_of(run: Run) -> float:
    """The share of one of its devices that other processes used, if they disturbed the run; else 0."""
    others = run.summary.get("cpu_others") or 0.0
    return others if others > DISTURBED_ABOVE else 0.0


def pace_of(run: Run) -> Pace | None:
    """The pace of the devices of a run that succeeded; else None."""
    found = run.summary.get("references") if run.state == State.SUCCEEDED else None
    return Pace(len(found), sum(found) / len(found), run.summary.get("company")) if found else None


def drift_of(runs: Sequence[Run], base: Run) -> dict[int, float | None]:
    """By run: see `Entry.drift`."""
    known = {run.pk: pace for run in runs if (pace := pace_of(run))}
    own = known.get(base.pk)
    return dict(zip(known, drifts(own, list(known.values())), strict=True)) if own else {}


def _largest(spec: RunSpec, setting: Setting) -> int | None:
    """The most layers that would fit; None if that is not needed or cannot be predicted."""
    if not setting.details or not setting.room or _no_largest(spec):
        return None
    return largest_layers(spec, setting.room.usable)


def _no_largest(spec: RunSpec) -> str:
    """Why the most layers that would fit cannot be predicted: a fixed depth, or it takes too long; '' if they can."""
    if fixed := fixed_depth(spec.model):
        return fixed.split(";")[0]
    long = walked_in_search(spec) > MOST_WALKED
    return "with so many stages and micro-batches it would take too long to predict" if long else ""


def twin_of(spec: RunSpec) -> str:
    """A text that is equal for runs that differ only in recomputation."""
    split = spec.parallel.model_copy(update={"recompute": "none", "recompute_layers": None})
    return spec.model_copy(update={"parallel": split}).model_dump_json()


def own_step(run: Run, details: bool = True) -> Stats | None:
    """Statistics of the seconds that the run's own steps take; of a running run, so far."""
    kept = run.summary.get("timed") if run.summary else None
    if kept:
        return Stats(kept["median"], kept["p10"], kept["p90"], kept["mean"], kept["n"])
    if run.step_time and run.state not in ENDED:
        return timed(run) if details else _point(run.step_time)
    return None


def scaled(own: Stats | None, spec: RunSpec, base: RunSpec) -> Stats | None:
    """The seconds that a step of the baseline's batch takes at the samples/s of the run's `own` steps."""
    if own is None or spec.train.global_batch == base.train.global_batch:
        return own
    factor = base.train.global_batch / spec.train.global_batch
    return Stats(own.median * factor, own.p10 * factor, own.p90 * factor, own.mean * factor, own.n)


def _point(value: float) -> Stats:
    return Stats(value, value, value, value, 0)


def waits_of(runs: Sequence[Run]) -> dict[int, str]:
    """Run id -> why it is still queued."""
    if not any(run.state == State.QUEUED for run in runs):
        return {}
    waits = told_closely(everyone_waiting(), [run.pk for run in runs])
    return {run.pk: waits[run.pk].sentence for run in runs if run.pk in waits}


def shared_room(runs: Sequence[Run], specs: Mapping[int, RunSpec]) -> Room | None:
    """The memory that a rank of these runs may use.

    It is the cap of their specs if all compared runs have the same one, because the cap of one run is no limit for
    another; else the memory of the smallest device of the newest attempt, as it was then where that is known.
    """
    compared = [run for run in runs if not ended_of(run)] or runs
    caps = {specs[run.pk].trace.memory_cap for run in compared}
    if len(caps) == 1 and (cap := caps.pop()):
        return Room(cap)
    newest = Attempt.objects.filter(run__in=[run.pk for run in runs]).order_by("-pk").first()
    if newest is None:
        return None
    run = next(run for run in runs if run.id == newest.run_id)
    return Room.on(device_memory(run, newest), specs[run.pk].train.device)


def _status(run: Run, spec: RunSpec, wait: str) -> str:
    """A few words for the row of a run without a final result."""
    if run.state == State.RUNNING:
        return f"running: {count_text(run.steps_done)} of {steps_text(spec.train.steps)}"
    if run.state == State.QUEUED:
        return f"queued: {wait}" if wait else "queued"
    if run.detail.lower().startswith(run.state):  # "Cancelled while it was queued …"
        return run.detail
    return f"{run.state}: {in_ended_words(run.detail, run.cause)}" if run.detail else str(run.state)


def _memory(run: Run) -> dict[str, int] | None:
    memory = run.summary.get("memory") if run.summary else None
    return dict(memory["peak"]) if memory and memory.get("peak") else None


def _breakdown(run: Run) -> Breakdown | None:
    parts = run.summary.get("breakdown") if run.summary else None
    return Breakdown(**parts) if parts else None


def _raw_median(run: Run) -> float | None:
    """Seconds: the run's own median, not scaled to another batch, for comparison with its traced step."""
    kept = run.summary.get("timed") if run.summary else None
    return float(kept["median"]) if kept else None
