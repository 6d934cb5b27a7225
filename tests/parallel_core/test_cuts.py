"""Cuts by simulated step time: the shortest of all, where all can be tried."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from parallel_core import cli
from parallel_core.analysis.quantities import bytes_text
from parallel_core.layout import Layout
from parallel_core.plan.memory import worst_stage
from parallel_core.profile.table import CostTable
from parallel_core.simulate.cost_requirements import CannotPredict
from parallel_core.simulate.cuts import best_cuts
from parallel_core.simulate.predict import predict_step
from parallel_core.spec import RunSpec
from tests.parallel_core.tables import table

MODEL = {"layers": 3, "hidden": 64, "heads": 4, "seq": 32, "vocab": 256}


def spec_of(**split: Any) -> RunSpec:
    run = {"model": MODEL, "parallel": {"micro_batches": 4, **split}, "train": {"global_batch": 16}}
    return RunSpec.model_validate(run)


def uneven(spec: RunSpec) -> CostTable:
    """A table in which attention takes twice as long as its FLOPs suggest, and the head three times."""
    made = table(spec.model).model_dump()
    longer = {unit: 2.0 if unit.endswith("attn") else 3.0 if unit == "head" else 1.0 for unit in spec.model.units()}
    for row in made["layers"]:
        for part, seconds in row["seconds"].items():
            row["seconds"][part] = [each * by for each, by in zip(seconds, longer.values(), strict=True)]
    return CostTable.model_validate(made)


@pytest.mark.parametrize(
    ("split", "shorter"),
    [
        ({"schedule": "1f1b"}, True),
        ({"schedule": "zb-v"}, False),
        pytest.param({"schedule": "interleaved", "chunks": 2}, True, marks=pytest.mark.full),
    ],
)
def test_no_other_cuts_give_a_shorter_step(split: dict[str, Any], shorter: bool) -> None:
    spec = spec_of(pp=2, **split)
    costs, units, stages = uneven(spec), len(spec.model.units()), Layout.of(spec).stages
    found = best_cuts(spec, costs)
    every = [
        predict_step(
            spec.model_copy(update={"parallel": spec.parallel.model_copy(update={"cuts": cuts})}), costs
        ).seconds
        for cuts in combinations(range(1, units), stages - 1)
    ]
    assert found.seconds == pytest.approx(min(every))
    assert (found.seconds < found.before) == shorter
    assert predict_step(found.spec, costs).seconds == found.seconds


def test_there_is_nothing_to_cut_without_a_pipeline() -> None:
    spec = spec_of()
    found = best_cuts(spec, table(spec.model))
    assert found.spec == spec and found.seconds == found.before


def test_a_table_of_another_model_is_refused() -> None:
    spec = spec_of(pp=2)
    with pytest.raises(CannotPredict):
        best_cuts(spec, table(spec.model.model_copy(update={"layers": 2})))


def test_the_command_writes_a_spec_that_takes_as_long_as_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = spec_of(pp=2, schedule="1f1b")
    given, costs, out = (tmp_path / name for name in ("spec.json", "costs", "cut.json"))
    given.write_text(spec.model_dump_json())
    costs.write_text(json.dumps(uneven(spec).dump()))
    assert cli.main(["predict", str(given), "--table", str(costs), "--cut", str(out)]) == 0
    told = capsys.readouterr().out
    found = RunSpec.model_validate_json(out.read_text())
    assert found.parallel.cuts is not None
    assert found.parallel.cuts != Layout.of(spec).stage_units[1][:1] and f"cut at {found.parallel.cuts[0]};" in told
    assert cli.main(["predict", str(out), "--table", str(costs)]) == 0
    seconds, needs = capsys.readouterr().out.splitlines()
    step, likely = seconds.split("; ")
    assert told.startswith(step) and needs.startswith("Needs ") and needs in told
    assert likely.startswith("eight of ten such runs take ") and likely.endswith("measured on other hosts")


@pytest.mark.parametrize(
    ("mib", "said"),
    [("1000", " of the 700 MiB that the device has beside 300 MiB"), ("301", "more than the device has")],
)
def test_the_command_says_whether_the_fullest_rank_fits(
    mib: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = spec_of(pp=2)
    given, costs = tmp_path / "spec.json", tmp_path / "costs"
    given.write_text(spec.model_dump_json())
    costs.write_text(json.dumps(table(spec.model).dump()))
    assert cli.main(["predict", str(given), "--table", str(costs), "--memory", mib]) == 0
    needs = capsys.readouterr().out.splitlines()[1]
    assert needs.startswith(f"Needs {bytes_text(worst_stage(spec).total)} on rank ") and said in needs
