"""Traces of a GPU, written by hand in Kineto's format; families of operations; which annotation encloses which
moment.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallel_core.schedule.ir import Kind
from parallel_core.traces import kineto, names
from parallel_core.traces.collect import Collected
from parallel_core.traces.job_trace import join
from parallel_core.traces.nesting import NONE, innermost, outermost, parents

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::"
GELU = (
    f"{ELEMENTWISE}GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{{lambda()#2}}::operator()() "
    "const::{lambda()#4}::operator()() const::{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >(int)"
)
COPY = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::"
    "{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul> >"
)
FLASH = (
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t, "
    "Flash_kernel_traits<64, 128, 128, 4, cutlass::bfloat16_t> >, false, true>(pytorch_flash::Flash_fwd_params)"
)
"""Names of PyTorch's kernels as CUPTI demangles them."""
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def gpu(name: str, start: float, length: float, link: int = 0) -> dict[str, Any]:
    return {
        "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start, "dur": length,
        "args": {"correlation": link},
    }  # fmt: skip


def cpu(cat: str, name: str, start: float, length: float, thread: int = 1, link: int = 0) -> dict[str, Any]:
    return {
        "ph": "X", "cat": cat, "name": name, "pid": 9, "tid": thread, "ts": start, "dur": length,
        "args": {"correlation": link},
    }  # fmt: skip


def kinds(events: list[dict[str, Any]]) -> list[Kind]:
    """The kinds of the spans of step 0, by start."""
    return [Kind(kind) for kind in kineto.read(Collected(events)).steps[0]["kind"]]


