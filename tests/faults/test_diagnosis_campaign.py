"""The diagnosis campaign: every fault is really injected, once plainly and once barely visible, next to healthy runs of
five strategies.

The confusion table is printed (`-s` shows it at once). A run is repeated if other processes disturbed it, or if its
ranks' devices were unequally fast: another guest on the second hardware thread of a core turns it into a straggler, or
hides the injected one. Runs that are still disturbed then are counted separately, since they say nothing about the
rules. Delays are given as shares of the healthy step of the same round, because a delay that is visible on a fast host
disappears on a slow one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from parallel_core import faults
from parallel_core.analysis.diagnosis import Case, diagnose
from parallel_core.local import LocalRunner
from parallel_core.run_findings import case_of
from parallel_core.spec import RunSpec

pytestmark = [pytest.mark.faults, pytest.mark.full, pytest.mark.alone, pytest.mark.timeout(7200)]
ROUNDS = int(os.environ.get("TRAINYARD_CAMPAIGN_ROUNDS", "8"))
AGAIN = 3
RIGHT = 0.95
UNEVEN = 1.15
"""Largest accepted ratio of the times that the reference work takes on the slowest and on the fastest device of a
run.
"""
MODEL = {"layers": 4, "hidden": 128, "heads": 4, "seq": 128}
TRAIN = {"steps": 23, "warmup_steps": 3, "global_batch": 16, "stop_on_nan": False}
PP: dict[str, Any] = {"pp": 2, "micro_batches": 8}
DP, TP = {"dp": 2}, {"tp": 2}
STRATEGIES: dict[str, dict[str, Any]] = {
    "single": {},
    "DP 2": DP,
    "TP 2": TP,
    "1F1B": PP,
    "GPipe": PP | {"schedule": "gpipe"},
}


class Injection(NamedTuple):
    """A fault, the layout it is injected into, and the rules that name it. `{}` in the fault stands for a delay in
    milliseconds, `of_step` times a healthy step of the layout.
    """

    fault: str
    split: dict[str, Any]
    rules: tuple[str, ...]
    train: dict[str, Any] = {}
    of_step: float = 0.0


INJECTIONS = {
    "straggler, plain": Injection("straggler:rank=1,factor=3", DP, ("straggler",)),
    "straggler, barely": Injection("straggler:rank=1,factor=1.5", DP, ("straggler",)),
    "straggler in a pipeline, plain": Injection("straggler:rank=1,factor=3", PP, ("straggler",)),
    "slow link, plain": Injection("slow_link:ms={:.1f}", PP, ("slow_link",), of_step=0.17),
    "slow link, barely": Injection("slow_link:ms={:.1f}", PP, ("slow_link",), of_step=0.06),
    "slow all-reduce, plain": Injection("slow_group:axis=data,ms={:.1f}", DP, ("exposed_reduction",), of_step=0.9),
    "slow all-reduce, barely": Injection("slow_group:axis=data,ms={:.1f}", DP, ("exposed_reduction",), of_step=0.35),
    "slow tensor group, plain": Injection("slow_group:axis=tensor,ms={:.1f}", TP, ("tensor_too_fine",), of_step=0.12),
    "slow tensor group, barely": Injection("slow_group:axis=tensor,ms={:.1f}", TP, ("tensor_too_fine",), of_step=0.05),
    "unbalanced cut, plain": Injection("unbalanced_cut:stage=0,units=3", PP, ("unbalanced_stages",)),
    "unbalanced cut, barely": Injection("unbalanced_cut:stage=0,units=1", PP, ("unbalanced_stages",)),
    "slow data, plain": Injection("slow_data:ms={:.1f}", DP, ("data_stall",), of_step=1.1),
    "slow data, barely": Injection("slow_data:ms={:.1f}", DP, ("data_stall",), of_step=0.28),
    "memory hog, plain": Injection("memory_hog:mib=256", {}, ("memory_surplus",)),
    "memory hog, barely": Injection("memory_hog:mib=48", {}, ("memory_surplus",)),
    "learning rate, plain": Injection("high_lr:factor=1e6,step=5", {}, ("divergence",)),
    "learning rate, barely": Injection("high_lr:factor=1000,step=12", {}, ("divergence",)),
    "loss scale, plain": Injection("high_scale:scale=1e30", {}, ("divergence",), {"precision": "fp16"}),
    "loss scale, barely": Injection("high_scale:scale=1e12", {}, ("divergence",), {"precision": "fp16"}),
    # On one rank only: in the spans, a rank that is busy launching kernels looks like one that computes longer.
    "tiny kernels, plain": Injection("tiny_kernels:rank=1,count=20000", DP, ("straggler", "tiny_kernels")),
}


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    with LocalRunner() as runner:
        yield runner


def spec_of(split: dict[str, Any], train: dict[str, Any], *inject: str) -> RunSpec:
    given = {"model": MODEL, "parallel": split, "train": TRAIN | train, "trace": {"trace_every": 2}}
    return RunSpec.model_validate(given | {"inject": [faults.parse(text) for text in inject]})


class Found(NamedTuple):
    """The rule of the first finding, "" without a finding, "disturbed" if each of AGAIN attempts was; and the median of
    the timed steps of the last attempt in milliseconds."""

    rule: str
    step_ms: float


def first_finding(runner: LocalRunner, folder: Path, spec: RunSpec) -> Found:
    for attempt in range(AGAIN):
        outcome = runner.run(spec, folder / str(attempt))
        assert outcome.ok, outcome.failure()
        case = case_of(spec, outcome)
        rule = "disturbed" if uneven(case) else next((finding.rule for finding in diagnose(case)), "")
        if rule != "disturbed":
            break
    return Found(rule, 1e3 * float(np.median(outcome.series("step_time")["value"][TRAIN["warmup_steps"] :])))


def uneven(case: Case) -> bool:
    return max(case.paces.values(), default=0.0) > UNEVEN * min(case.paces.values(), default=0.0)


def table(rows: dict[str, Counter[str]]) -> str:
    columns = sorted({rule for row in rows.values() for rule in row})
    head = f"{'injected':34}" + "".join(f"{column or 'silent':>20}" for column in columns)
    return "\n".join(
        [head, *(f"{name:34}" + "".join(f"{row[c] or '':>20}" for c in columns) for name, row in rows.items())]
    )


def test_every_fault_is_found_first_and_healthy_runs_are_silent(runner: LocalRunner, tmp_path: Path) -> None:
    broken: dict[str, Counter[str]] = {name: Counter() for name in INJECTIONS}
    healthy: dict[str, Counter[str]] = {name: Counter() for name in STRATEGIES}
    for i in range(ROUNDS):
        steps: dict[str, float] = {}
        for name, split in STRATEGIES.items():
            found = first_finding(runner, tmp_path / name / str(i), spec_of(split, {}))
            healthy[name][found.rule] += 1
            steps[str(split)] = found.step_ms
        for name, case in INJECTIONS.items():
            delay = case.of_step * steps[str(case.split)]
            spec = spec_of(case.split, case.train, case.fault.format(delay))
            broken[name][first_finding(runner, tmp_path / name / str(i), spec).rule] += 1
    right = sum(broken[name][rule] for name, case in INJECTIONS.items() for rule in case.rules)
    judged = sum(row.total() - row["disturbed"] for row in broken.values())
    silent = sum(row[""] for row in healthy.values())
    asked = sum(row.total() - row["disturbed"] for row in healthy.values())
    print(f"\n{table(broken | {f'healthy {name}': row for name, row in healthy.items()})}")
    print(f"right finding first: {right} of {judged}; healthy and silent: {silent} of {asked}; the rest was disturbed")
    assert judged and right >= RIGHT * judged
    assert asked and silent >= RIGHT * asked
