"""The benchmarks measure what they claim to; for example, both contestants of a comparison train the same model."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parallel_core import bench
from parallel_core.bench import BENCHES, duel, limits, mfu, predict, recompute, simulated, spans, whatif
from parallel_core.layout import Layout
from parallel_core.models.registry import parameter_shapes
from parallel_core.plan import peak
from parallel_core.plan.strategy import model_flops
from parallel_core.schedule import build
from parallel_core.schedule.ir import Kind
from parallel_core.simulate import Costs, simulate
from parallel_core.simulate.measured import Measured, measure
from parallel_core.spec import ParallelSpec, RunSpec

RELATIVE = 1e-6
"""Largest relative difference of the losses after the same steps in fp32."""


@pytest.mark.full
@pytest.mark.parametrize("name", duel.SPLITS)
def test_both_contestants_train_the_same(name: str) -> None:
    result = duel.run(name, rounds=1)
    assert result["loss_difference"] <= RELATIVE and result["goals"][-1]["met"]
    assert result["ours"] > 0 and result["theirs"] > 0 and f"{result['ratio']:.2f}x" in result["text"]
    measured = set(limits.specs_of(duel.spec_of(name)))
    assert set(result["limits"]) - {"ceiling"} == measured and all(seconds > 0 for seconds in result["limits"].values())
    assert ("shares" in result) == ("alone" in measured) and ("work" in result) == ("whole" in measured)


@pytest.mark.full
def test_no_more_activations_are_live_than_with_pytorchs_own_pipeline() -> None:
    found = duel.activations(1)
    live = found["live"]
    assert len(live) == 2 and all(0 < rank["ours"] <= rank["theirs"] for rank in live)
    assert [one["met"] for one in found["goals"]] == [True, True]


@pytest.mark.full
def test_a_trillion_parameters_are_simulated_operation_by_operation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.json"
    assert bench.run(["simulate"], 1, out) == 0
    found = json.loads(out.read_text())["simulate"]
    split = ParallelSpec.model_validate(simulated.SPLIT)
    stages, micro_batches = split.pp, split.micro_batches
    assert found["operations"] >= 2 * stages * micro_batches
    forward, backward = simulated.NS[Kind.F], simulated.NS[Kind.BW]
    least = (micro_batches + stages - 1) * (forward + backward)
    assert least <= found["step"] <= least + 2 * (simulated.NS[Kind.ALLREDUCE] + simulated.NS[Kind.OPT_STEP])
    _printed_with_its_goal(found, capsys.readouterr().out.splitlines())


def _printed_with_its_goal(found: dict[str, Any], lines: list[str]) -> None:
    (judged,) = found["goals"]
    assert judged["value"] == found["seconds"] and judged["met"] == (found["seconds"] < simulated.MOST_S)
    said = "met" if judged["met"] else "missed"
    assert lines[0].endswith(found["text"]) and lines[1].split()[0] == said and "< 2 " in lines[1]
    assert lines[2].startswith(f"goals       {int(judged['met'])} of 1 met; ") and "needs 20 rounds" in lines[2]


@pytest.mark.full
def test_recomputation_leaves_little_and_changes_nothing() -> None:
    found = recompute.run(1)
    assert 0 < found["16"]["share"] <= 0.15 and found["16"]["share"] < found["4"]["share"] <= 0.35
    assert all(found[depth]["loss_difference"] <= RELATIVE for depth in ("4", "16"))
    assert len(found["goals"]) == 6


@pytest.mark.full
def test_the_share_of_the_peak_is_measured() -> None:
    found = mfu.run(2)
    assert 0 < found["mfu"] <= 1 and found["hfu"] == found["mfu"]  # no recomputation
    assert found["mfu"] == pytest.approx(found["tflops"] * 1e12 / found["peak"], rel=0.2)  # each is a median of its own
    assert mfu.spec_of(gpu=True, steps=2).train.precision == "bf16"


def test_what_is_to_fill_a_gpu_fits_one_of_80_gb_and_is_mostly_products() -> None:
    """Calculated for an H100 (700 TFLOP/s in matrix multiplications, 3.35 TB/s of memory): what a step does to each
    parameter besides multiplications (50 bytes moved) takes less than a fiftieth of the time.
    """
    spec = mfu.spec_of(gpu=True, steps=2)
    (held,) = peak.predict(spec)
    assert 45e9 < held.total < 70e9
    products = model_flops(spec.model, spec.train.global_batch) / 700e12
    beside = 50 * sum(math.prod(shape) for shape in parameter_shapes(spec.model).values()) / 3.35e12
    assert beside < 0.02 * (products + beside)
    sizes = [(spec.model.layers, spec.micro_batch_size) for spec in map(_held_by, (80, 48, 40, 24, 4))]
    assert sizes == [(4, 12), (2, 8), (2, 8), (1, 4), (1, 1)], (
        "a smaller GPU gets less work, and the smallest the least"
    )


def _held_by(gib: int) -> RunSpec:
    return mfu.spec_of(gpu=True, steps=2, memory=gib * 2.0**30)


@pytest.mark.full
def test_schedules_in_turns_are_predicted_from_each_other() -> None:
    found = whatif.run(2)
    assert {name: len(own) for name, own in found["steps"].items()} == dict.fromkeys(whatif.SCHEDULES, 2 * whatif.STEPS)
    assert len(found["errors"]) == 4 * 4 + 1 and found["replay"] < 0.03
    assert all(f"{pair:<22} {error:+6.1%}" in found["text"] for pair, error in found["errors"].items())


def test_what_has_early_gradients_says_nothing_of_a_schedule_without_them() -> None:
    costs = Costs.uniform(2, 5_000_000, 5_000_000, 5_000_000, message=200_000)
    steps = {}
    for name in whatif.SCHEDULES:
        spec = whatif.spec_of(name)
        steps[name] = [measure(build(spec), simulate(build(spec), costs), Layout.of(spec))] * whatif.STEPS
    found = whatif.against(steps)["errors"]
    assert {pair for pair in found if pair.startswith("1f1b-early")} == {"1f1b-early -> zb-h1"}
    assert {pair.split(" ")[0] for pair in found if pair.endswith("-> 1f1b-early")} == {*whatif.SCHEDULES[:4]}


def test_another_pace_of_the_host_is_no_error_of_what_if() -> None:
    """A host that changes its speed by half between turns must not show up as an error of the prediction, because both
    schedules run in each turn. A schedule that really is 20 % slower must.
    """
    steps: dict[str, list[Measured]] = {"gpipe": [], "1f1b": []}
    for turn in range(2 * whatif.STEPS):
        pace = 1 + 0.5 * (turn % 2)
        each = round(5e6 * pace)
        costs = Costs.uniform(2, f=each, b=each, w=each, message=round(2e5 * pace))
        for name, own in steps.items():
            spec = whatif.spec_of(name)
            own.append(measure(build(spec), simulate(build(spec), costs), Layout.of(spec)))
    found = whatif.against(steps)
    assert found["worst"] < 0.01 and all(len(own) == 2 for own in found["rounds"].values())
    off = {**steps, "1f1b": [replace(one, step=round(one.step * 1.2)) for one in steps["1f1b"]]}
    assert whatif.against(off)["errors"]["gpipe -> 1f1b"] == pytest.approx(1 / 1.2 - 1, abs=0.01)


def test_the_best_pipelines_are_named() -> None:
    """Both by their shares of two processes alone in their own turns: the host was slower during the second duel, so
    that its seconds say nothing."""
    sides: dict[str, dict[str, Any]] = {
        "1f1b": {"ours": 0.3, "of_alone": {"ours": 0.90, "theirs": 0.60, "blocks": 0.60}},
        "zb-v": {"ours": 0.2, "of_alone": {"ours": 0.45, "theirs": 0.72, "blocks": 0.50}},
    }
    found = duel.best({**sides, "ddp": {"ours": 0.1}})
    assert found is not None
    told = "our best pipeline (1f1b) is 1.25x theirs (zb-v) with our cuts and 1.50x theirs (1f1b) with whole blocks"
    assert found["text"].startswith(told) and found["ours"] == "1f1b"
    (judged,) = found["goals"]
    assert judged["met"] and judged["value"] == pytest.approx(1.25)
    sides["zb-v"]["of_alone"]["theirs"] = 0.88
    found = duel.best(sides)
    assert found is not None and not found["goals"][0]["met"]
    assert duel.best({"1f1b": sides["1f1b"], "ddp": {"ours": 0.1}}) is None


@pytest.mark.full
def test_recording_and_start_are_printed_and_written(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    line = [sys.executable, "-m", "parallel_core", "bench", "spans", "start", "--rounds", "1", "--json", str(out)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())
    assert list(results) == ["spans", "start"] and results["spans"]["spans_per_step"] > 10
    assert results["spans"]["turns"] == spans.TURNS and results["spans"]["likely"][0] <= results["spans"]["share"]
    assert set(results["start"]["median"]) == {"2", "4"}
    for result in results.values():
        assert result["text"] in done.stdout
        assert all(f"{one['relation']} {one['goal']:g}" in done.stdout for one in result["goals"])


def test_an_unknown_benchmark_is_refused() -> None:
    line = [sys.executable, "-m", "parallel_core", "bench", "warp"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2 and all(name in done.stderr for name in BENCHES)


def test_the_names_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run(["list"], 1) == 0
    assert capsys.readouterr().out.split() == list(BENCHES)
    assert set(BENCHES) <= set(re.findall(r"[\w-]+", bench.__doc__ or "")), (
        "the module docstring explains what each benchmark measures"
    )


@pytest.mark.parametrize("end", [RuntimeError("rank 1 ended"), KeyboardInterrupt()])
def test_what_was_measured_before_an_end_is_written_and_summed_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, end: BaseException
) -> None:
    """The first benchmark is a real one."""
    out = tmp_path / "results.json"

    def ends(rounds: int) -> dict[str, Any]:
        assert list(json.loads(out.read_text())) == ["simulate", "incomplete"], "there before the next one is over"
        raise end

    monkeypatch.setitem(BENCHES, "start", ends)
    with pytest.raises(type(end)):
        bench.run(["simulate", "start", "spans"], 1, out)
    written, lines = json.loads(out.read_text()), capsys.readouterr().out.splitlines()
    assert list(written) == ["simulate", "incomplete"] and written["incomplete"] is True
    _printed_with_its_goal(written["simulate"], lines)
    assert lines[3:] == ["incomplete  1 of 3 benchmarks ran"]
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def _ends(rounds: int) -> dict[str, Any]:
    raise RuntimeError("rank 1 ended")


PIPELINE: dict[str, Any] = {"text": "a duel", "of_alone": {"ours": 0.9, "theirs": 0.6, "blocks": 0.6}}


@pytest.mark.parametrize("whole", [False, True], ids=["one fails", "all run"])
def test_the_best_pipeline_is_named_only_where_all_ran(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    out = tmp_path / "results.json"
    for name in ("1f1b", "zb-v"):
        monkeypatch.setitem(BENCHES, name, lambda rounds: PIPELINE)
    monkeypatch.setitem(BENCHES, "start", (lambda rounds: {"text": "fast"}) if whole else _ends)
    with nullcontext() if whole else pytest.raises(RuntimeError, match="rank 1 ended"):
        bench.run(["1f1b", "zb-v", "start"], 20, out)
    written, lines = json.loads(out.read_text()), capsys.readouterr().out.splitlines()
    assert list(written) == ["1f1b", "zb-v", *(["start", "best"] if whole else ["incomplete"])]
    assert lines[-1].split()[0] == ("goals" if whole else "incomplete")


def test_results_of_an_earlier_call_do_not_pass_for_those_of_one_that_fails_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "results.json"
    out.write_text('{"start": {"text": "of yesterday"}}')
    monkeypatch.setitem(BENCHES, "start", _ends)
    with pytest.raises(RuntimeError, match="rank 1 ended"):
        bench.run(["start"], 1, out)
    assert json.loads(out.read_text()) == {"incomplete": True}


def test_a_failure_is_not_hidden_by_one_of_summing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The results so far cannot be judged, because one lacks what the summary needs."""
    monkeypatch.setitem(BENCHES, "spans", lambda rounds: {"text": "odd", "goals": []})
    monkeypatch.setitem(BENCHES, "start", _ends)
    monkeypatch.setattr(bench.goals, "summary", lambda results: results["spans"]["nothing"])
    with pytest.raises(RuntimeError, match="rank 1 ended"):
        bench.run(["spans", "start"], 1)


