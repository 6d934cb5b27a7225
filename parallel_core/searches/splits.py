"""Every way to split a profiled model over the devices of a fleet (`plan.fleet`), as a question and an answer."""

from __future__ import annotations

from collections import Counter
from typing import Any

from parallel_core.plan.fleet import splits
from parallel_core.profile.curves import HostName, LinksBetween
from parallel_core.profile.table import CostTable
from parallel_core.searches import Told, Value, silent
from parallel_core.simulate.network import ALONE, Where
from parallel_core.spec import RunSpec


class Placement(Value):
    """Where a run of `world` ranks in tensor groups of `tp` would be: the host of each rank, which are several."""

    world: int
    tp: int
    hosts: tuple[HostName, ...]


class Question(Value):
    """At most `devices`, `memory` bytes each (None: any). Runs that no `lies` speaks of are on one host; `between` is
    what was timed of pairs of hosts."""

    spec: RunSpec
    table: CostTable
    devices: int
    memory: float | None = None
    lies: tuple[Placement, ...] = ()
    between: tuple[LinksBetween, ...] = ()


class Way(Value):
    """A split that can run: `spec` is its RunSpec, `best` where none beats it in both time and memory, `hosts` those
    that its ranks would be on, where they are several."""

    name: str
    spec: dict[str, Any]
    devices: int
    seconds: float
    memory: int
    best: bool
    hosts: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Its order was searched for: one more of a split that was tried with the known ones."""
        return bool(self.spec.get("parallel", {}).get("schedule") == "custom")


class Answer(Value):
    """`able` fastest first; `refused` = (how many, why), most first."""

    able: tuple[Way, ...]
    refused: tuple[tuple[int, str], ...]

    @property
    def tried(self) -> int:
        """Splits that were judged, as `told` counted them."""
        return sum(not way.found for way in self.able) + sum(count for count, _ in self.refused)


def answer(question: Question, told: Told = silent) -> Answer:
    """All splits, each predicted from the table."""
    lies = {(lie.world, lie.tp): lie.hosts for lie in question.lies}

    def placed(spec: RunSpec) -> Where:
        hosts = lies.get((spec.parallel.world, spec.parallel.tp))
        return Where(hosts, question.between) if hosts else ALONE

    found = splits(question.spec, question.table, question.devices, question.memory, told, placed)
    front = found.pareto()
    able = [
        Way(
            name=split.name,
            spec=split.spec.model_dump(mode="json", exclude_defaults=True),
            devices=split.spec.parallel.world,
            seconds=split.seconds or 0.0,
            memory=split.memory,
            best=split in front,
            hosts=tuple(dict.fromkeys(placed(split.spec).hosts)),
        )
        for split in found.able
    ]
    reasons = Counter(split.why_not for split in found.refused).most_common()
    return Answer(able=tuple(able), refused=tuple((count, why) for why, count in reasons))
