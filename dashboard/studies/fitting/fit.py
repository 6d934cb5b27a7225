"""The fit study: what it runs, and what its runs say about the largest number of layers that fits.

A search has no state of its own: the numbers of layers that were tried, and how each ended, are the study's runs in the
database (`parallel_core.plan.largest` decides from them), so it survives the death of any process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from dashboard.runs.models import ENDED, Run, State
from dashboard.studies.models import Study
from dashboard.studies.new import variants
from dashboard.studies.new.axes import Axes
from dashboard.studies.new.variants import Plan, Skipped, Spec, Variant
from parallel_core import limits
from parallel_core.analysis.quantities import bytes_beside, bytes_text, listed_text, plural_text, ratio_text, short_text
from parallel_core.analysis.sentences import shortened
from parallel_core.plan import strategy as naming
from parallel_core.plan.capacity import least_layers, walked_in_search
from parallel_core.plan.largest import Search, search_for, trial
from parallel_core.plan.memory import MOST_WALKED, NOT_COUNTED, worst_stage
from parallel_core.spec import RunSpec, field_errors

KIND = "fit"
OUT_OF_MEMORY = "out_of_memory"
RETRIES = 2
"""A lost worker is no answer, so the run may be queued again this often."""
ENDED_EARLY = "The searches ended early"
"""How a study's note begins where an error ended its searches."""
MOST_SEARCHED = 4 * MOST_WALKED
"""Most operations that the predictions of a study's first runs walk through: the form plans while somebody types."""
NONE_LEFT = (
    "Its layers are not predicted: those of the variants before it took the time that a study has for that. "
    "Leave some of them out, or queue it in a study of its own."
)


def plan(base: Spec, axes: Axes, *, limit: Callable[[RunSpec], int], cap: int | None) -> Plan:
    """The first run of each search: the number of layers that the memory model predicts as the largest within the bytes
    that `limit` says of a spec, as the devices that it can have may differ from those of another.

    `cap` = bytes above which a run ends out of memory; None = only the device's own memory limits it.
    """
    enough = {**base.get("model", {}), "layers": 4 * axes.devices}  # for any of the pipelines
    every = variants.matrix({**base, "model": enough}, axes)
    made = list(_firsts(every.variants, limit, cap))
    skipped = [one for one in made if isinstance(one, Skipped)]
    return Plan(tuple(one for one in made if isinstance(one, Variant)), (*every.skipped, *skipped), every.cut)


def _firsts(every: Iterable[Variant], limit: Callable[[RunSpec], int], cap: int | None) -> Iterator[Variant | Skipped]:
    """The first run of each search, until MOST_SEARCHED operations have been walked through; those that need no walk
    follow anyhow. Counted as if none were cached, so that what is queued is what the form showed."""
    left = MOST_SEARCHED
    for variant in every:
        walk = walked_in_search(variant.spec)
        if walk > left:
            yield Skipped(variant.name, NOT_COUNTED if walk > MOST_SEARCHED else NONE_LEFT)
        else:
            left -= walk
            yield _first(variant, limit(variant.spec), cap)


def _first(variant: Variant, limit: int, cap: int | None) -> Variant | Skipped:
    search = search_for(variant.spec, limit)
    layers = search.following or search.least
    if not search.guess:
        least = variant.spec.model_copy(update={"model": variant.spec.model.model_copy(update={"layers": layers})})
        total = worst_stage(least).total
        needs, room = bytes_beside(total, limit), bytes_beside(limit, total)
        return Skipped(variant.name, f"needs {needs} with {layers_text(layers)}; there is room for {room}.")
    try:
        return Variant(run_name(variant.name, layers), trial(variant.spec, layers, cap))
    except ValidationError as error:
        return Skipped(variant.name, " ".join(field_errors(error).values()))


def layers_text(layers: int) -> str:
    return plural_text(layers, "layer")


def run_name(label: str, layers: int) -> str:
    tail = f", {layers_text(layers)}"
    return short_text(label, limits.MAX_NAME - len(tail)) + tail


@dataclass(frozen=True)
class LayerSearch:
    """One strategy's search: its runs in the order in which they were queued, and their results."""

    label: str
    spec: RunSpec
    runs: Sequence[Run]
    search: Search

    @property
    def is_single(self) -> bool:
        """Whether it is the plain search on one device: no micro-batches, no recomputation."""
        split = self.spec.parallel
        return split.world == split.micro_batches == 1 and split.recompute == "none"

    @property
    def under_way(self) -> Run | None:
        """A run of the search that has not ended; None if there is none."""
        return next((run for run in self.runs if run.state not in ENDED), None)

    @property
    def stopped(self) -> Run | None:
        """A run that ended without an answer: cancelled, lost, or failed for another reason than memory. Of runs with
        as many layers only the newest counts: the others were run again."""
        newest = {_layers(run): run for run in sorted(self.runs, key=lambda run: run.pk)}
        return next((run for run in newest.values() if run.state in ENDED and not _answers(run)), None)

    @property
    def following(self) -> int | None:
        """The number of layers to run next; None while a run is under way, or if the search is over."""
        return None if self.under_way or self.stopped else self.search.following

    @property
    def over(self) -> bool:
        return self.under_way is None and self.following is None

    @property
    def predicted(self) -> int:
        """Predicted largest number of layers."""
        return self.search.guess

    @property
    def largest(self) -> int | None:
        """The most layers that fitted, 0 if none did; None until the search is over."""
        if not self.over or self.stopped:
            return None
        return self.search.largest or 0

    @property
    def bounded(self) -> bool:
        """Whether as many layers fitted as a spec may have, so that the largest number is not known."""
        return self.search.refused is None and self.largest == self.search.most

    @property
    def off(self) -> int | None:
        """Predicted minus measured layers; None while the largest number is not known."""
        return None if self.largest is None or self.bounded else self.predicted - self.largest

    @property
    def best(self) -> Run | None:
        """The run with the most layers that fitted so far."""
        return self._of(self.search.largest)

    @property
    def refused(self) -> Run | None:
        """The run with the fewest layers that did not fit."""
        return self._of(self.search.refused)

    @property
    def peak(self) -> int | None:
        """Peak bytes on the worst rank of `best`; None if it is not known yet."""
        memory = (self.best.summary or {}).get("memory") if self.best else None
        return memory["peak_total"] if memory else None

    def _of(self, layers: int | None) -> Run | None:
        return next((run for run in self.runs if _answers(run) and _layers(run) == layers), None)


