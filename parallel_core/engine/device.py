"""The one place that knows CPU from CUDA: everything else of the engine asks this object."""

from __future__ import annotations

import os
import platform
from typing import Protocol

import torch

from parallel_core.observe import host
from parallel_core.observe.recorder import SpanRecorder, recorder_for
from parallel_core.spec import DeviceKind


class Device(Protocol):
    """What one rank computes on."""

    kind: DeviceKind
    torch: torch.device
    backend: str
    """Of torch.distributed."""
    sharing: int
    """Ranks of the run that are on this GPU, this one included; how many share a CPU core `Interference` tells."""

    @property
    def name(self) -> str: ...

    def synchronise(self) -> None:
        """Wait until everything that the device was asked to compute is done, and the messages that wants. Not for
        others: a receive posted ahead may wait for what the host has yet to ask."""

    def memory_used(self) -> int:
        """Bytes the run holds now on the device; on a CPU what the process holds beyond its imports."""

    def memory_peak(self) -> int:
        """Largest value so far of `memory_used`."""

    def forget_memory_peak(self) -> None:
        """The largest value is from now on that of what comes; a CPU's, which the kernel keeps, stays."""

    def core(self) -> int | None:
        """The CPU core that is this device; None where it is none, or the process is bound to no single one."""

    def recorder(self, stage: int, replica: int) -> SpanRecorder: ...

    def __hash__(self) -> int:
        """Each is its own: what was found of one is kept for it."""


class CpuDevice:
    """One core and one thread."""

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

    def core(self) -> int | None:
        bound = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        return next(iter(bound)) if len(bound) == 1 else None

    def recorder(self, stage: int, replica: int) -> SpanRecorder:
        return recorder_for("cpu", stage=stage, replica=replica)


class CudaDevice:
    """The first visible CUDA device; the launcher shows each rank its own."""

    kind: DeviceKind = "cuda"

    def __init__(self, sharing: int = 1) -> None:
        """Ranks that share it exchange through the host (`staged`)."""
        self.sharing, self.backend = sharing, "gloo" if sharing > 1 else "nccl"
        self.torch = first_gpu()
        be_exact()

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

    def core(self) -> int | None:
        return None

    def recorder(self, stage: int, replica: int) -> SpanRecorder:
        return recorder_for("cuda", stage=stage, replica=replica)


def first_gpu() -> torch.device:
    """The first visible CUDA device, taken. Raises RuntimeError, with what would do, where PyTorch can use none."""
    first = torch.device("cuda", 0)
    try:
        torch.cuda.set_device(first)
    except (AttributeError, RuntimeError, AssertionError) as error:  # a build without CUDA lacks parts of itself
        raise RuntimeError(
            f"train.device=cuda, and PyTorch {torch.__version__} cannot use a CUDA device here ({error}); use "
            "train.device=cpu, or a host with a GPU, its driver and a CUDA build of PyTorch."
        ) from error
    return first


def be_exact() -> None:
    """fp32 is multiplied as fp32 from now on. PyTorch rounds it to TF32 by default in convolutions and LSTMs, though
    not in matrix products (docs.pytorch.org, "CUDA semantics", TF32)."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def be_deterministic() -> None:
    """From now on this process takes the algorithms that give the same bits every time; where an operation has none it
    raises RuntimeError. To be called before the device is opened: cuBLAS reads its setting then."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # docs.nvidia.com/cuda/cublas, "Results reproducibility"
    torch.use_deterministic_algorithms(True)
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010  # a memset against bugs
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def be_ready_for_any_length() -> None:
    """Attention takes no kernel that is planned anew for each number of keys, which grows by one a token: cuDNN's,
    PyTorch's first choice on GPUs of compute capability 9.0, takes longer to plan than a token to compute."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def keep_no_weights() -> None:
    """LSTMs are computed by PyTorch's own kernels. cuDNN wants weights in one piece: it copies ours, which are views of
    the flat parameters, at each call and keeps the copy for backward. Such a copy is not let go of with the layer's
    parameters, and knows nothing of an update in between."""
    torch.backends.cudnn.enabled = False


def open_device(kind: DeviceKind, sharing: int = 1) -> Device:
    """The device of this process, which a GPU is to `sharing` ranks."""
    return CudaDevice(sharing) if kind == "cuda" else CpuDevice()
