"""Communicates GPU tensors over groups that only reach host memory: copies out, exchanges, copies back.

NCCL needs a GPU per rank. Ranks that share a GPU exchange through the host instead (shared memory, or gloo): results
are the same, but each message waits for the device and crosses the bus twice, so its times are not representative.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor


class Work(Protocol):
    """A collective or a message in flight. The works of a group complete in the order in which they were started."""

    def wait(self) -> Any:
        """Returns once it is done. Raises RuntimeError if the other ranks are gone."""


class Staged:
    """The work of an exchange through host memory: `work` exchanges `host`, which is copied to `target` when it is
    waited for; None: no result."""

    def __init__(self, work: Work, host: Tensor, target: Tensor | None) -> None:
        self._work, self._host, self._target, self._done = work, host, target, False

    def wait(self) -> bool:
        if not self._done:  # a second wait must not overwrite later changes to the result
            self._done = True
            self._work.wait()
            if self._target is not None:
                self._target.copy_(self._host)
        return True


def is_staged(tensor: Tensor, group: Any) -> bool:
    """Whether `group` cannot access the memory of `tensor` directly."""
    if tensor.device.type == "cpu":
        return False
    return not (isinstance(group, dist.ProcessGroup) and dist.get_backend(group) == "nccl")


def out_of(tensor: Tensor) -> Tensor:
    """Returns a copy in host memory, once the device has computed the values."""
    with torch.no_grad():
        return tensor.detach().to("cpu", copy=True)


def room_for(tensor: Tensor) -> Tensor:
    """Returns uninitialized host memory of the shape and dtype of `tensor`."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