def stopped(runs: Iterable[Run]) -> list[Run]:
    """The runs that ended the searches of a fit study without an answer; run again, they let them go on."""
    return [run for hunt in hunts(runs) if (run := hunt.stopped)]


def search_on(study: Study) -> None:
    """Lets the searches of a fit study go on, inside the caller's transaction, which holds the lock of its row."""
    study.settings = {**study.settings, "searching": True}
    if study.settings.get("note", "").startswith(ENDED_EARLY):
        del study.settings["note"]
    study.save(update_fields=("settings",))


def hunts(runs: Iterable[Run]) -> list[LayerSearch]:
    """The searches of a fit study, in the order in which they were queued."""
    groups: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.position, run.pk)):
        spec = RunSpec.stored(run.spec)
        alike = spec.model_copy(update={"model": spec.model.model_copy(update={"layers": 1})})
        groups.setdefault(alike.model_dump_json(), []).append(run)
    specs = [RunSpec.stored(own[0].spec) for own in groups.values()]
    plain = [naming.label(spec) for spec in specs]
    return [
        _hunt(own, spec, label if plain.count(label) == 1 else f"{label}, {_detail(spec)}")
        for own, spec, label in zip(groups.values(), specs, plain, strict=True)
    ]


def _detail(spec: RunSpec) -> str:
    """What distinguishes two searches of one strategy."""
    return f"m = {spec.parallel.micro_batches}, {spec.train.precision}"


def single_of(found: Sequence[LayerSearch], hunt: LayerSearch) -> LayerSearch | None:
    """The plain search on one device in the same precision."""
    alike = (other for other in found if other.spec.train.precision == hunt.spec.train.precision)
    return next((other for other in alike if other.is_single), None)


def _hunt(runs: Sequence[Run], spec: RunSpec, label: str) -> LayerSearch:
    tried = {_layers(run): run.state == State.SUCCEEDED for run in runs if _answers(run)}
    search = Search(spec.model.layers, tried, least=least_layers(spec))
    return LayerSearch(label, spec, runs, search)


def _layers(run: Run) -> int:
    return int(run.spec["model"]["layers"])


def _answers(run: Run) -> bool:
    return run.state == State.SUCCEEDED or (run.state == State.FAILED and run.cause == OUT_OF_MEMORY)


def sentences(found: Sequence[LayerSearch], limit: int | None) -> list[str]:
    """The first sentences of the page: the largest of all, and what is still open."""
    done = [hunt for hunt in found if hunt.largest is not None]
    said = [_largest(done, limit, len(found))] if done else []
    opened = sum(not hunt.over for hunt in found)
    if opened:
        said.append(f"{opened} of {len(found)} searches {'is' if opened == 1 else 'are'} still under way.")
    for hunt in found:
        if hunt.stopped:
            said.append(f"{hunt.label} was not found: its run of {layers_text(_layers(hunt.stopped))} gave no answer.")
    return said or ["0 searches have runs."]


def _largest(done: Sequence[LayerSearch], limit: int | None, searches: int) -> str:
    """Who holds the most layers, of so many `searches`."""
    most = max(hunt.largest or 0 for hunt in done)
    best = [hunt for hunt in done if hunt.largest == most]
    device = "its device" if len(best) == 1 else "their devices"
    room = f"in {bytes_text(limit)}" if limit else f"on {device}"
    who = f"{listed_text(shortened([hunt.label for hunt in best]))} {'fits' if len(best) == 1 else 'fit'}"
    if best[0].bounded:
        return f"{who} at least {layers_text(most)} {room}, the most a spec may have."
    text, single = f"{who} {layers_text(most)} {room}", single_of(done, best[0])
    if single and single.largest and single not in best:
        return f"{text}: {ratio_text(most / single.largest)} the single device."
    every = "of all" if len(done) == searches else "so far"
    return f"{text}, the most {every}." if len(best) < len(done) else f"{text}."


def accuracy(found: Sequence[LayerSearch]) -> str:
    """How predicted layers compare with measured ones, as far as the searches have ended; else what is predicted."""
    done = [hunt for hunt in found if hunt.largest is not None]
    if not done:
        return _guesses(found)
    off = [hunt.off for hunt in done if hunt.off is not None]
    if not off:
        return "Predicted against measured: not known, as no search ended below the most layers a spec may have."
    counts = {
        "equal": off.count(0),
        "below by one layer": off.count(-1),
        "further below": sum(one < -1 for one in off),
        "above": sum(one > 0 for one in off),
    }
    parts = [f"{count} {where}" for where, count in counts.items() if count]
    none = "" if counts["above"] else ", none above"
    return f"Predicted against measured: {', '.join(parts)}{none}."


def _guesses(found: Sequence[LayerSearch]) -> str:
    if not found:
        return "0 searches have runs."
    least, most = (pick(found, key=lambda hunt: hunt.predicted) for pick in (min, max))
    said = f"{most.label} is predicted to hold {layers_text(most.predicted)}"
    return f"{said}, {least.label} {least.predicted}." if most.predicted > least.predicted else f"{said}."
