"""What a study runs: pure functions from a base spec to variants, and the combinations left out, with the reason.

Nothing here uses the database, so the form can show the plan (and what it skips) before anything is queued.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product, starmap
from typing import Any, NamedTuple

from pydantic import ValidationError

from dashboard.placement.hosts import Request
from dashboard.studies.new import sweepable
from dashboard.studies.new.axes import Axes, Swept
from dashboard.studies.new.strategies import Strategy, chosen
from dashboard.studies.new.written import Again, OwnSchedule, StageSplit
from parallel_core import limits
from parallel_core.analysis.quantities import short_text
from parallel_core.plan import strategy as naming
from parallel_core.rules.stages import dashed_text
from parallel_core.schedule.traits import TRAITS, flushes
from parallel_core.spec import RunSpec, TrainSpec, field_errors
from workers.contract import ResumeFrom

MAX_RUNS = 200
"""The most runs of a study, including repeats."""
MOST_TRIED = 5 * MAX_RUNS
"""The most combinations that are looked at, with those that cannot run: the form plans while somebody types."""
MIN_TIMED_STEPS = 10
USUAL_TIMED_STEPS = 40
WARMUP_STEPS = 3
MOST_CALLED = limits.MAX_NAME - len(f" ({MOST_TRIED}), {limits.MAX_LAYERS} layers")
"""The most characters of a variant's name without its number. Behind that stands the number of the repeat or, in a fit,
that of the layers."""

Spec = dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """A run of a study before it is queued. `spec` is valid.

    With a `task` it does not train but generates text from the checkpoint `begins` (see `Run.task`).
    """

    name: str
    spec: RunSpec
    task: dict[str, Any] | None = None
    begins: ResumeFrom | None = None


@dataclass(frozen=True)
class Skipped:
    """A combination that cannot run, and the reason in words."""

    name: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """The variants in the order in which they run and are drawn, and what was left out."""

    variants: tuple[Variant, ...]
    skipped: tuple[Skipped, ...] = ()
    cut: bool = False
    """Whether there are more combinations than MOST_TRIED, so that the plan is not complete."""
    unchecked: int = 0
    """The number of variants for whose memory a preview had no time (`feasible.previewed`)."""
    uncounted: int = 0
    """The number of variants whose memory is not predicted (`memory.counted`), also when they are queued."""
    waits: Mapping[str, str] = field(default_factory=dict)
    """Why variants that no worker takes now would wait, as sentences by name (`feasible.feasible`)."""
    warnings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What is said of variants and keeps nobody from queueing them: sentences by name, by kind (`saving.warnings`)."""
    asks: Mapping[str, Request] = field(default_factory=dict)
    """What the variants ask the placement for, by name (`feasible.feasible`)."""

    @property
    def devices(self) -> int:
        """The number of devices that the largest variant needs."""
        return max((v.spec.parallel.world for v in self.variants), default=0)


class _Cell(NamedTuple):
    """A combination of a matrix."""

    strategy: Strategy
    again: Again
    precision: str
    m: int


def matrix(base: Spec, axes: Axes, timed_steps: int = USUAL_TIMED_STEPS) -> Plan:
    """Strategies x AR x precision x micro-batches, all with the base's model, batch and seed. Raises ValueError if a
    split, a schedule or a list of layers cannot be read."""
    found, cells = _Found(), _cells(axes)
    for cell in islice(cells, MOST_TRIED):
        found.add(_made(base, cell, axes.devices, timed_steps), _suffix(cell, axes))
    return found.plan(cut=next(cells, None) is not None)


def _cells(axes: Axes) -> Iterator[_Cell]:
    own = (OwnSchedule(*each) for each in axes.schedules)
    rows = chosen(axes.strategies, map(StageSplit.read, axes.splits), own)
    kinds = (*map(Again, axes.recompute), *map(Again.read, axes.layers))
    return (
        _Cell(strategy, again, precision, m)
        for precision in axes.precisions
        for again in kinds
        for strategy in rows
        for m in (axes.micro_batches if strategy.micro else (strategy.parts,))
    )


STREAMED = ("1f1b", *(name for name in TRAITS if not flushes(name)))


def stashing(base: Spec, *, devices: int = 2, micro_batches: int = 4, timed_steps: int = 100) -> Plan:
    """What a full pipeline costs and brings: 1F1B with its flush, every schedule without one, and DP.

    With three devices or more also PipeDream's two stages, of which the first has all devices but one. All clip by
    stage, the only clipping that schedules without a flush have. The first run is the one with a flush.
    """
    found = _Found()
    splits: list[Spec] = [{"pp": devices, "schedule": name, "micro_batches": micro_batches} for name in STREAMED]
    if devices > 2:
        splits.append(splits[STREAMED.index("1f1b-stash")] | {"pp": 2, "replicas": (devices - 1, 1)})
    for split in (*splits, {"dp": devices}):
        spec = with_steps(base, timed_steps)
        spec["parallel"] = split
        spec["train"]["clip"] = "stage"
        title = TRAITS[split["schedule"]].label if "schedule" in split else "DP"
        if "replicas" in split:
            title += f" {dashed_text(split['replicas'])}"
        found.add(valid(spec, title))
    return found.plan()