def launched() -> list[dict[str, Any]]:
    """Step 4: what the host did, and the kernels that it launched, which run later."""
    return [
        cpu("user_annotation", "ProfilerStep#4", 0, 1000),
        cpu("user_annotation", "Forward 1", 10, 80),
        cpu("cuda_runtime", "cudaLaunchKernel", 20, 5, link=1),
        gpu("sm90_xmma_gemm_f32", 500, 100, 1),
        cpu("user_annotation", "Backward 1", 100, 200),
        cpu("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 110, 50, thread=2),
        cpu("cuda_runtime", "cudaLaunchKernel", 120, 5, thread=2, link=2),
        gpu("sm90_xmma_gemm_f32", 610, 100, 2),
        cpu("cpu_op", "autograd::engine::evaluate_function: CheckpointFunctionBackward", 170, 90, thread=2),
        cpu("cpu_op", "CheckpointFunctionBackward", 175, 80, thread=2),
        cpu("cuda_runtime", "cudaLaunchKernel", 180, 5, thread=2, link=3),
        gpu("fmha_cutlassF", 720, 50, 3),
        gpu("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", 650, 300, 4),
        cpu("user_annotation", "Optimizer.step#AdamW.step", 400, 100),
        cpu("cuda_runtime", "cudaLaunchKernel", 410, 5, link=5),
        gpu("void at::native::multi_tensor_apply_kernel", 1100, 60, 5),
        cpu("cpu_op", "nccl:send 0->1", 510, 20),
        cpu("cuda_runtime", "cudaLaunchKernelExC", 515, 5, link=6),
        gpu("ncclDevKernel_SendRecv(ncclDevKernelArgs)", 1200, 30, 6),
    ]


def test_a_kernel_is_what_the_code_around_its_launch_was_doing() -> None:
    found = kineto.read(Collected(launched()))
    assert found.device == "cuda"
    rows = found.steps[4]
    seen = {Kind(row["kind"]): (int(row["micro_batch"]), int(row["end"] - row["start"])) for row in rows}
    assert seen[Kind.F] == (1, 100_000)
    assert seen[Kind.BW] == (1, 100_000)
    assert seen[Kind.R] == (1, 50_000)
    assert seen[Kind.BUCKET][1] == 300_000
    assert seen[Kind.OPT_STEP][1] == 60_000
    assert seen[Kind.SEND_ACT][1] == 30_000
    assert found.kernels[4][0] == "sm90_xmma_gemm_f32" and len(found.kernels[4]) == 6, (
        "sorted by launch, in their order"
    )
    assert found.operations[4] == [
        "autograd::engine::evaluate_function: AddmmBackward0",
        "autograd::engine::evaluate_function: CheckpointFunctionBackward",
        "nccl:send 0->1",
    ]
    assert seen[Kind.STEP][1] == 1_230_000, "kernels launched in a step belong to it, even if they end after it"


@pytest.mark.parametrize("marked", [True, False])
def test_a_step_begins_behind_the_work_of_the_one_before_it_on_the_device(marked: bool) -> None:
    """The host launches a step in 100 us, but the device needs 1 000: from the second step on, the host is far
    ahead.
    """
    made = []
    for step in range(4):
        at, on = 100 * step, 1000 * step + 50
        made += [
            cpu("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", at + 10, 20),
            cpu("cuda_runtime", "cudaLaunchKernel", at + 15, 5, link=2 * step + 1),
            gpu("ampere_sgemm_128x64_tn", on, 900, 2 * step + 1),
            cpu("user_annotation", "Optimizer.step#AdamW.step", at + 50, 40),
            cpu("cuda_runtime", "cudaLaunchKernel", at + 60, 5, link=2 * step + 2),
            gpu("void at::native::multi_tensor_apply_kernel", on + 900, 100, 2 * step + 2),
        ]
        made += [cpu("user_annotation", f"ProfilerStep#{step}", at, 100)] if marked else []
    steps = kineto.read(Collected(made)).steps
    took = {k: [(int(r["start"]), int(r["end"])) for r in rows if r["kind"] == Kind.STEP] for k, rows in steps.items()}
    first = 0 if marked else 10_000
    assert took == {
        0: [(first, 1_050_000)],
        **{k: [(1_000_000 * k + 50_000, 1_000_000 * k + 1_050_000)] for k in (1, 2, 3)},
    }


def test_a_kernel_that_sends_and_receives_is_what_it_was_launched_for() -> None:
    made = [gpu("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", at, 10) for at in (0, 100)]
    for kernel, way in zip(made, ("send", "recv"), strict=True):
        kernel["args"] |= {"Collective name": way, "Process Group Name": "1", "Process Group Ranks": "[0, 1]"}
    rows = kineto.read(Collected(made)).steps[0]
    assert [Kind(kind) for kind in rows["kind"]] == [Kind.STEP, Kind.SEND_ACT, Kind.RECV_ACT]


@pytest.mark.parametrize("name", [GELU, COPY])
def test_a_lambda_is_no_optimizer(name: str) -> None:
    assert names.of_kernel(name) is None
    made = [
        cpu("cpu_op", "autograd::engine::evaluate_function: GeluBackward0", 0, 50),
        cpu("cuda_runtime", "cudaLaunchKernel", 10, 5, link=1),
        gpu(name, 100, 10, 1),
    ]
    assert kinds(made) == [Kind.STEP, Kind.BW]


@pytest.mark.parametrize(
    "name",
    [
        "lamb_cuda_kernel_part1",
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, LAMBStage1Functor<float>, float>",
        "void (anonymous namespace)::lamb_stage_2(float*)",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>",
        "FusedLambKernel",
    ],
)
def test_updates_have_kernels_of_their_own(name: str) -> None:
    own = names.of_kernel(name)
    assert own is not None and own.kind is Kind.OPT_STEP


@pytest.mark.parametrize("said", ["all_to_all", "all_to_allv", "alltoall_base", "gather", "scatter"])
def test_a_collective_made_of_messages_is_a_collective(said: str) -> None:
    kernel = gpu(SEND_RECV, 0, 10)
    kernel["args"]["Collective name"] = said
    assert kinds([kernel]) == [Kind.STEP, Kind.BUCKET]


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ("c10d::alltoall_base_", Kind.BUCKET),
        ("c10d::alltoall_", Kind.BUCKET),
        ("c10d::gather_", Kind.BUCKET),
        ("c10d::scatter_", Kind.BUCKET),
        ("c10d::send", Kind.SEND_ACT),
        ("c10d::recv_", Kind.RECV_ACT),
    ],
)
def test_a_kernel_of_messages_is_what_its_call_does(call: str, kind: Kind) -> None:
    made = [
        cpu("cpu_op", call, 0, 50),
        cpu("cpu_op", "record_param_comms", 5, 40),
        cpu("cuda_runtime", "cudaLaunchKernelExC", 10, 5, link=1),
        gpu(SEND_RECV, 100, 10, 1),
    ]
    assert kinds(made) == [Kind.STEP, kind]


