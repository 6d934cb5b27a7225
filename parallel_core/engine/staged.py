"""Tensors of a GPU through a group that reads host memory alone: copied out, exchanged, copied back.

NCCL wants a GPU for each rank. Ranks that share one exchange through the host instead (shared memory, or gloo): the
same numbers, but each message waits for the device and crosses the bus twice, so their times say nothing.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor


class Work(Protocol):
    """A collective or a message under way. Works of a group end in the order in which they were begun."""

    def wait(self) -> Any: ...


class Staged:
    """`work` exchanges `host`, whose result goes to `target` where somebody waits for it; None: nothing comes back."""

    def __init__(self, work: Work, host: Tensor, target: Tensor | None) -> None:
        self._work, self._host, self._target, self._done = work, host, target, False

    def wait(self) -> bool:
        if not self._done:  # a second wait must not undo what was done to the result since
            self._done = True
            self._work.wait()
            if self._target is not None:
                self._target.copy_(self._host)
        return True


def is_staged(tensor: Tensor, group: Any) -> bool:
    """Whether `group` cannot reach the memory of `tensor`."""
    if tensor.device.type == "cpu":
        return False
    return not (isinstance(group, dist.ProcessGroup) and dist.get_backend(group) == "nccl")


def out_of(tensor: Tensor) -> Tensor:
    """Its values in host memory, once the device has computed them."""
    with torch.no_grad():
        return tensor.detach().to("cpu", copy=True)


def room_for(tensor: Tensor) -> Tensor:
    """Host memory for values that are to come."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
