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
"""Receives posted at once from one peer."""


class _Posted(NamedTuple):
    buffer: Tensor
    work: Any


class Links:
    """The links of one rank to the others of its pipeline. `edges[s]` is the shape of what enters stage s.

    `here` is this rank's pipeline rank, `peers` maps the others to the global rank with this rank's tensor coordinate.
    From one peer activations and gradients of all stages come in one line, in the order of the program (`check` holds
    both ends to it).
    """

    def __init__(
        self,
        program: Sequence[Op],
        here: int,
        peers: dict[int, int],
        groups: tuple[Group, Group],
        edges: Sequence[tuple[int, ...]],
        dtype: torch.dtype,
        device: Device,
    ) -> None:
        self._here, self._peers, self._edges = here, peers, edges
        self._upward, self._downward = groups
        self._dtype, self._device = dtype, device.torch
        self._expected: dict[int, list[Op]] = {}
        for op in program:
            if op.kind in RECVS:
                self._expected.setdefault(op.peer, []).append(op)
        self._left: dict[int, deque[Op]] = {}
        self._posted: dict[int, deque[_Posted]] = {}
        self._sent: dict[tuple[Kind, int, int], tuple[Any, Tensor]] = {}
        # More gradients than this on their way means that the oldest was taken long ago.
        self._window = 2 * len(peers) + 2

    def begin_step(self) -> None:
        """Post the first receives of the step."""
        self._left = {peer: deque(ops) for peer, ops in self._expected.items()}
        self._posted = {peer: deque() for peer in self._expected}
        for peer in self._expected:
            for _ in range(AHEAD):
                self._post(peer)

    def receive(self, op: Op) -> Tensor:
        """The tensor of a RECV operation; waits for it."""
        buffer, work = self._posted[op.peer].popleft()
        self._post(op.peer)
        work.wait()
        if op.kind is Kind.RECV_GRAD:  # its gradient is here, so the activation was taken
            self._release((Kind.SEND_ACT, op.stage, op.micro_batch))
        return buffer

    def send(self, op: Op, tensor: Tensor) -> None:
        """Start a SEND operation."""
        tensor = tensor.contiguous()
        group = self._upward if op.peer > self._here else self._downward
        work = dist.isend(tensor, self._peers[op.peer], group=group)
        self._sent[op.kind, op.stage, op.micro_batch] = (work, tensor)
        if op.kind is Kind.SEND_GRAD:
            pending = [key for key in self._sent if key[0] is Kind.SEND_GRAD]
            if len(pending) > self._window:
                self._release(pending[0])

    def end_step(self) -> None:
        """Wait until every send has arrived."""
        for key in list(self._sent):
            self._release(key)

    def _release(self, key: tuple[Kind, int, int]) -> None:
        work, _ = self._sent.pop(key)
        work.wait()

    def _post(self, peer: int) -> None:
        if not self._left[peer]:
            return
        op = self._left[peer].popleft()
        shape = self._edges[op.stage if op.kind is Kind.RECV_ACT else op.stage + 1]
        buffer = torch.empty(shape, dtype=self._dtype, device=self._device)
        group = self._upward if peer < self._here else self._downward
        self._posted[peer].append(_Posted(buffer, dist.irecv(buffer, self._peers[peer], group=group)))