def sweep(base: Spec, swept: Swept, timed_steps: int = USUAL_TIMED_STEPS) -> Plan:
    """One run for each value of a field of `sweepable.fields`; with a second field one for each pair of values.

    A value that the rules refuse is skipped, with the rule; so is one that a run would not read, as its run would be
    another's twin.
    """
    cells, found = product(*([(path, value) for value in listed] for path, listed in swept.fields)), _Found()
    for cell in islice(cells, MOST_TRIED):
        made = _swept(base, cell, timed_steps)
        whys = {} if isinstance(made, Skipped) else {path: sweepable.unread(path, made.spec) for path, _ in cell}
        unread = [why for why in whys.values() if why]
        if unread:
            read = [each for each in cell if not whys[each[0]]]
            if read:  # once, called by what it reads
                found.add_new(_swept(base, read, timed_steps))
            made = Skipped(_called(cell), " ".join(unread))
        found.add(made, name=made.name)
    return found.plan(cut=next(cells, None) is not None)


def _swept(base: Spec, cell: Sequence[tuple[str, str]], timed_steps: int) -> Variant | Skipped:
    """The base with a value as typed for each of these fields, called by them."""
    spec, name = with_steps(base, timed_steps), _called(cell)
    for path, value in cell:
        section, leaf = path.split(".", 1)
        spec.setdefault(section, {})[leaf] = sweepable.parse(path, value)
        if path == "train.warmup_steps":
            spec["train"]["steps"] = _int(value, WARMUP_STEPS) + timed_steps
    if dict(cell).get("train.optimizer") == "adamw":
        spec["train"].pop("momentum", None)  # which only SGD reads, and which the rules refuse here
    made = valid(spec, name)
    return made if isinstance(made, Skipped) else replace(made, name=name)


def _called(cell: Iterable[tuple[str, str]]) -> str:
    return ", ".join(starmap(sweepable.named, cell))


def with_steps(base: Spec, timed_steps: int) -> Spec:
    """A copy of the base that trains its warm-up (3 steps if it has none) and then `timed_steps` steps."""
    spec = copy.deepcopy(base)
    train = spec.setdefault("train", {})
    warmup = _int(train.setdefault("warmup_steps", WARMUP_STEPS), WARMUP_STEPS)
    train["steps"] = warmup + timed_steps
    return spec


def batch_of(spec: Spec) -> int:
    """The global batch of a spec, or the default."""
    return _int(spec.get("train", {}).get("global_batch"), TrainSpec.model_fields["global_batch"].default)


def _int(value: Any, otherwise: int) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return otherwise


def _made(base: Spec, cell: _Cell, devices: int, timed_steps: int) -> Variant | Skipped:
    strategy, again, precision, m = cell
    title = f"{strategy.title} + {again.label}" if again.label else strategy.title
    degrees = strategy.split(devices)
    if degrees is None:
        return Skipped(title, f"needs {strategy.needs}; this study has {devices}.")
    if strategy.key == "single-m" and m == 1:
        return Skipped(title, "with one micro-batch it is the same as Single.")
    spec = with_steps(base, timed_steps)
    each, left = divmod(m, strategy.replicas)
    if left:
        count = strategy.replicas
        why = f"m = {m} counts over all replicas, and does not divide evenly over {count} of each stage"
        return Skipped(title, f"{why}; choose a multiple of {count}.")
    spec["parallel"] = {**degrees, "schedule": strategy.schedule, "micro_batches": each, **again.fields}
    spec["train"]["precision"] = precision
    if not flushes(strategy.schedule):
        spec["train"]["clip"] = "stage"  # without a flush there is no other clipping
    return valid(spec, title)


def valid(spec: Spec, title: str) -> Variant | Skipped:
    """A variant named by its strategy; if the rules refuse it, Skipped with `title` and their messages."""
    try:
        valid = RunSpec.model_validate(spec)
    except ValidationError as error:
        return Skipped(title, " ".join(field_errors(error).values()))
    return Variant(naming.label(valid), valid)


class _Found:
    """What the combinations came to so far, each once and in their order."""

    def __init__(self) -> None:
        self._variants: dict[RunSpec, Variant] = {}
        """By the spec itself, as its text would repeat the program of an own schedule."""
        self._skipped: dict[Skipped, None] = {}
        self._names: Counter[str] = Counter()

    def add(self, made: Variant | Skipped, suffix: str = "", name: str = "") -> None:
        """Adds one, called `name` if it can run; a second one of the same spec is left out. A name that is too long is
        shortened before `suffix`, and one that another spec has is numbered."""
        if isinstance(made, Skipped):
            self._skipped[Skipped(made.name + suffix, made.reason)] = None
            return
        called = short_text(name or made.name, MOST_CALLED - len(suffix)) + suffix
        if made.spec in self._variants:
            self._skipped[Skipped(called, "is already in the study.")] = None
            return
        self._names[called] += 1
        same = self._names[called]
        self._variants[made.spec] = Variant(f"{called} ({same})" if same > 1 else called, made.spec)

    def add_new(self, made: Variant | Skipped) -> None:
        """Adds one, unless its spec is here already."""
        if isinstance(made, Skipped) or made.spec not in self._variants:
            self.add(made, name=made.name)

    def plan(self, cut: bool = False) -> Plan:
        more = (Skipped("All further combinations", f"were not looked at: {too_many_text()}"),) if cut else ()
        return Plan(tuple(self._variants.values()), (*more, *self._skipped), cut)


def too_many_text() -> str:
    """Why a plan is cut."""
    return f"there are more than {MOST_TRIED}, and a study holds at most {MAX_RUNS} runs."


def _suffix(cell: _Cell, axes: Axes) -> str:
    """What must be added to the strategy's label so that names differ within the study."""
    strategy = cell.strategy
    parts = [strategy.note] if strategy.note else []
    if strategy.micro and strategy.key != "single-m" and len(axes.micro_batches) > 1:
        parts.append(f"m = {cell.m}")
    if len(axes.precisions) > 1:
        parts.append(cell.precision)
    return "".join(f", {part}" for part in parts)
