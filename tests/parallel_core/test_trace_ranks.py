"""Which rank each file of a trace is of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parallel_core.traces import kineto
from parallel_core.traces.job_trace import join, rank_of, ranks_of
from tests.parallel_core.test_traces import read


def test_what_is_to_be_said_of_every_file_is_said_once() -> None:
    traces = [kineto.RankTrace(notes=["the same", f"of {rank} alone"]) for rank in range(3)]
    found = join([(f"rank{rank}.json", rank, trace) for rank, trace in enumerate(traces)])
    assert found.notes[:4] == ["All 3 files: the same", *(f"rank{rank}.json: of {rank} alone" for rank in range(3))]
    assert join([("one.json", 0, traces[0])]).notes[:2] == ["one.json: the same", "one.json: of 0 alone"]


@pytest.mark.parametrize(
    ("header", "name", "rank"),
    [
        ({"distributedInfo": {"rank": 3}}, "rank7.json", 3),
        ({}, "trace_rank7.json.gz", 7),
        ({}, "worker12.pt.trace.json", 12),
        ({}, "job_2.json", 2),
        ({}, "rank_3.1712345678901234567.pt.trace.json", 3),
        ({}, "vm_30130.1712345678901234567.pt.trace.json", None),
        ({}, "ip-10-0-0-3.internal_30130.1712345678901.pt.trace.json.gz", None),
        ({"distributedInfo": 5}, "trace.json", None),
    ],
)
def test_the_rank_is_read_off_the_file_or_its_name(header: dict[str, Any], name: str, rank: int | None) -> None:
    assert rank_of(header, name) == rank


@pytest.mark.parametrize(
    ("workers", "ranks"),
    [
        (["gpu_1", "gpu_0", "gpu_10", *(f"gpu_{rank}" for rank in range(2, 10))], [1, 0, 10, *range(2, 10)]),
        (["rank1_node_0", "rank0_node_1"], [1, 0]),
        (["0"], [0]),
        (["gpu_1", "gpu_2"], [None, None]),
        (["vm_0", "vm_0"], [None, None]),
        (["vm_30130", "vm_30131"], [None, None]),
        (["vm_1"], [None]),
        (["rank0-a", "rank1-b"], [0, 1]),
    ],
)
def test_worker_names_that_number_all_files_are_ranks(workers: list[str], ranks: list[int | None]) -> None:
    assert ranks_of([(f"{worker}.1712345678901234567.pt.trace.json", {}) for worker in workers]) == ranks


@pytest.mark.parametrize("name", ["vm_30130.1712345678901234567.pt.trace.json", "profile_2024.json"])
def test_a_process_that_is_alone_is_rank_0(tmp_path: Path, name: str) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 30130, "tid": 1, "ts": 1, "dur": 2}
    (tmp_path / name).write_text(json.dumps({"traceEvents": [event]}))
    found = read(tmp_path / name)
    assert list(found.ranks) == [0]
    assert not any("no trace of" in note for note in found.notes)
