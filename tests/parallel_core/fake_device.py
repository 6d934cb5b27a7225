"""A second device without hardware: CPU tensors that claim to be on another device and reject what CUDA would reject.

An operation that mixes a tensor there with one in host memory raises, as with CUDA. Permitted crossings (copies,
zero-dimensional tensors, indices) are counted, and so is the memory of its tensors. The values are computed on the CPU.
Streams and timing are not modelled, and of NCCL only that it takes no tensors in host memory. Use it in a forked rank
only: PyTorch cannot unregister the device's name.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral, Number
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from parallel_core.engine import distributed, generate, peak, run
from parallel_core.engine.device import CpuDevice, Device
from parallel_core.engine.distributed import Groups
from parallel_core.layout import Layout
from parallel_core.profile import ranks
from parallel_core.spec import DeviceKind

NAME = "elsewhere"
COPIES = ("aten::copy_", "aten::_to_copy")
WAITS: Counter[str] = Counter()
"""How often something made the host wait for the device since the counter was cleared: a "number" or a "copy" read
back, or a copy "in" without non_blocking, as that of a number into one element.
"""


class Memory:
    """The bytes of all tensors on the second device: now, and the most since the peak was forgotten."""

    used = peak = 0
    _known: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    @classmethod
    def count(cls, storage: torch.UntypedStorage) -> None:
        if storage not in cls._known:
            cls._known.add(storage)
            cls._add(storage.nbytes())
            weakref.finalize(storage, cls._add, -storage.nbytes()).atexit = False

    @classmethod
    def _add(cls, size: int) -> None:
        cls.used += size
        cls.peak = max(cls.peak, cls.used)


class Elsewhere(Tensor):
    """A tensor on the second device; `held` has the values."""

    held: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Elsewhere:
        about: dict[str, Any] = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        place = torch.device(NAME, 0)
        made: Elsewhere = Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype, device=place, **about)
        made.held = inner
        Memory.count(inner.untyped_storage())
        return made

    def untyped_storage(self) -> Any:
        return self.held.untyped_storage()

    def storage_offset(self) -> int:
        return int(self.held.storage_offset())  # `data` may have been replaced since

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"can't convert {NAME} tensor to numpy: Tensor.cpu() comes first")

    def __setitem__(self, index: Any, value: Any) -> None:
        """Into one element CUDA copies a number from pageable host memory; it fills any larger part, even of one
        element (`copy_to` in ATen/TensorIndexing.h). The dispatcher sees neither: here PyTorch makes the number there.
        """
        places = index if isinstance(index, tuple) else (index,)
        one = len(places) == self.dim() and all(isinstance(at, Integral) and not isinstance(at, bool) for at in places)
        WAITS["in"] += one and isinstance(value, Number)
        super().__setitem__(index, value)

    def tolist(self) -> Any:
        WAITS["number"] += 1
        return self.held.detach().tolist()

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, other: Tensor) -> None:
        assert isinstance(other, Elsewhere)
        self.held = other.held

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # a variable in Tensor
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return dispatch(func, args, kwargs or {})


class Checking(TorchDispatchMode):
    """Also covers tensors that factory functions create on the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch(func, args, kwargs or {})


def dispatch(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Runs the operation on the CPU and wraps its results if they would be on the GPU."""
    name, tensors = func._schema.name, [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    there = [tensor for tensor in tensors if isinstance(tensor, Elsewhere)]
    here = [tensor for tensor in tensors if not isinstance(tensor, Elsewhere) and tensor.dim() > 0]
    asked = kwargs.get("device")
    goes = bool(there) if asked is None else torch.device(asked).type == NAME
    if there and here and not _may_cross(name, args):
        raise RuntimeError(f"{name} has tensors here and elsewhere, here of {[tuple(one.shape) for one in here]}")
    if asked is not None:
        kwargs = {**kwargs, "device": torch.device("cpu") if goes else asked}
    _count(name, there, goes, args, kwargs)
    out = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
    if name.startswith("c10d::"):
        return tree_map(_outer, out) if goes else out
    if not goes or name == "aten::_local_scalar_dense":
        return out
    return return_and_correct_aliasing(func, args, kwargs, tree_map(_outer, out))


def _may_cross(name: str, args: Any) -> bool:
    """Whether the operation may mix devices: copies, and host indices into a tensor on the device."""
    return name in COPIES or (name.startswith("aten::index") and isinstance(args[0], Elsewhere))


def _count(name: str, there: list[Elsewhere], goes: bool, args: Any, kwargs: dict[str, Any]) -> None:
    if name in COPIES and len(there) == (name == "aten::copy_" and isinstance(args[0], Elsewhere)) and goes:
        WAITS["in"] += not (kwargs.get("non_blocking") or (name == "aten::copy_" and len(args) > 2 and args[2]))
    elif name == "aten::_local_scalar_dense" and there:
        WAITS["number"] += 1
    elif (name == "aten::_to_copy" and there and not goes) or (
        name == "aten::copy_" and there and not isinstance(args[0], Elsewhere)
    ):
        WAITS["copy"] += 1


def _inner(value: Any) -> Any:
    return value.held if isinstance(value, Elsewhere) else value


def _outer(value: Any) -> Any:
    return Elsewhere(value) if isinstance(value, Tensor) else value


class OtherDevice(CpuDevice):
    """A device that the engine takes for a GPU."""

    kind: DeviceKind = "cuda"

    def __init__(self, sharing: int = 1) -> None:
        super().__init__()
        self.sharing, self.torch = sharing, torch.device(NAME, 0)

    def core(self) -> int | None:
        return None

    def memory_used(self) -> int:
        return Memory.used

    def memory_peak(self) -> int:
        return Memory.peak

    def forget_memory_peak(self) -> None:
        Memory.peak = Memory.used


@contextmanager
def moved(*, nccl: bool = False) -> Iterator[None]:
    """Makes the engine in this process compute on the second device; with `nccl`, its ranks communicate as ranks with a
    GPU each do.
    """
    if nccl:
        _take_for_nccl()
    _setup_privateuseone_for_python_backend(NAME)
    torch.tensor = _placed(torch.tensor)  # torch.tensor and torch.as_tensor bypass the dispatcher
    torch.as_tensor = _placed(torch.as_tensor)
    peak.SIDES["cuda"] = peak.SIDES["cpu"]
    for module in (run, generate, ranks):
        module.open_device = _open  # type: ignore[attr-defined]
    with Checking():
        yield


def _open(kind: str, sharing: int = 1) -> Device:
    return OtherDevice(sharing)


def _take_for_nccl() -> None:
    """Gloo's groups call themselves NCCL's, and `warm_up` finds the second device."""
    OtherDevice.backend = "nccl"
    init = dist.init_process_group
    dist.init_process_group = lambda _, **more: init("gloo", **more)
    dist.get_backend = lambda group=None: dist.Backend("nccl")
    torch.cuda.current_device = lambda: 0
    warm_up = distributed.warm_up

    def there(groups: Groups, rank: int, layout: Layout, device: torch.device, generates: bool = False) -> None:
        warm_up(groups, rank, layout, torch.device(NAME, 0), generates)

    distributed.warm_up = there


def _placed(make: Any) -> Any:
    def made(data: Any, *, device: Any = None, **more: Any) -> Tensor:
        tensor: Tensor = make(data, **more)
        return tensor if device is None else tensor.to(device)

    return made
