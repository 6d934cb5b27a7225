"""Every way to split a profiled model over the devices of a fleet (`plan.fleet`), as a question and an answer."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from parallel_core.outline.splits import IN_WORDS, Cut, cut_fields
from parallel_core.plan.fleet import splits
from parallel_core.profile.curves import HostName, LinksBetween
from parallel_core.profile.table import CostTable
from parallel_core.searches import ProgressCallback, Value, silent
from parallel_core.simulate.beyond import beyond
from parallel_core.simulate.network import ALONE, Where
from parallel_core.spec import RunSpec


class Placement(Value):
    """The devices of a run of `world` ranks in tensor-parallel groups of `tp` that needs at most `memory` bytes for the
    tensors of a rank (None: however many): the host of each rank, where these are several."""

    world: int
    tp: int
    hosts: tuple[HostName, ...] = ()
    memory: float | None = None


class Question(Value):
    """Splits over at most `devices` devices.

    `placements`: of runs, which without one are on a single host; of runs alike those that need less come first.
    `memory`: bytes for tensors of each device where these do not say (None: unlimited). `between`: measured links
    between hosts.
    """

    spec: RunSpec
    table: CostTable
    devices: int
    memory: float | None = None
    placements: tuple[Placement, ...] = ()
    between: tuple[LinksBetween, ...] = ()


class FeasibleSplit(Value):
    """A split that can run. `spec`: its RunSpec; `best`: no other split is better in both time and memory; `hosts`:
    those of its ranks, where there are several; `beyond`: what of its time was extrapolated (`simulate.beyond`)."""

    name: str
    spec: dict[str, Any]
    devices: int
    seconds: float
    memory: int
    best: bool
    hosts: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Whether its cuts, its order or the blocks that recompute were found by a search, in addition to a split that
        was tried with the usual ones."""
        parallel = self.spec.get("parallel", {})
        return bool(parallel.get("schedule") == "custom" or parallel.get("cuts") or parallel.get("recompute_layers"))


class Answer(Value):
    """`able`: splits that can run, fastest first; `refused`: (number of splits, reason), the most frequent first.
    `untimed`: words for the ways to split tensor groups that were not tried, as the table has no times of them."""

    able: tuple[FeasibleSplit, ...]
    refused: tuple[tuple[int, str], ...]
    untimed: tuple[str, ...] = ()

    @property
    def tried(self) -> int:
        """Number of splits that were evaluated: those reported to `on_progress`, and leaner ones of those too large."""
        return sum(not split.found for split in self.able) + sum(count for count, _ in self.refused)


def answer(question: Question, on_progress: ProgressCallback = silent) -> Answer:
    """Predicts all splits from the table."""
    placements: dict[tuple[int, int], list[Placement]] = {}
    for each in question.placements:
        placements.setdefault((each.world, each.tp), []).append(each)

    def placed(spec: RunSpec, needs: int) -> Where:
        able = placements.get((spec.parallel.world, spec.parallel.tp), [])
        hosts = next((each.hosts for each in able if each.memory is None or needs <= each.memory), ())
        return Where(hosts, question.between) if hosts else ALONE

    def memory(spec: RunSpec) -> float | None:
        able = placements.get((spec.parallel.world, spec.parallel.tp))
        return question.memory if not able or able[-1].memory is None else able[-1].memory

    found = splits(question.spec, question.table, question.devices, memory, on_progress, placed)
    front = found.pareto()
    able = [
        FeasibleSplit(
            name=split.name,
            spec=split.spec.model_dump(mode="json", exclude_defaults=True),
            devices=split.spec.parallel.world,
            seconds=split.seconds or 0.0,
            memory=split.memory,
            best=split in front,
            hosts=tuple(dict.fromkeys(placed(split.spec, split.memory).hosts)),
            beyond=beyond(split.spec, question.table, placed(split.spec, split.memory)),
        )
        for split in found.able
    ]
    reasons = Counter(split.why_not for split in found.refused).most_common()
    return Answer(
        able=tuple(able),
        refused=tuple((count, why) for why, count in reasons),
        untimed=_untimed(question.spec, question.table, question.devices),
    )


def _untimed(spec: RunSpec, table: CostTable, devices: int) -> tuple[str, ...]:
    """Words for the ways in which groups could be split that the table, which has times of others, has none of."""
    sizes = {tp for tp, _, _ in table.conditions if 1 < tp <= devices}
    known = {cut for tp, _, cut in table.conditions if tp in sizes}
    return tuple(
        words for cut, words in IN_WORDS.items() if cut not in known and any(_divides(spec, tp, cut) for tp in sizes)
    )


def _divides(spec: RunSpec, tp: int, cut: Cut) -> bool:
    """Whether the model can be split over `tp` ranks in this way."""
    with suppress(ValidationError):
        return bool(RunSpec.model_validate(spec.model_dump() | {"parallel": {"tp": tp, **cut_fields(cut)}}))
    return False
