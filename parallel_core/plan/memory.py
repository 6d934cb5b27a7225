"""Whether a run fits on its devices; if not, what takes the memory and which changes make it fit.

The prediction itself (`predict`, `by_stage`) is in `plan.peak`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any

from pydantic import ValidationError

from parallel_core.analysis.names import CATEGORY_NAMES
from parallel_core.analysis.quantities import bytes_beside, bytes_text, percent_text
from parallel_core.layout import Layout
from parallel_core.outline import outline_of
from parallel_core.plan.alike import of_memory
from parallel_core.plan.backward import walked
from parallel_core.plan.peak import RankMemory, by_stage
from parallel_core.plan.room import Room, room_of
from parallel_core.rules import divisors
from parallel_core.spec import RunSpec

MOST_WALKED = 40_000
"""Most operations whose memory is walked through while somebody waits: about 0.5 s."""
_MOST_TRIED = 2 * MOST_WALKED
"""Most operations of all changes that are tried for one run."""
NOT_COUNTED = (
    "Its memory is not predicted: with so many stages and micro-batches it would have to be counted operation by "
    "operation. Fewer micro-batches, or another schedule such as 1F1B or zero bubble, are predicted."
)
_MOST_FIXES = 3
_SMALLER = "use a smaller model or batch"


@dataclass(frozen=True)
class Fix:
    """A change after which the run fits: its text, `{dotted field: value}`, and the worst rank's bytes with it."""

    text: str
    changes: dict[str, Any]
    total: int


@dataclass(frozen=True)
class Feasibility:
    """`fits` is None where the device's memory is unknown. `worst_rank`: first rank of the worst stage."""

    fits: bool | None
    worst_rank: int
    total: int
    sentence: str
    fixes: tuple[Fix, ...] = ()


def verdict(spec: RunSpec, device: Room | None, devices: int | None = None) -> Feasibility:
    """Compares the predicted peak of the worst rank with the room on a device, or with the run's own cap if that is
    less. Of a run that takes too long to count (MOST_WALKED) it only says so.

    `devices`: most devices that a proposed change may use (None: any number).
    """
    room = room_of(device, spec.trace.memory_cap)
    if not counted(spec):
        return Feasibility(None, 0, 0, NOT_COUNTED)
    worst = fullest(spec)
    needs = f"Needs {bytes_beside(worst.total, room.usable if room else 0)} on rank {worst.rank}"
    category, share = worst.largest()
    most = f"{CATEGORY_NAMES[category]} {'is' if category == 'optimizer' else 'are'} {percent_text(share)}"
    if room is None:
        return Feasibility(None, worst.rank, worst.total, f"{needs}; {most}. The device's memory is not known.")
    limit, what = room.usable, "device" if room == device else "memory cap"
    has = f" beside {bytes_text(room.reserved)} for the framework" if room.reserved else ""
    if worst.total <= limit:
        size = bytes_text(limit, 3)
        whole = f"{size} that the device has{has}" if room == device else f"memory cap of {size}"
        text = f"{needs}, {percent_text(worst.total / limit)} of the {whole}; {most}."
        return Feasibility(True, worst.rank, worst.total, text)
    fixes, all_tried = tried_fixes(spec, limit, devices)
    advice = (
        _advice(fixes) if fixes else _without_fault(spec, worst.rank, limit) or f"{none_fits(all_tried)}: {_SMALLER}."
    )
    text = f"{needs}, {bytes_text(worst.total - limit)} more than the {what} has{has}; {most}. {advice}"
    return Feasibility(False, worst.rank, worst.total, text, fixes)


def counted(spec: RunSpec) -> bool:
    """Whether the run's memory is predicted while somebody waits."""
    return walked(spec.parallel) <= MOST_WALKED


def counted_stages(spec: RunSpec) -> tuple[RankMemory, ...]:
    """`by_stage`, kept for the next time; () for a run that takes too long to count."""
    return _stages(of_memory(spec)) if counted(spec) else ()


@lru_cache(maxsize=64)
def _stages(spec: RunSpec) -> tuple[RankMemory, ...]:
    return tuple(by_stage(spec))


def worst_stage(spec: RunSpec) -> RankMemory:
    """Prediction for the stage that needs most. Cached: a page of runs asks for the same specs repeatedly, and for ones
    that differ in nothing that memory depends on."""
    return _worst_stage(of_memory(spec))


@lru_cache(maxsize=1024)
def _worst_stage(spec: RunSpec) -> RankMemory:
    return max(by_stage(spec), key=_total)


def needed(spec: RunSpec) -> list[RankMemory]:
    """`by_stage` plus the memory that the run's injected faults hold (as buffers, where the meter counts it): for each
    place the rank that needs most, the first of equal ones."""
    if not spec.inject:
        return by_stage(spec)
    layout, most = Layout.of(spec), dict[int, tuple[int, int]]()
    for rank in range(layout.world):
        if held := sum(fault.held_bytes(rank) for fault in spec.inject):
            place = layout.coords(rank).place
            most[place] = max(most.get(place, (0, 0)), (held, -rank))
    return [
        replace(memory, rank=-most[memory.stage][1], buffers=memory.buffers + most[memory.stage][0])
        if memory.stage in most
        else memory
        for memory in by_stage(spec)
    ]


def fullest(spec: RunSpec) -> RankMemory:
    """The one of `needed` that needs most; without faults cached, as `worst_stage`."""
    return max(needed(spec), key=_total) if spec.inject else worst_stage(spec)


def _total(memory: RankMemory) -> int:
    return memory.total


