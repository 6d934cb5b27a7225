"""Point-to-point messages between stages: receives posted ahead, sends that nobody waits for.

A RECV of the program is where the rank waits; the receive itself is posted up to AHEAD messages earlier, so that the
data moves while the rank computes. A send returns at once; its tensor is kept until it is known to have arrived
(gloo's send is a rendezvous, and a Work that is dropped may drop its buffer with it).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from parallel_core.engine.device import Device
from parallel_core.engine.distributed import Group
from parallel_core.schedule.ir import RECVS, Kind, Op

AHEAD = 2
"""Receives posted at once from one peer in one direction."""


class _Posted(NamedTuple):
    buffer: Tensor
    work: Any


class Links:
    """The links of one rank to its neighbouring stages; every message has the same `shape`.

    `peers` maps a pipeline rank to the global rank with this rank's tensor coordinate.
    """

    def __init__(
        self,
        program: Sequence[Op],
        peers: dict[int, int],
        groups: tuple[Group, Group],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: Device,
    ) -> None:
        activations, gradients = groups
        self._peers, self._shape = peers, shape
        self._dtype, self._device = dtype, device.torch
        self._group = {
            Kind.SEND_ACT: activations,
            Kind.RECV_ACT: activations,
            Kind.SEND_GRAD: gradients,
            Kind.RECV_GRAD: gradients,
        }
        self.bytes = torch.Size(shape).numel() * dtype.itemsize
        self._expected: dict[tuple[Kind, int], int] = {}
        for op in program:
            if op.kind in RECVS:
                channel = (op.kind, op.peer)
                self._expected[channel] = self._expected.get(channel, 0) + 1
        self._left: dict[tuple[Kind, int], int] = {}
        self._posted: dict[tuple[Kind, int], deque[_Posted]] = {}
        self._sent: dict[tuple[Kind, int], tuple[Any, Tensor]] = {}
        # More gradients than this on their way to a peer means that the oldest was taken long ago.
        self._window = 2 * len(peers) + 2

    def begin_step(self) -> None:
        """Post the first receives of the step."""
        self._left = dict(self._expected)
        self._posted = {channel: deque() for channel in self._expected}
        for channel in self._expected:
            for _ in range(AHEAD):
                self._post(channel)

    def receive(self, op: Op) -> Tensor:
        """The tensor of a RECV operation; waits for it."""
        channel = (op.kind, op.peer)
        buffer, work = self._posted[channel].popleft()
        self._post(channel)
        work.wait()
        if op.kind is Kind.RECV_GRAD:  # its gradient is here, so the activation was taken
            self._release((Kind.SEND_ACT, op.micro_batch))
        return buffer

    def send(self, op: Op, tensor: Tensor) -> None:
        """Start a SEND operation."""
        tensor = tensor.contiguous()
        work = dist.isend(tensor, self._peers[op.peer], group=self._group[op.kind])
        self._sent[op.kind, op.micro_batch] = (work, tensor)
        if op.kind is Kind.SEND_GRAD:
            pending = [key for key in self._sent if key[0] is Kind.SEND_GRAD]
            if len(pending) > self._window:
                self._release(pending[0])

    def end_step(self) -> None:
        """Wait until every send has arrived."""
        for key in list(self._sent):
            self._release(key)

    def _release(self, key: tuple[Kind, int]) -> None:
        work, _ = self._sent.pop(key)
        work.wait()

    def _post(self, channel: tuple[Kind, int]) -> None:
        if not self._left[channel]:
            return
        self._left[channel] -= 1
        kind, peer = channel
        buffer = torch.empty(self._shape, dtype=self._dtype, device=self._device)
        work = dist.irecv(buffer, self._peers[peer], group=self._group[kind])
        self._posted[channel].append(_Posted(buffer, work))
