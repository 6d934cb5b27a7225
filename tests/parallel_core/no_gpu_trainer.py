"""The engine on tensors without memory (`no_gpu`), with stand-ins for what such tensors cannot do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from parallel_core.engine import host_staging
from parallel_core.engine.buffer_view import BufferView
from parallel_core.engine.device import CpuDevice
from parallel_core.engine.distributed import Groups, groups_of
from parallel_core.engine.norm import StageNorm, StepTotals, Totals
from parallel_core.engine.trainer import Trainer
from parallel_core.layout import Layout
from parallel_core.models import attention
from parallel_core.observe.progress import Progress
from parallel_core.observe.recorder import SpanRecorder
from parallel_core.spec import DeviceKind, RunSpec


class Gpu(CpuDevice):
    kind: DeviceKind = "cuda"
    backend = "nccl"

    def __init__(self) -> None:
        self.torch = torch.device("cuda", 0)

    def recorder(self, stage: int, replica: int) -> SpanRecorder:
        return SpanRecorder(stage=stage, replica=replica)


class NothingReadBack(TorchDispatchMode):
    """Raises if the host reads a number back from the device, since it would have to wait for all queued work."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        there = {t.device.type for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        assert "cuda" not in there or all(t.is_cuda for t in tree_leaves(out) if isinstance(t, Tensor)), func
        return out


def stand_ins() -> None:
    """Replaces what needs values or addresses, and a kernel that builds for CPUs lack."""
    torch.addmm = _accepted(torch.addmm)
    attention.has_flash = lambda device: True  # type: ignore[assignment]
    host_staging.is_staged = lambda tensor, group: False
    StepTotals.result = lambda self, begun: Totals(1.0, 2.0)  # type: ignore[method-assign]
    StageNorm.of = lambda self, squares: float((squares * self._counted).dim())  # type: ignore[method-assign]

    def of(tensor: Tensor, memory: Tensor) -> BufferView | None:
        same = tensor.untyped_storage()._cdata == memory.untyped_storage()._cdata
        return BufferView(tensor.shape, tensor.stride(), int(tensor.storage_offset())) if same else None

    BufferView.of = staticmethod(of)  # type: ignore[method-assign]


def _accepted(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """torch.addmm; with `out_dtype`, a stand-in that accepts what the CUDA kernel accepts (`_addmm_dtype_out_cuda` in
    ATen/native/cuda/Blas.cpp).
    """

    def addmm(total: Tensor, a: Tensor, b: Tensor, *, out_dtype: torch.dtype | None = None, **more: Any) -> Tensor:
        if out_dtype is None:
            return plain(total, a, b, **more)
        assert a.dtype == b.dtype and a.dtype.itemsize == 2 and out_dtype == total.dtype == torch.float32
        assert more["out"] is total and total.is_cuda
        return total.add_(torch.mm(a, b, out_dtype=out_dtype))

    return addmm


def steps(spec: RunSpec, rank: int, folder: Path) -> None:
    """Runs three steps of rank `rank`, the last one with its memory metered; other ranks' messages are fakes of the
    right size.
    """
    layout = Layout.of(spec)
    groups = groups_of(rank, layout, FakeStore(), spec.model.tied) if dist.get_world_size() > 1 else Groups()
    trainer = Trainer(spec, rank, groups, Gpu(), Progress(folder, rank))
    trainer.advance(0)
    with NothingReadBack():
        trainer.advance(1)
    trainer.metered_step(2)
