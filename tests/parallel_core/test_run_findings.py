"""The records of a run as the diagnosis rules get them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_core.analysis.diagnosis import Case, run_case
from parallel_core.local import Outcome
from parallel_core.observe.records import SPAN, Frame
from parallel_core.run_findings import case_of, sentences
from parallel_core.spec import RunSpec


def traced(step: int) -> Frame:
    """One span, which ends at as many nanoseconds as the number of its step, so that steps can be told apart."""
    rows = np.zeros(1, SPAN)
    rows["end"] = step
    return Frame({"kind": "spans", "step": step, "count": 1, "total": 1}, rows.tobytes(), 0)


def phase(name: str, step: int) -> Frame:
    return Frame({"kind": "phase", "phase": name, "step": step}, b"", 0)


@pytest.mark.parametrize(
    ("told", "judged"),
    [
        ([phase("building", 0), phase("warmup", 0), phase("timed", 5)], [10, 20, 22, 30]),
        ([phase("building", 0), phase("warmup", 20), phase("timed", 25)], [30]),  # resumed from step 20
        ([phase("building", 0), phase("warmup", 20)], [30]),  # ended before its timed steps
        ([], [10, 20, 22, 30]),  # no phase was recorded
    ],
)
def test_the_first_steps_are_not_judged_of_a_run_that_goes_on_neither(told: list[Any], judged: list[int]) -> None:
    spec = RunSpec.model_validate({"train": {"steps": 40, "warmup_steps": 5}})
    frames = {0: [*told, *(traced(step) for step in (2, 10, 20, 22, 30))]}
    case = case_of(spec, Outcome(Path(), 0.0, frames=frames))
    assert [int(step[0]["end"][0]) for step in case.traced] == judged


def test_steps_of_the_warm_up_are_judged_where_no_other_was_traced() -> None:
    spec = RunSpec.model_validate({"train": {"steps": 40, "warmup_steps": 35}})
    cut = Frame({"kind": "spans", "step": 20, "count": 1, "total": 2}, traced(20).blob, 0)
    case = case_of(spec, Outcome(Path(), 0.0, frames={0: [traced(2), traced(10), cut]}))
    assert [int(step[0]["end"][0]) for step in case.traced] == [2, 10], "nor a step of which spans are missing"


def test_of_very_long_steps_one_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_case, "MANY_SPANS", 0)
    spec = RunSpec.model_validate({"train": {"steps": 40, "warmup_steps": 5}})
    case = case_of(spec, Outcome(Path(), 0.0, frames={0: [traced(10), traced(20)]}))
    assert [int(step[0]["end"][0]) for step in case.traced] == [20]


def test_the_checkpoints_that_are_kept_are_those_of_the_newest_record() -> None:
    saved = [
        Frame({"kind": "checkpoint", "step": kept[-1], "kept": kept}, b"", 0) for kept in ([10], [10, 20], [10, 30])
    ]
    cases = [case_of(RunSpec(), Outcome(Path(), 0.0, frames={0: saved[:count]})) for count in (0, 2, 3)]
    assert [case.checkpoints for case in cases] == [set(), {10, 20}, {10, 30}]


def test_where_nothing_was_found_it_says_why_not_all_rules_judged() -> None:
    (said,) = sentences(Case(RunSpec()))
    assert said.endswith(" rules: no step has been traced and no memory limit is known.")
