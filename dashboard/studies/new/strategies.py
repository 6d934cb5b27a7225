"""The strategies that studies compare: for each how it splits a model over n devices.

Beside the fixed ones are those that a person writes: pipelines whose stages differ, and schedules of their own
(`written`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from dashboard.studies.new.written import OwnSchedule, StageSplit, shown
from parallel_core.analysis.quantities import plural_text
from parallel_core.schedule.traits import CUSTOM, TRAITS

Split = Callable[[int], dict[str, Any] | None]
ENOUGH = 8
"""A number of devices that every strategy can use."""


@dataclass(frozen=True)
class Strategy:
    """A way to split a model over n devices. `split(n)` returns the degrees, or None if n does not allow it.

    `micro` = the strategy has a number of micro-batches to choose; others have `parts` of them, 1 = the whole batch of
    a replica at once. `replicas` = those of each stage that share its micro-batches, where they are counted over all
    replicas. `note` = what its runs' names have in addition to their label.
    """

    key: str
    title: str
    split: Split
    needs: str
    micro: bool = False
    schedule: str = "1f1b"
    parts: int = 1
    replicas: int = 1
    note: str = ""

    @property
    def axes(self) -> list[str]:
        """The axes that it splits: dp, tp, pp."""
        degrees = self.split(ENOUGH) or {}
        return [axis for axis in ("dp", "tp", "pp") if degrees.get(axis, 1) > 1]


def _from(least: int, multiple: int, degrees: Callable[[int], dict[str, Any]]) -> Split:
    return lambda n: degrees(n) if n >= least and n % multiple == 0 else None


STRATEGIES: tuple[Strategy, ...] = (
    Strategy("single", "Single", lambda n: {}, "1 device"),
    Strategy("single-m", "Single x micro-batches", lambda n: {}, "1 device", micro=True),
    Strategy("naive", "Naive layer-wise", _from(2, 1, lambda n: {"pp": n}), "at least 2 devices", schedule="naive"),
    Strategy("dp", "DP", _from(2, 1, lambda n: {"dp": n}), "at least 2 devices"),
    Strategy("zero1", "DP + ZeRO-1", _from(2, 1, lambda n: {"dp": n, "zero": 1}), "at least 2 devices"),
    Strategy("zero2", "DP + ZeRO-2", _from(2, 1, lambda n: {"dp": n, "zero": 2}), "at least 2 devices"),
    Strategy("zero3", "DP + ZeRO-3", _from(2, 1, lambda n: {"dp": n, "zero": 3}), "at least 2 devices"),
    Strategy(
        "fully-shard",
        "DP + ZeRO-3 (fully_shard)",
        _from(2, 1, lambda n: {"dp": n, "zero": 3, "zero_backend": "fully_shard"}),
        "at least 2 devices",
    ),
    Strategy("tp", "TP", _from(2, 1, lambda n: {"tp": n}), "at least 2 devices"),
    Strategy(
        "tp-columns",
        "TP by columns",
        _from(2, 1, lambda n: {"tp": n, "tensor_split": "columns"}),
        "at least 2 devices",
    ),
    Strategy("tp-sp", "TP + SP", _from(2, 1, lambda n: {"tp": n, "sequence": True}), "at least 2 devices"),
    Strategy("gpipe", "PP-GPipe", _from(2, 1, lambda n: {"pp": n}), "at least 2 devices", True, "gpipe"),
    Strategy("1f1b", "PP-1F1B", _from(2, 1, lambda n: {"pp": n}), "at least 2 devices", True),
    Strategy(
        "1f1b-early",
        "PP-1F1B + early gradients",
        _from(2, 1, lambda n: {"pp": n, "early_gradients": True}),
        "at least 2 devices",
        True,
    ),
    *(
        Strategy(name, TRAITS[name].label, _from(2, 1, lambda n: {"pp": n}), "at least 2 devices", True, name)
        for name in TRAITS
        if name not in ("naive", "gpipe", "1f1b", CUSTOM)  # listed above, or not made by name
    ),
    Strategy("dp-tp", "DP x TP", _from(4, 2, lambda n: {"dp": n // 2, "tp": 2}), "4 devices, or a larger even number"),
    Strategy(
        "dp-pp",
        "DP x PP-1F1B",
        _from(4, 2, lambda n: {"dp": n // 2, "pp": 2}),
        "4 devices, or a larger even number",
        True,
    ),
    Strategy(
        "tp-pp",
        "TP x PP-1F1B",
        _from(4, 2, lambda n: {"tp": 2, "pp": n // 2}),
        "4 devices, or a larger even number",
        True,
    ),
    Strategy(
        "dp-tp-pp",
        "DP x TP x PP-1F1B",
        _from(8, 4, lambda n: {"dp": n // 4, "tp": 2, "pp": 2}),
        "8 devices, or a larger multiple of 4",
        True,
    ),
)
BY_KEY = {s.key: s for s in STRATEGIES}
STARTER = ("single", "single-m", "naive", "dp", "tp", "gpipe", "1f1b")


def chosen(
    keys: Iterable[str], splits: Iterable[StageSplit] = (), schedules: Iterable[OwnSchedule] = ()
) -> list[Strategy]:
    """The strategies of these keys in the order of all; after each pipeline the same with its stages split so, and own
    schedules at the end."""
    wanted, written = set(keys), list(splits)
    out: list[Strategy] = []
    for strategy in STRATEGIES:
        if strategy.key in wanted:
            out += [strategy, *(_by_stage(strategy, split) for split in written if takes_splits(strategy))]
    return out + [_own(schedule) for schedule in schedules]


def takes_splits(strategy: Strategy) -> bool:
    """Whether its stages can be split differently: it is a pipeline, and nothing else."""
    return strategy.axes == ["pp"]


def _by_stage(pipeline: Strategy, split: StageSplit) -> Strategy:
    """The pipeline with its stages split so. Micro-batches count over all replicas, whether stages differ in them (as
    `ParallelSpec.replicas` has it) or not; else neighbouring splits would differ in their micro-batches, too."""
    alike = split.fields.get("dp", 1)

    def degrees(n: int) -> dict[str, Any] | None:
        own = pipeline.split(len(split.replicas))
        return None if own is None or split.world > n else {**own, **split.fields}

    return replace(
        pipeline,
        key=f"{pipeline.key} {split}",
        title=pipeline.title if alike > 1 else f"{pipeline.title} {split}",
        split=degrees,
        needs=f"{split.world} devices",
        replicas=alike if pipeline.micro else 1,
        note=shown(str(split)) if alike > 1 else "",
    )


def _own(own: OwnSchedule) -> Strategy:
    return Strategy(
        key=f"{CUSTOM} {own.name}",
        title=TRAITS[CUSTOM].label,
        split=lambda n: {"pp": own.world, "program": own.program} if own.world <= n else None,
        needs=plural_text(own.world, "device"),
        schedule=CUSTOM,
        parts=own.schedule.micro_batches,
        note=own.name,
    )
