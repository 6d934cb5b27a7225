"""Copies between the host and a GPU for which the host does not wait: through page-locked ("pinned") memory.

A copy from or to other (pageable) memory may make the host wait for all work queued on the stream (docs.nvidia.com,
CUDA Runtime API, "API synchronization behavior"); then the GPU idles until the host has queued more. The pinned memory
is allocated once, as its allocation may wait for a receive that was posted ahead (see `rehearsal`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import cycle
from typing import Protocol

import torch
from torch import Tensor

from parallel_core.engine.host_staging import Work

_ALIGNED = 512
"""Bytes to whose multiple a buffer is rounded up, so that each may be viewed as any dtype."""

_RING = 2
_RING_BYTES = 32 << 20
"""Number and size of the pinned buffers through which the state of a rank is copied."""


class Uploads(Protocol):
    """Copies host tensors to a device. The host tensor may be changed or freed at once."""

    def __call__(self, tensor: Tensor) -> Tensor: ...


class Download(Protocol):
    """A copy of a tensor to the host that is under way."""

    def wait(self) -> Tensor:
        """Waits until the copy is complete and returns it, a tensor in host memory."""


class Downloads(Protocol):
    """Copies tensors of one shape and dtype to the host."""

    def begin(self, tensor: Tensor, work: Work | None) -> Download:
        """Starts copying `tensor`, which `work` completes (None: operations that are queued). Keeps it alive until
        then."""


class Copies(Protocol):
    """Copies tensors to host memory that need not be pinned."""

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Returns the copies once they are complete. The next call may overwrite them."""


class PlainUploads:
    """Uploads to `device` from pageable memory; on a CPU, no copies at all."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device, non_blocking=True)


class _PlainDownload:
    def __init__(self, tensor: Tensor, work: Work | None) -> None:
        self._tensor, self._work = tensor, work

    def wait(self) -> Tensor:
        if self._work is not None:
            self._work.wait()
        return self._tensor.cpu()


class PlainDownloads:
    """Downloads that are only made when they are waited for: those of a CPU, and of GPU tensors that are exchanged
    through the host."""

    def begin(self, tensor: Tensor, work: Work | None) -> Download:
        return _PlainDownload(tensor, work)


class PinnedUploads:
    """Uploads to the GPU `device` through a ring of pinned buffers, in the order of the current stream.

    The buffers are allocated at the first upload, and again at one that is larger.
    """

    def __init__(self, device: torch.device, count: int) -> None:
        """`count`: the number of buffers, of which each has the size of the largest upload."""
        self._device, self._next = device, 0
        self._ring = torch.empty(count, 0, dtype=torch.uint8)
        self._copied = [torch.cuda.Event() for _ in range(count)]

    def __call__(self, tensor: Tensor) -> Tensor:
        if self._ring.shape[1] < tensor.nbytes:
            size = -(-tensor.nbytes // _ALIGNED) * _ALIGNED
            self._ring = _pinned(len(self._copied), size)
        slot, self._next = self._next, (self._next + 1) % len(self._copied)
        self._copied[slot].synchronize()  # returns at once where the slot's last copy is done, or there was none
        host = self._ring[slot, : tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        out = host.copy_(tensor).to(self._device, non_blocking=True)
        self._copied[slot].record()
        return out


class _PinnedDownload:
    def __init__(self, source: Tensor, host: Tensor, done: torch.cuda.Event, free: list[Tensor]) -> None:
        self._source: Tensor | None = source
        self._host, self._done, self._free = host, done, free

    def wait(self) -> Tensor:
        self._done.synchronize()
        self._source = None
        copy = self._host.clone()
        self._free.append(self._host)
        return copy


class PinnedDownloads:
    """Downloads from a GPU on a stream of their own: they wait for the tensor alone, not for what is queued after it.

    The stream has high priority: of PyTorch's pool of streams, those of normal priority are also given to NCCL, and
    one that a posted receive occupies would never get to the copy.
    """

    def __init__(self, like: Tensor, count: int) -> None:
        """`like`: a tensor of the shape and dtype of those to be copied; `count`: the most that are under way at once,
        each of which has a buffer."""
        self._stream = torch.cuda.Stream(like.device, priority=-1)
        self._free = [torch.empty(like.shape, dtype=like.dtype, pin_memory=True) for _ in range(count)]

    def begin(self, tensor: Tensor, work: Work | None) -> Download:
        assert self._free, "more downloads under way than were asked for"  # allocating now could deadlock
        computing = torch.cuda.current_stream(tensor.device)
        host, done = self._free.pop(), torch.cuda.Event()
        with torch.cuda.stream(self._stream):
            if work is None:
                self._stream.wait_stream(computing)
            else:
                work.wait()  # makes this stream wait, not the host
            host.copy_(tensor, non_blocking=True)
            done.record()
        return _PinnedDownload(tensor, host, done, self._free)


class PlainCopies:
    """Copies at once, into new memory: those of a CPU."""

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor.detach().to("cpu", copy=True) for tensor in tensors]


class PinnedCopies:
    """Copies from a GPU in the order of the current stream, through pinned buffers of which one is filled while another
    is emptied: into pageable memory the driver copies at a fraction of the bus's rate.

    The copies are in memory that is kept for the next call, as the first touch of new pages takes longer than a copy.
    """

    def __init__(self) -> None:
        self._ring = _pinned(_RING, _RING_BYTES)
        self._copied = [torch.cuda.Event() for _ in range(_RING)]
        self._kept: list[Tensor] = []

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        if [(kept.shape, kept.dtype) for kept in self._kept] != [(tensor.shape, tensor.dtype) for tensor in tensors]:
            self._kept = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in tensors]
        under_way: deque[tuple[torch.cuda.Event, Tensor, Tensor]] = deque()
        ring = cycle(zip(self._ring, self._copied, strict=True))
        for tensor, kept in zip(tensors, self._kept, strict=True):
            for source, target in zip(_pieces(tensor.detach()), _pieces(kept), strict=True):
                if len(under_way) == _RING:
                    _empty(*under_way.popleft())
                buffer, copied = next(ring)
                host = buffer[: len(source)]
                host.copy_(source, non_blocking=True)
                copied.record()
                under_way.append((copied, host, target))
        while under_way:
            _empty(*under_way.popleft())
        return self._kept


def _pinned(count: int, size: int) -> Tensor:
    """Returns pinned memory: bytes [count, size]."""
    return torch.empty(count, size, dtype=torch.uint8, pin_memory=True)


def _pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    """Returns the bytes of a tensor, in pieces of at most _RING_BYTES; views where it is contiguous."""
    return tensor.reshape(-1).view(torch.uint8).split(_RING_BYTES)


def _empty(copied: torch.cuda.Event, host: Tensor, target: Tensor) -> None:
    """Moves a piece out of its pinned buffer once it is there."""
    copied.synchronize()
    target.copy_(host)