def find_fixes(spec: RunSpec, limit: int) -> tuple[Fix, ...]:
    """Up to three changes that make the worst rank fit into `limit` bytes, cheapest first.

    Every change is applied to the spec and validated; two changes are combined only where no single one suffices.
    """
    return tried_fixes(spec, limit)[0]


def tried_fixes(spec: RunSpec, limit: int, devices: int | None = None) -> tuple[tuple[Fix, ...], bool]:
    """`find_fixes`, and whether all changes were tried: some take too long while somebody waits."""
    search = _Search(limit, devices)
    single = [fix for steps in _ladders(spec) for fix in search.first(spec, steps)]
    return tuple((single or search.pairs(spec))[:_MOST_FIXES]), search.all_tried


_Step = tuple[str, dict[str, Any]]


def _ladders(spec: RunSpec) -> Iterator[list[_Step]]:
    """Kinds of change, cheapest first; each is a ladder of steps that save more and more."""
    split, widths = spec.parallel, outline_of(spec.model).tensor_widths()
    samples = spec.train.global_batch // split.dp
    yield [
        (f"use {m} micro-batches", {"parallel.micro_batches": m}) for m in divisors(samples) if m > split.micro_batches
    ]
    if split.pp > 1 and split.schedule == "gpipe":
        yield [("use the 1F1B schedule", {"parallel.schedule": "1f1b"})]
    if split.dp > 1:
        levels = (
            "shard the optimizer state (ZeRO-1)",
            "shard gradients and optimizer state (ZeRO-2)",
            "shard parameters, gradients and optimizer state (ZeRO-3)",
        )
        yield [(text, {"parallel.zero": zero}) for zero, text in enumerate(levels, 1) if zero > split.zero]
    yield list(_recomputations(spec))
    if spec.train.precision == "fp64":
        yield [("use fp32", {"train.precision": "fp32"})]
    if spec.train.precision in ("fp32", "fp64"):
        yield [("use bf16", {"train.precision": "bf16"})]
    yield [(f"split tensors {t} ways", {"parallel.tp": t}) for t in widths if t > split.tp]
    deeper = (p for p in (2, 4, 8, 16, 32, 64) if p > split.pp)
    yield [(f"use {p} pipeline stages", {"parallel.pp": p, "parallel.cuts": None}) for p in deeper]


def _recomputations(spec: RunSpec) -> Iterator[_Step]:
    """Not selective with a fused attention: its core keeps too little for that to help."""
    if spec.parallel.recompute == "none" and spec.model.attention == "plain":
        yield "recompute the attention cores", {"parallel.recompute": "selective"}
    if spec.parallel.recompute != "full":
        yield "recompute whole blocks", {"parallel.recompute": "full", "parallel.recompute_layers": None}


@dataclass
class _Search:
    """Searches the ladders for steps that are allowed and fit, until `left` operations have been walked through; a step
    that alone takes too long is left out."""

    limit: int
    devices: int | None
    left: int = _MOST_TRIED
    all_tried: bool = True

    def allowed(self, spec: RunSpec, steps: Iterable[_Step]) -> Iterator[tuple[RunSpec, Fix]]:
        for text, changes in steps:
            changed = _changed(spec, changes)
            if changed is None or (self.devices is not None and changed.parallel.world > self.devices):
                continue
            walk = walked(changed.parallel)
            if walk > min(MOST_WALKED, self.left):
                self.all_tried = False
                continue
            self.left -= walk
            yield changed, Fix(text, changes, max(map(_total, needed(changed))))

    def first(self, spec: RunSpec, steps: list[_Step]) -> list[Fix]:
        """The first step of a ladder that fits, if any."""
        return next(([fix] for _, fix in self.allowed(spec, steps) if fix.total <= self.limit), [])

    def pairs(self, spec: RunSpec) -> list[Fix]:
        """The last allowed step of one ladder combined with the first step of a later ladder that fits."""
        ladders = list(_ladders(spec))
        return [
            Fix(f"{end.text} and {fix.text}", {**end.changes, **fix.changes}, fix.total)
            for i, steps in enumerate(ladders)
            for changed, end in islice(self.allowed(spec, reversed(steps)), 1)
            for others in ladders[i + 1 :]
            for fix in self.first(changed, others)
        ]


def _changed(spec: RunSpec, changes: dict[str, Any]) -> RunSpec | None:
    """`spec` with dotted fields replaced; None where the result is invalid."""
    data = spec.model_dump()
    for field, value in changes.items():
        room, name = field.split(".")
        data[room][name] = value
    try:
        return RunSpec.model_validate(data)
    except ValidationError:
        return None


def none_fits(all_tried: bool) -> str:
    """Says that no change was found (`tried_fixes`), and of all changes only if all were tried; without a full stop."""
    return f"No change of the split {'alone' if all_tried else 'that could be tried at once'} makes it fit"


def _without_fault(spec: RunSpec, rank: int, limit: int) -> str:
    """Which fault to leave out, if what it holds on the rank is why the run does not fit; '' otherwise."""
    title = next((fault.title for fault in spec.inject if fault.held_bytes(rank)), "")
    alone = worst_stage(spec).total if title else 0
    return f"Leave the fault “{title}” out (needs {bytes_text(alone)})." if 0 < alone <= limit else ""


def _advice(fixes: tuple[Fix, ...]) -> str:
    texts = [f"{fix.text} (needs {bytes_text(fix.total)})" for fix in fixes]
    text = " or ".join(texts) if len(texts) < 3 else f"{texts[0]}, {texts[1]} or {texts[2]}"
    return f"{text[0].upper()}{text[1:]}."
