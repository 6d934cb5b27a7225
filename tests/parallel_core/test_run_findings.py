"""The records of a run as the diagnosis rules get them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_core.analysis.diagnosis import Case, run_case
from parallel_core.analysis.step_waits import StepWaits
from parallel_core.cli.train import _ending
from parallel_core.exits import Exit
from parallel_core.observe import record_files
from parallel_core.observe.record_files import FileSink, Frame, segments
from parallel_core.observe.records import POINT, SPAN, STEP_SUM, WAIT
from parallel_core.outcome import Outcome
from parallel_core.run_findings import case_of, sentences
from parallel_core.spec import RunSpec
from tests.parallel_core.frames import outcome_of


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
def test_the_first_steps_are_not_judged_of_a_run_that_goes_on_neither(
    told: list[Any], judged: list[int], tmp_path: Path
) -> None:
    spec = RunSpec.model_validate({"train": {"steps": 40, "warmup_steps": 5}})
    frames = {0: [*told, *(traced(step) for step in (2, 10, 20, 22, 30))]}
    case = case_of(spec, outcome_of(tmp_path, frames))
    assert [int(step[0]["end"][0]) for step in case.traced] == judged


def test_steps_of_the_warm_up_are_judged_where_no_other_was_traced(tmp_path: Path) -> None:
    spec = RunSpec.model_validate({"train": {"steps": 40, "warmup_steps": 35}})
    cut = Frame({"kind": "spans", "step": 20, "count": 1, "total": 2}, traced(20).blob, 0)
    case = case_of(spec, outcome_of(tmp_path, {0: [traced(2), traced(10), cut]}))
    assert [int(step[0]["end"][0]) for step in case.traced] == [2, 10], "nor a step of which spans are missing"


def test_of_very_long_steps_one_is_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run_case, "MANY_SPANS", 0)
    spec = RunSpec.model_validate({"train": {"steps": 40, "warmup_steps": 5}})
    case = case_of(spec, outcome_of(tmp_path, {0: [traced(10), traced(20)]}))
    assert [int(step[0]["end"][0]) for step in case.traced] == [20]


def test_the_checkpoints_that_are_kept_are_those_of_the_newest_record(tmp_path: Path) -> None:
    saved = [
        Frame({"kind": "checkpoint", "step": kept[-1], "kept": kept}, b"", 0) for kept in ([10], [10, 20], [10, 30])
    ]
    cases = [case_of(RunSpec(), outcome_of(tmp_path, {0: saved[:count]})) for count in (0, 2, 3)]
    assert [case.checkpoints for case in cases] == [set(), {10, 20}, {10, 30}]


def test_where_nothing_was_found_it_says_why_not_all_rules_judged() -> None:
    (said,) = sentences(Case(RunSpec()))
    assert said.endswith(" rules: no step has been traced and no memory limit is known.")


class Counted(Frame):
    """A record that counts how many are alive at once."""

    alive = most = 0

    def __init__(self, *fields: Any) -> None:
        super().__init__(*fields)
        Counted.alive += 1
        Counted.most = max(Counted.most, Counted.alive)

    def __del__(self) -> None:
        Counted.alive -= 1


def leave(folder: Path, rank: int, steps: int) -> None:
    """Writes what a rank leaves of a run in which every step has records of its own, and every fifth is traced."""
    sink = FileSink(folder, rank, segment=64 << 10)
    sink.emit("phase", phase="timed", step=0)
    for step in range(steps):
        sums = np.zeros(1, STEP_SUM)
        sums["step"], sums["total"], sums["exposed"] = step, 100, 10 + 20 * rank
        sink.emit("waits", StepWaits(sums, np.empty(0, WAIT)).pack(), steps=1)
        rows = np.array([(step, 0.0, step / 10), (step, 0.0, step / 5)], POINT)
        sink.emit("points", rows.tobytes(), series=[["loss", 1], ["step_time", 1]])
        if step % 5 == 0:
            sink.emit("spans", traced(step).blob, step=step, count=1, total=1)
    sink.emit("memory", step=2, peak_total=1000 + rank)
    sink.emit("summary", steps=steps, timed={"median": 0.1, "n": steps}, cpu_others=0.1 * rank)


def test_the_end_of_a_long_run_holds_few_of_its_records_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps, spec = 1500, RunSpec.model_validate({"train": {"steps": 1500}, "parallel": {"dp": 2}})
    for rank in (0, 1):
        leave(tmp_path, rank, steps)
        assert len(segments(tmp_path, rank)) > 3
    outcome = Outcome(tmp_path, 0.0, 2)
    outcome.exits += [Exit(rank, 0, 0.0) for rank in (0, 1)]
    monkeypatch.setattr(record_files, "Frame", Counted)
    said, case = _ending(outcome, spec), case_of(spec, outcome)
    assert f"mean of {steps} timed steps: 0 % bubble, 20 % communication" in said, said
    assert case.loss.tolist() == [step / 10 for step in range(steps)] and case.loss_steps.tolist() == [*range(steps)]
    assert [[int(own["end"][0]) for own in step.values()] for step in case.traced] == [
        [step, step] for step in range(1475, 1500, 5)
    ]
    assert (case.peaks, case.others, case.checkpoints) == ({0: 1000, 1: 1001}, 0.1, set())
    assert 0 < Counted.most < 10
