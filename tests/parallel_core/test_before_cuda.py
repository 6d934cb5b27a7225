"""What must hold before CUDA is used, tested without a GPU: the fork server does not initialise CUDA, users' settings
reach the ranks, and a library's memory error is recognized.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from parallel_core import launch, local
from parallel_core.engine import device
from parallel_core.engine.device import CpuDevice
from parallel_core.engine.reporter import Reporter
from parallel_core.engine.run import lstm_must_reread_weights
from parallel_core.launch import rank as launch_rank
from parallel_core.local import LocalRunner
from parallel_core.observe.record_files import FileSink
from parallel_core.observe.recorder import SpanRecorder
from parallel_core.observe.scope import Scope
from parallel_core.plan.room import device_bytes
from parallel_core.profile.measure import ProfileFailed, measure
from parallel_core.profile.request import ProfileRequest
from parallel_core.spec import ModelSpec, RunSpec

WATCHED = """
import torch
asked = []
for name in ("is_available", "device_count", "get_device_properties", "current_device", "_lazy_init"):
    setattr(torch.cuda, name, lambda *_, name=name, **__: asked.append(name))
from parallel_core import processes
from parallel_core.launch import prewarm, rank, server
prewarm.prewarm()
prewarm.prewarm_compiler()
rank.engine()
print(asked, torch.cuda.is_initialized(), processes.threads())
"""

EXACT = """
import torch
before = torch.backends.cudnn.allow_tf32
from parallel_core.engine.device import disable_tf32
disable_tf32()
print(before, torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32)
"""

OFF = """
import torch
from parallel_core.engine.device import disable_cudnn, disable_cudnn_attention
print(torch.backends.cuda.cudnn_sdp_enabled(), torch.backends.cudnn.enabled)
disable_cudnn_attention()
disable_cudnn()
print(torch.backends.cuda.cudnn_sdp_enabled(), torch.backends.cudnn.enabled)
"""


@pytest.mark.full
def test_cudnn_is_left_out_where_its_plans_or_copies_would_be_in_the_way() -> None:
    done = subprocess.run([sys.executable, "-c", OFF], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "False", "False"]


@pytest.mark.parametrize(
    ("kind", "split", "fresh"),
    [
        ("gnmt", {"dp": 2, "zero": 3}, True),
        ("gnmt", {"pp": 2, "micro_batches": 4, "schedule": "1f1b-naive"}, True),
        ("gnmt", {"pp": 2, "micro_batches": 4, "schedule": "1f1b-stash"}, False),
        ("gnmt", {"dp": 2, "zero": 2}, False),
        ("gpt", {"dp": 2, "zero": 3}, False),
    ],
)
def test_lstms_whose_backward_must_find_other_weights(kind: str, split: dict[str, Any], fresh: bool) -> None:
    train = {"clip": "stage"} if "schedule" in split else {}
    spec = RunSpec.model_validate({"model": {"kind": kind}, "parallel": split, "train": train})
    assert lstm_must_reread_weights(spec) is fresh


def test_what_the_fork_server_imports_asks_nothing_of_cuda() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED], env=launch.environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[] False 1"


@pytest.mark.parametrize(
    ("told", "memory"),
    [
        ("CUDA error: out of memory", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("NCCL error in: x.cpp:1, unhandled cuda error. Last error:\nCuda failure 2 'out of memory'", True),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", True),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED", True),
        ("CUDA driver error: out of memory", True),
        ("CUDA error: an illegal memory access was encountered", False),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED", False),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED", False),
        ("CUDA driver error: invalid argument", False),
    ],
)
def test_an_allocation_that_a_library_could_not_make_is_out_of_memory(told: str, memory: bool) -> None:
    assert launch_rank._out_of_memory(torch.AcceleratorError(told)) == memory


@pytest.mark.parametrize(
    ("told", "lost"),
    [
        (
            "NCCL error in: x.cpp:4, remote process exited or there was a network error, ncclRemoteError",
            True,
        ),
        ("NCCL communicator was aborted on rank 1.", True),
        ("ncclSystemError: System call failed.\nLast error:\nsocketStartConnect: Connection refused", True),
        (
            "ncclSystemError: System call failed.\nLast error:\nError while creating shared memory segment "
            "/dev/shm/nccl-1YsMbG (size 9637888), error: No space left on device (28)",
            False,
        ),
        ("NCCL error in: x.cpp:4, invalid usage, ncclInvalidUsage: Duplicate GPU detected", False),
        ("NCCL error in: x.cpp:9, unhandled cuda error, ncclUnhandledCudaError: Call to CUDA failed.", False),
    ],
)
def test_a_fault_of_ones_own_set_up_is_no_peer_that_was_lost(told: str, lost: bool) -> None:
    assert launch_rank._peer_lost(dist.DistBackendError(told)) == lost


def test_on_a_gpu_fp32_is_not_rounded() -> None:
    done = subprocess.run([sys.executable, "-c", EXACT], env=launch.environment(), capture_output=True, check=True)
    assert done.stdout.split() == [b"True", b"False", b"False"]


class OnNccl(CpuDevice):
    backend = "nccl"


@pytest.mark.parametrize(("schedule", "profiled"), [("1f1b", True), ("1f1b-stash", False)])
def test_nobody_waits_for_the_whole_device_while_a_pipeline_is_full(
    schedule: str, profiled: bool, tmp_path: Path
) -> None:
    """torch.profiler synchronises the device when it ends, so a pipeline that stays full must not be profiled on
    NCCL.
    """
    spec = RunSpec.model_validate(
        {
            "parallel": {"pp": 2, "micro_batches": 4, "schedule": schedule},
            "train": {"clip": "stage" if "stash" in schedule else "global"},
            "trace": {"profile_steps": (5,)},
        }
    )
    around = Reporter(spec, 0, FileSink(tmp_path, 0), OnNccl()).profiled(5, Scope(SpanRecorder()))
    assert isinstance(around, nullcontext) == (not profiled)


def test_settings_of_cuda_and_nccl_reach_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "CUDNN_LOGLEVEL_DBG": "0", "FI_PROVIDER": "efa"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "0")
    seen = launch.environment()
    assert told.items() <= seen.items() and seen["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"


class Refusing:
    """A fork server that records its orders and starts nothing."""

    given: list[dict[str, Any]] = []

    def __init__(self, on_event: Callable[[dict[str, Any]], None], command: Any) -> None:
        self._tell = on_event

    def start(self, order: dict[str, Any]) -> None:
        self.given.append(order)
        self._tell({"event": "refused", "attempt": order["attempt"], "message": "not here"})
        self._tell({"event": "gone", "attempt": order["attempt"]})

    def close(self) -> None:
        return


@pytest.mark.parametrize(("ranks", "ahead"), [(1, False), (2, True)])
def test_the_ranks_of_a_profile_post_receives_as_those_of_a_pipeline_do(
    ranks: int, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receive for the answer, then the send that triggers it: on a single connection to the GPU this would never
    end.
    """
    monkeypatch.setattr(local, "ForkServer", Refusing)
    with pytest.raises(ProfileFailed, match="not here"):
        measure(ModelSpec(), ProfileRequest((1,), devices=ranks), ranks=ranks, device="cuda", deterministic=True)
    order: Any = Refusing.given.pop()
    assert order["spec"]["train"]["deterministic"] is True
    order["gpus"] = [("GPU-a", "GPU-a")]
    seen: list[object] = []

    def taken(device: object, devices: object, ahead: bool, known: object) -> int:
        seen.extend((ahead, known))
        return 1

    monkeypatch.setattr(launch_rank, "take_gpu", taken)
    monkeypatch.setattr(launch_rank, "_prefer_as_victim", lambda: None)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    spec = RunSpec.model_validate(order["spec"])
    launch_rank._take_place(launch_rank.RankArgs(order, spec, 0, 0, launch.Store(host="", port=0), None, True))
    assert seen == [ahead, order["gpus"]]


