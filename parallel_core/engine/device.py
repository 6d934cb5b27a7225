"""The device that a rank computes on: hides the differences between CPU and CUDA from the rest of the engine."""

from __future__ import annotations

import os
import platform
from typing import Protocol
from zlib import crc32

import torch
from torch import Tensor

from parallel_core.engine.host_copies import (
    Copies,
    Downloads,
    PinnedCopies,
    PinnedDownloads,
    PinnedUploads,
    PlainCopies,
    PlainDownloads,
    PlainUploads,
    Uploads,
)
from parallel_core.observe import gpu_processes, host
from parallel_core.observe.cuda_recorder import CudaSpanRecorder
from parallel_core.observe.recorder import SpanRecorder
from parallel_core.spec import DeviceKind


class Device(Protocol):
    """The device that one rank computes on."""

    kind: DeviceKind
    torch: torch.device
    backend: str
    """Backend of torch.distributed: "nccl" or "gloo"."""
    sharing: int
    """Ranks of the run on this GPU, this one included. 1 on a CPU; `Interference` measures the sharing of cores."""

    @property
    def name(self) -> str: ...

    def synchronise(self) -> None:
        """Waits until the computation queued on the device is done, with the messages that it depends on.

        Does not wait for other messages: a receive posted ahead may be waiting for work that the host has yet to queue.
        """

    def memory_used(self) -> int:
        """Returns the bytes that the run uses on the device now; on a CPU the resident memory of the process beyond
        that after its imports."""

    def memory_peak(self) -> int:
        """Returns the largest value of `memory_used` so far."""

    def forget_memory_peak(self) -> None:
        """Resets `memory_peak`. No effect on a CPU, whose peak is kept by the kernel."""

    def uploads(self, count: int) -> Uploads:
        """Returns what copies tensors of one size from the host to the device; the host does not wait for the last
        `count` copies."""

    def downloads(self, like: Tensor, count: int) -> Downloads:
        """Returns what copies tensors of the shape and dtype of `like` to the host, at most `count` at once."""

    def copies(self) -> Copies:
        """Returns what copies the state to the host. On a GPU it allocates pinned memory, which may wait for receives
        that are posted."""

    def core(self) -> int | None:
        """Returns the CPU core that the process is bound to; None on a GPU, or if it is not bound to a single core."""

    def number(self) -> int | None:
        """Returns a number that only ranks on this very device of the host have; None on a CPU if the process is not
        bound to a single core."""

    def processes(self) -> frozenset[int] | None:
        """Returns the pids of all processes on the GPU, this one included; None where they are not known, and on a CPU.

        Asks the driver, which takes milliseconds."""

    def recorder(self, stage: int, replica: int) -> SpanRecorder: ...

    def __hash__(self) -> int:
        """By identity: results measured on a device are cached under it."""


class CpuDevice:
    """A CPU device: one core, one thread."""

    kind: DeviceKind = "cpu"
    backend = "gloo"
    sharing = 1

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.torch = torch.device("cpu")
        self._imports = host.rss()

    @property
    def name(self) -> str:
        return platform.processor() or platform.machine()

    def synchronise(self) -> None:
        return

    def memory_used(self) -> int:
        return max(0, host.rss() - self._imports)

    def memory_peak(self) -> int:
        return max(0, host.peak_rss() - self._imports)

    def forget_memory_peak(self) -> None:
        pass

    def uploads(self, count: int) -> Uploads:
        return PlainUploads(self.torch)

    def downloads(self, like: Tensor, count: int) -> Downloads:
        return PlainDownloads()

    def copies(self) -> Copies:
        return PlainCopies()

    def core(self) -> int | None:
        bound = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        return next(iter(bound)) if len(bound) == 1 else None

    def number(self) -> int | None:
        return self.core()

    def processes(self) -> frozenset[int] | None:
        return None

    def recorder(self, stage: int, replica: int) -> SpanRecorder:
        return SpanRecorder(stage=stage, replica=replica)


class CudaDevice:
    """The first visible CUDA device; the launcher makes only its own device visible to each rank."""

    kind: DeviceKind = "cuda"

    def __init__(self, sharing: int = 1) -> None:
        """`sharing`: ranks on this GPU; several exchange through host memory (`host_staging`)."""
        self.sharing, self.backend = sharing, "gloo" if sharing > 1 else "nccl"
        self.torch = first_gpu()
        disable_tf32()

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name(self.torch)

    def synchronise(self) -> None:
        torch.cuda.current_stream(self.torch).synchronize()

    def memory_used(self) -> int:
        return torch.cuda.memory_allocated(self.torch)

    def memory_peak(self) -> int:
        return torch.cuda.max_memory_allocated(self.torch)

    def forget_memory_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.torch)

    def uploads(self, count: int) -> Uploads:
        return PinnedUploads(self.torch, count)

    def downloads(self, like: Tensor, count: int) -> Downloads:
        return PinnedDownloads(like, count) if self.backend == "nccl" else PlainDownloads()

    def copies(self) -> Copies:
        return PinnedCopies()

    def core(self) -> int | None:
        return None

    def number(self) -> int | None:
        return crc32(os.environ.get("CUDA_VISIBLE_DEVICES", "").encode())  # the launcher leaves only this one there

    def processes(self) -> frozenset[int] | None:
        return gpu_processes.listed()

    def recorder(self, stage: int, replica: int) -> SpanRecorder:
        return CudaSpanRecorder(stage=stage, replica=replica)


def first_gpu() -> torch.device:
    """Selects the first visible CUDA device and returns it. Raises RuntimeError, naming the remedies, where PyTorch can
    use none."""
    first = torch.device("cuda", 0)
    try:
        torch.cuda.set_device(first)
    except (AttributeError, RuntimeError, AssertionError) as error:  # a build without CUDA lacks attributes
        raise RuntimeError(
            f"train.device=cuda, and PyTorch {torch.__version__} cannot use a CUDA device here ({error}); use "
            "train.device=cpu, or a host with a GPU, its driver and a CUDA build of PyTorch."
        ) from error
    return first


def disable_tf32() -> None:
    """Makes fp32 products use full fp32 precision from now on.

    By default PyTorch rounds to TF32 in convolutions and LSTMs, though not in matrix products (docs.pytorch.org,
    "CUDA semantics", TF32).
    """
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def use_deterministic_algorithms() -> None:
    """Makes this process use bitwise reproducible algorithms; an operation that has none raises RuntimeError.

    Must be called before the device is opened, which is when cuBLAS reads its setting.
    """
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # docs.nvidia.com/cuda/cublas, "Results reproducibility"
    # `torch.use_deterministic_algorithms` would do the same, and import PyTorch's compiler: most of a second in a rank
    torch.set_deterministic_debug_mode("error")
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010  # spare the debugging memset
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def disable_cudnn_attention() -> None:
    """Disables attention kernels that are planned anew for each number of keys, which grows by one per generated token.

    cuDNN's, PyTorch's first choice on GPUs of compute capability 9.0, takes longer to plan than a token takes to
    compute.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def disable_cudnn() -> None:
    """Disables cuDNN, so that LSTMs use PyTorch's own kernels.

    cuDNN needs the weights in one contiguous buffer: as ours are views of the flat parameters, it copies them at each
    call and keeps the copy for backward. Such a copy is not freed with the layer's parameters, and does not see an
    update in between.
    """
    torch.backends.cudnn.enabled = False


def open_device(kind: DeviceKind, sharing: int = 1) -> Device:
    """Returns the device of this process; `sharing` is the number of ranks on its GPU."""
    return CudaDevice(sharing) if kind == "cuda" else CpuDevice()