def test_rounds_that_are_no_whole_number_of_steps_are_all_counted_but_for_rounds() -> None:
    """Turns are rounded up to whole cycles of the orders, and those of five schedules are ten."""
    costs = Costs.uniform(2, 5_000_000, 5_000_000, 5_000_000, message=200_000)
    steps = {}
    for name in ("gpipe", "1f1b"):
        spec = whatif.spec_of(name)
        steps[name] = [measure(build(spec), simulate(build(spec), costs), Layout.of(spec))] * (2 * whatif.STEPS + 2)
    found = whatif.against(steps)
    assert all(len(own) == 2 for own in found["rounds"].values()) and "10 steps of each in turns" in found["text"]


def test_a_prediction_is_held_against_the_mean_of_its_turns() -> None:
    """A host that is faster in one turn and slower in the next must not count as an error of the prediction."""
    turn = {"label": "DP", "predicted": 0.1, "others": 0.0, "paced": None, "slower": ()}
    row = predict._over([{**turn, "measured": 0.08}, {**turn, "measured": 0.12, "others": 0.02}])
    assert row["error"] == pytest.approx(0.0) and row["others"] == pytest.approx(0.01)
    assert (row["paced"], row["paced_error"], row["slower"]) == (None, None, ())


def test_the_own_pace_of_a_row_is_that_of_its_turns() -> None:
    turns = [
        {"label": "TP", "predicted": 0.2, "measured": measured, "others": 0.0, "paced": paced, "slower": slower}
        for measured, paced, slower in ((0.2, 0.22, (1.1, 1.3)), (0.3, 0.33, (1.5, 1.7)))
    ]
    row = predict._over(turns)
    assert row["error"] == pytest.approx(0.2 / 0.25 - 1) and row["paced_error"] == pytest.approx(0.1)
    assert row["slower"] == pytest.approx((1.3, 1.5))