@pytest.mark.parametrize(("cap", "whole", "taken"), [(8, 80, 10), (79, 80, 80), (80, 80, 80)])
def test_a_cap_on_tensors_leaves_the_allocator_room_for_libraries(
    cap: int, whole: int, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As much beside the cap as the planner says; else a run that fits would end for want of workspaces. In GiB."""
    fractions: list[float] = []
    monkeypatch.setattr(device, "first_gpu", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda at: SimpleNamespace(total_memory=whole << 30))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", fractions.append)
    launch_rank._limit_allocator(cap << 30)
    assert [fraction * whole for fraction in fractions] == [pytest.approx(taken)]
    assert min(device_bytes(whole << 30, cap << 30, "cuda"), whole << 30) == taken << 30


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a host without CUDA")
@pytest.mark.parametrize("trace", [pytest.param({}, marks=pytest.mark.full), {"memory_cap": 1 << 30}])
def test_a_host_without_cuda_says_so(trace: dict[str, int], tmp_path: Path) -> None:
    spec = RunSpec.model_validate({"train": {"device": "cuda", "global_batch": 1}, "trace": trace})
    with LocalRunner() as runner:
        outcome = runner.run(spec, tmp_path)
    fault = outcome.last(0, "fault")
    assert fault is not None and fault["type"] == "RuntimeError"
    assert "train.device=cuda, and PyTorch" in fault["message"] and "use train.device=cpu" in fault["message"]


def test_a_store_that_is_gone_is_a_peer_that_was_lost() -> None:
    """Rank 0 holds it: whoever waits for a key while it dies is not at fault."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    other = dist.TCPStore("127.0.0.1", store.port, wait_for_workers=False)
    del store
    with pytest.raises(dist.DistNetworkError) as caught:
        other.get("begins")
    assert launch_rank._peer_lost(caught.value)
