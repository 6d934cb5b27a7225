"""The statistics that replicas exchange inside a batch norm have their own kind of span and their own name."""

from __future__ import annotations

from pathlib import Path

from parallel_core.local import LocalRunner
from parallel_core.schedule.ir import COMPUTE, Kind
from parallel_core.schedule.text import WORDS
from parallel_core.spec import RunSpec


def test_statistics_of_a_batch_norm_are_no_gathers_of_parameters(runner: LocalRunner, tmp_path: Path) -> None:
    spec = RunSpec.model_validate(
        {
            "model": {"kind": "resnet50", "width": 4},
            "parallel": {"dp": 2},
            "train": {"steps": 2, "warmup_steps": 1, "global_batch": 4},
            "trace": {"trace_every": 1},
        }
    )
    outcome = runner.run(spec, tmp_path)
    assert outcome.ok, outcome.failure()
    for rows in outcome.traced().values():
        told = rows[rows["kind"] == Kind.STATISTICS]
        assert len(told) > 50 and not (rows["kind"] == Kind.GATHER).any()
        around = rows[[kind in COMPUTE for kind in rows["kind"]]]
        for row in told:
            assert ((around["start"] <= row["start"]) & (row["end"] <= around["end"])).any()


def test_every_kind_of_operation_has_words() -> None:
    assert set(WORDS) == set(Kind)
