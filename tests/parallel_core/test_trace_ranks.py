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


def cycle(folder: Path, name: str, steps: tuple[int, ...], **header: Any) -> Path:
    """A file with these marked steps, of 100 us each."""
    events = [
        {"cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": 1000 * step, "dur": 100} for step in steps
    ]
    events += [{"cat": "cpu_op", "name": "aten::mm", "ts": 1000 * step + 10, "dur": 50} for step in steps]
    whole = header | {"traceEvents": [{"ph": "X", "pid": 1, "tid": 1} | event for event in events]}
    (folder / name).write_text(json.dumps(whole))
    return folder / name


def told(rank: int, world: int = 2) -> dict[str, Any]:
    return {"distributedInfo": {"rank": rank, "world_size": world}, "host_name": "one"}


def test_cycles_of_a_profiler_are_one_rank(tmp_path: Path) -> None:
    """A schedule that repeats writes a file for each cycle."""
    made = [
        cycle(tmp_path, f"gpu_{rank}.171234567890{i}.pt.trace.json", steps, **told(rank))
        for rank in range(2)
        for i, steps in enumerate(((2, 3), (7, 8), (12, 13)))
    ]
    found = read(*made)
    assert [sorted(found.ranks[rank].steps) for rank in range(2)] == [[2, 3, 7, 8, 12, 13]] * 2
    first = found.ranks[0]
    assert (first.files, first.raw, [(row["name"], row["count"]) for row in first.top]) == (3, 6, [("aten::mm", 6)])
    assert sorted(first.operations) == sorted(first.steps) and found.files[1] == made[3].name
    assert found.notes == ["The files of ranks 0, 1 have different steps: those of a rank are shown together."]


def test_cycles_without_a_rank_are_those_of_one_worker(tmp_path: Path) -> None:
    made = [
        cycle(tmp_path, f"{worker}.171234567{step}.pt.trace.json", (step,))
        for worker in ("vm_30130", "vm_30131")
        for step in (0, 5)
    ]
    found = read(*made)
    assert {rank: sorted(trace.steps) for rank, trace in found.ranks.items()} == {0: [0, 5], 1: [0, 5]}


@pytest.mark.parametrize("change", [{"host_name": "two"}, {"steps": (2, 3)}])
def test_files_that_are_no_cycles_are_two_ranks(tmp_path: Path, change: dict[str, Any]) -> None:
    first = cycle(tmp_path, "a.json", (2, 3), **told(0))
    found = read(first, cycle(tmp_path, "b.json", change.pop("steps", (7, 8)), **told(0) | change))
    assert sorted(found.ranks) == [0, 1]
    assert any("b.json says it is rank 0, as another does" in note for note in found.notes)


def test_of_a_large_job_the_ranks_that_are_here_are_counted(tmp_path: Path) -> None:
    found = read(*(cycle(tmp_path, f"rank{rank}.json", (2,), **told(rank, 64)) for rank in (0, 8, 16, 24)))
    assert found.notes == ["There is no trace of ranks 1, 2, 3, 4, 5, 6, 7, 9 and 52 more: 4 of 64 ranks are here."]