def two_streams(first: int) -> list[dict[str, Any]]:
    """Launches a product and then a sum on another stream; the sum begins on the device at `first` us."""
    return [
        cpu("user_annotation", "ProfilerStep#1", 0, 1000),
        cpu("cuda_runtime", "cudaLaunchKernel", 20, 5, link=1),
        cpu("cuda_runtime", "cudaLaunchKernelExC", 30, 5, link=2),
        gpu("gemm", 200, 50, 1),
        gpu("ncclDevKernel_AllReduce_Sum_f32_RING_LL", first, 50, 2) | {"tid": 9},
    ]


@pytest.mark.parametrize("first", [150, 250])
def test_kernels_are_listed_as_they_were_launched(first: int) -> None:
    found = kineto.read(Collected(two_streams(first)))
    assert found.kernels[1] == ["gemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"]
    assert found.begun[1] == {"operators": 0, "kernels": 2}


def grouped(name: str, start: float, group: str, ranks: str = "[0, 1]") -> dict[str, Any]:
    kernel = gpu(name, start, 10)
    kernel["args"] |= {"Process Group Name": group, "Process Group Ranks": ranks} if group else {}
    return kernel


def test_collectives_keep_their_process_group() -> None:
    sums = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    made = [grouped(sums, 300, "2", "[0, 2]"), grouped(sums, 0, "1"), gpu("gemm", 100, 50), grouped(sums, 200, "1")]
    found = kineto.read(Collected(made))
    assert found.groups == {0: ["1 [0, 1]", "1 [0, 1]", "2 [0, 2]"]}
    assert [(row["name"][:24], row["count"]) for row in found.top] == [("gemm", 1), ("ncclDevKernel_AllReduce_", 3)]
    assert kineto.read(Collected([*made, grouped(sums, 400, "")])).groups[0][2:] == ["2 [0, 2]", ""]
    assert kineto.read(Collected([grouped(sums, 400, "")])).groups == {}


def test_a_pipeline_without_annotations_is_not_guessed() -> None:
    trace = kineto.read(Collected([gpu("ncclDevKernel_SendRecv", 0, 10), gpu("gemm", 20, 5)]))
    assert any(note.startswith("Not recovered") for note in join([("a", 0, trace)]).notes)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("ampere_sgemm_128x64_tn", "matrix products"),
        ("aten::addmm", "matrix products"),
        ("AddmmBackward0", "matrix products"),
        ("void cudnn::winograd", "matrix products"),
        ("flash_fwd_kernel", "attention"),
        (FLASH, "attention"),
        (
            "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t, "
            "cutlass::arch::Sm80, true, 64, 64, 64, true, true>::Params)",
            "attention",
        ),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm100_bprop_f16_knob_1", "attention"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_tn_align8>", "matrix products"),
        (GELU, "other"),
        ("ncclDevKernel_AllGather_RING_LL", "communication"),
        ("vectorized_elementwise_kernel", "other"),
        ("1RECV_ACT5", "communication"),
        ("NORM", "communication"),
        ("_Column", "matrix products"),
        ("_RowBackward", "matrix products"),
        ("_GeluBackward", "other"),
        ("1F3", "other"),
    ],
)
def test_operations_fall_into_few_families(name: str, family: str) -> None:
    assert names.family(name) == family


def test_nesting_against_the_plain_definition() -> None:
    rng = np.random.default_rng(7)
    pieces: list[tuple[int, int]] = []

    def split(start: int, end: int, depth: int) -> None:
        pieces.append((start, end))
        deeper = end - start > 10 and depth < 4
        cuts: list[int] = sorted(rng.integers(start + 1, end, 4).tolist()) if deeper else []
        for a, b in zip(cuts[::2], cuts[1::2], strict=True):
            if b - a > 2:
                split(a, b, depth + 1)

    for i in range(20):
        split(i * 1000, i * 1000 + 900, 0)
    table = np.array(sorted(pieces, key=lambda p: (p[0], -p[1])), np.int64)
    starts, ends = table.T
    moments = rng.integers(0, 20_000, 500)
    found = innermost(starts, ends, parents(starts, ends), moments)
    for moment, at in zip(moments, found, strict=True):
        around = [i for i in range(len(starts)) if starts[i] <= moment < ends[i]]
        want = min(around, key=lambda i: ends[i] - starts[i], default=NONE)
        assert at == want or (at != NONE and tuple(table[at]) == tuple(table[want]))
    assert [tuple(row) for row in table[outermost(starts, ends)]] == [(i * 1000, i * 1000 + 900) for i in range(20)]
