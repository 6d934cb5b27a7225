"""Every way to split a profiled model over the devices of a host (`plan.fleet`), as a question and an answer."""

from __future__ import annotations

from collections import Counter
from typing import Any

from parallel_core.plan.fleet import splits
from parallel_core.profile.table import CostTable
from parallel_core.searches import Told, Value, silent
from parallel_core.spec import RunSpec


class Question(Value):
    """At most `devices`, `memory` bytes each (None: any)."""

    spec: RunSpec
    table: CostTable
    devices: int
    memory: float | None = None


class Way(Value):
    """A split that can run: `spec` is its RunSpec, `best` where none beats it in both time and memory."""

    name: str
    spec: dict[str, Any]
    devices: int
    seconds: float
    memory: int
    best: bool


class Answer(Value):
    """`able` fastest first; `refused` = (how many, why), most first."""

    able: tuple[Way, ...]
    refused: tuple[tuple[int, str], ...]


def answer(question: Question, told: Told = silent) -> Answer:
    """All splits, each predicted from the table."""
    found = splits(question.spec, question.table, question.devices, question.memory, told)
    front = found.pareto()
    able = [
        Way(
            name=split.name,
            spec=split.spec.model_dump(mode="json", exclude_defaults=True),
            devices=split.spec.parallel.world,
            seconds=split.seconds or 0.0,
            memory=split.memory,
            best=split in front,
        )
        for split in found.able
    ]
    reasons = Counter(split.why_not for split in found.refused).most_common()
    return Answer(able=tuple(able), refused=tuple((count, why) for why, count in reasons))
