"""Traces of a GPU beyond kernels with a marker: waits for data, copies, graphs, and kernels that are missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallel_core.analysis.breakdown import accounts
from parallel_core.analysis.diagnosis.imported import diagnose
from parallel_core.layout import Layout
from parallel_core.schedule.ir import Kind
from parallel_core.traces import kineto
from parallel_core.traces.collect import Collected
from tests.parallel_core.test_traces_gpu import cpu, gpu, kinds, launched


def fed(ahead: bool) -> list[dict[str, Any]]:
    """Three steps of 1 000 us, of which the host waits 400 us for each batch; `ahead`: the device works until then."""
    made = []
    for step in range(3):
        at, took = 1000 * step, 980 if ahead else 500
        made += [
            cpu("user_annotation", f"ProfilerStep#{step}", at, 1000),
            cpu("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at, 400),
            cpu("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 10, 300),
            cpu("cpu_op", "aten::mm", at + 410, 20),
            cpu("cuda_runtime", "cudaLaunchKernel", at + 415, 5, link=step + 1),
            gpu("ampere_sgemm_128x64_tn", at + 450, took, step + 1),
        ]
    return made


def test_only_waiting_for_data_that_the_device_does_not_hide_counts() -> None:
    starved, hidden = (kineto.read(Collected(fed(ahead))) for ahead in (False, True))
    data = {step: found[found["kind"] == Kind.DATA] for step, found in starved.steps.items()}
    assert [[(int(row["start"]), int(row["end"])) for row in rows] for rows in data.values()] == [
        [(0, 400_000)],
        [(1_000_000, 1_400_000)],
        [(2_000_000, 2_400_000)],
    ]
    assert [found.parts.data for found in accounts({0: starved.steps[1]}, Layout.unknown(1)).values()] == [400_000]
    assert "data_stall" in [one.rule for one in diagnose([{0: starved.steps[step]} for step in range(3)])]
    # On the device the step begins when the one before it ends, after 430 of the 1 000 us: the batch is there by then.
    assert not (hidden.steps[1]["kind"] == Kind.DATA).any() and not (hidden.steps[2]["kind"] == Kind.DATA).any()
    assert int(hidden.steps[1]["start"].min()) == 1_430_000
    assert starved.kernels[1] == ["ampere_sgemm_128x64_tn"] and starved.raw == 3, "a read is no kernel"


@pytest.mark.parametrize("marked", [True, False])
def test_reading_beside_a_collective_does_not_hide_it(marked: bool) -> None:
    """The host reads from 100 to 650 us, during a gather from 100 to 600 us: only the last 50 us wait for data."""
    made = [
        gpu("gemm", 0, 100),
        gpu("ncclDevKernel_AllGather_RING_LL", 100, 500, 1) | {"tid": 12},
        cpu("cuda_runtime", "cudaLaunchKernel", 90, 5, link=1),
        cpu("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 100, 550),
        gpu("gemm", 700, 100),
    ]
    made += [cpu("user_annotation", "ProfilerStep#0", 0, 900)] * marked
    found = kineto.read(Collected(made)).steps
    parts = accounts({0: found[0]}, Layout.unknown(1))[0].parts
    assert (parts.compute, parts.exposed_collective, parts.data) == (200_000, 500_000, 50_000)
    rules = [one.rule for one in diagnose([{0: found[0], 1: found[0]}] * 3)]
    assert "data_stall" not in rules and "exposed_collectives" in rules


def copied(name: str, start: float, length: float, stream: int = 20) -> dict[str, Any]:
    return gpu(name, start, length) | {"cat": "gpu_memcpy", "tid": stream}


def test_copies_count_only_where_no_kernel_runs() -> None:
    """A copy to the device on its own stream, beside a collective: neither compute nor a hiding place."""
    reduced = gpu("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 100, 300) | {"tid": 12}
    made = [gpu("gemm", 0, 100), reduced, copied("Memcpy HtoD (Pinned -> Device)", 50, 400), gpu("gemm", 600, 100)]
    rows = kineto.read(Collected(made)).steps[0]
    assert [(int(row["start"]), int(row["end"])) for row in rows[rows["kind"] == Kind.SETUP]] == [(400_000, 450_000)]
    parts = accounts({0: rows}, Layout.unknown(1))[0].parts
    assert (parts.compute, parts.exposed_collective, parts.other) == (200_000, 300_000, 200_000)


@pytest.mark.parametrize(
    ("name", "stream", "kind"),
    [
        ("Memcpy DtoD (Device -> Device)", 7, Kind.F),
        ("Memset (Device)", 7, Kind.F),
        ("Memcpy DtoD (Device -> Device)", 20, Kind.SETUP),
        ("Memset (Device)", 20, Kind.SETUP),
        ("Memcpy HtoD (Pageable -> Device)", 7, Kind.SETUP),
        ("Memcpy DtoH (Device -> Pageable)", 7, Kind.SETUP),
    ],
)
def test_a_copy_is_work_only_among_the_kernels_of_its_stream(name: str, stream: int, kind: Kind) -> None:
    assert kinds([gpu("gemm", 0, 100), copied(name, 200, 50, stream)]) == [Kind.STEP, Kind.F, kind]


def test_pieces_of_copies_against_the_plain_definition() -> None:
    """In units of 10 us, as shorter pauses than 2 us are joined."""
    rng = np.random.default_rng(3)
    made = [gpu("gemm", int(at), int(took)) for at, took in 10 * rng.integers((0, 0), (900, 30), (40, 2))]
    both = [(int(at), int(took)) for at, took in 10 * rng.integers((0, 1), (900, 200), (15, 2))]
    rows = kineto.read(Collected([*made, *(copied("Memcpy HtoD", *one) for one in both)])).steps[0]
    busy = {t for one in made for t in range(one["ts"], one["ts"] + one["dur"], 10)}
    free = {t for at, took in both for t in range(at, at + took, 10)} - busy
    pieces = rows[rows["kind"] == Kind.SETUP]
    assert {t // 1000 for row in pieces for t in range(row["start"], row["end"], 10_000)} == free


@pytest.mark.parametrize(("around", "unknown"), [("ProfilerStep#1", 3), ("Backward 1", 0), ("forward", 0)])
def test_kernels_of_a_graph_without_a_marker_are_said_to_be_unknown(around: str, unknown: int) -> None:
    """All kernels of a graph have the correlation id of its launch."""
    made = [cpu("user_annotation", around, 0, 500), cpu("cuda_runtime", "cudaGraphLaunch", 10, 5, link=7)]
    made += [gpu(name, 100 * at, 50, 7) for at, name in enumerate(("gemm", "gemm", "relu", "multi_tensor_apply"), 1)]
    said = [note for note in kineto.read(Collected(made)).notes if "CUDA graphs" in note]
    assert [note.startswith(f"{unknown} of 4 kernels were launched by CUDA graphs") for note in said] == [True] * bool(
        unknown
    )


@pytest.mark.parametrize(
    "host",
    [[cpu("cpu_op", "aten::mm", 0, 10)], [cpu("user_annotation", "forward", 0, 900)]],
    ids=["operations", "annotated"],
)
def test_kernels_without_the_hosts_operations_are_said_to_be_no_known_forward(host: list[dict[str, Any]]) -> None:
    """Recorded without the profiler's activity CPU: the backward's markers are among the host's operations."""
    step = cpu("user_annotation", "ProfilerStep#1", 0, 1000)
    alone = [step, cpu("cuda_runtime", "cudaLaunchKernel", 5, 2, link=1)]
    alone += [gpu("gemm", 100, 50, 1), gpu("gemm", 200, 50), gpu("ncclDevKernel_AllReduce_Sum", 300, 50)]
    (said,) = kineto.read(Collected(alone)).notes
    assert said.startswith("It has kernels but no operations of the host")
    assert said.endswith("forward and backward are not told apart, and 2 kernels are drawn as forward.")
    assert not kineto.read(Collected([*alone, *host])).notes


def test_a_gpu_whose_kernels_are_missing_is_no_cpu() -> None:
    found = kineto.read(Collected([event for event in launched() if event["cat"] != "kernel"]))
    assert found.partial
    assert any(note.startswith("It launches kernels (5 times), but has none") for note in found.notes)
    own = kineto.read(Collected([cpu("cpu_op", "aten::mm", 0, 10), cpu("cuda_runtime", "cudaGetDevice", 20, 5)]))
    assert not own.partial and not any("kernels" in note for note in own.notes)
