"""Messages of generation in a pipeline: activations go forward, tokens drawn by the last stage go back to all others.

Messages are cut into pieces, so that their size need not be known when the links are created. Every wait for one is
recorded as a span of the p2p lane, tokens like activations.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from parallel_core.engine.collectives import LinkGroup, irecv, isend
from parallel_core.engine.device import Device
from parallel_core.engine.distributed import Groups
from parallel_core.engine.host_links import ChannelLayout, HostLinks
from parallel_core.engine.host_staging import Work
from parallel_core.observe.recorder import LANE_P2P
from parallel_core.observe.scope import Scope
from parallel_core.schedule.ir import Kind
from parallel_core.schedule.ways import BACK, FORTH

PIECE = 1 << 20
"""Largest piece in bytes."""


class Relay:
    """The messages of one rank, number `place` of the global `ranks` of its pipeline, with their spans in `scope`."""

    def __init__(self, ranks: Sequence[int], place: int, groups: Groups, device: Device, scope: Scope) -> None:
        self._ranks, self._place, self._device, self._scope = tuple(ranks), place, device.torch, scope
        self._forth, self._back = groups.links.get(FORTH), groups.links.get(BACK)
        for link in (self._forth, self._back):
            if isinstance(link, HostLinks):
                link.layout = ChannelLayout(PIECE)

    def hand_on(self, x: Tensor) -> None:
        """Sends activations to the next stage."""
        start, x = self._scope.mark(), x.contiguous()
        _wait(_send(x, self._ranks[self._place + 1], self._forth))
        self._scope.span(Kind.SEND_ACT, LANE_P2P, start, x.nbytes)

    def receive(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Returns activations of the given shape from the previous stage."""
        out = torch.empty(tuple(shape), dtype=dtype, device=self._device)
        start = self._scope.mark()
        _wait([irecv(piece, self._ranks[self._place - 1], self._forth) for piece in _pieces(out)])
        self._scope.span(Kind.RECV_ACT, LANE_P2P, start, out.nbytes)
        return out

    def tokens(self, drawn: Sequence[int] | None, samples: int) -> list[int]:
        """Returns one token per sample, on every rank those `drawn` by the last stage (None on the others)."""
        if len(self._ranks) == 1:
            assert drawn is not None
            return list(drawn)
        *others, last = self._ranks
        start = self._scope.mark()
        if drawn is None:
            out = torch.empty(samples, dtype=torch.int64, device=self._device)
            _wait([irecv(out, last, self._back)])
            self._scope.span(Kind.RECV_ACT, LANE_P2P, start, out.nbytes)
            told: list[int] = out.tolist()
            return told
        given = torch.tensor(drawn, dtype=torch.int64, device=self._device)
        _wait([work for rank in others for work in _send(given, rank, self._back)])
        self._scope.span(Kind.SEND_ACT, LANE_P2P, start, given.nbytes)
        return list(drawn)


def _send(tensor: Tensor, rank: int, link: LinkGroup) -> list[Work]:
    return [isend(piece, rank, link) for piece in _pieces(tensor)]


def _pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    return tensor.view(-1).split(PIECE // tensor.element_size())


def _wait(works: Sequence[Work]) -> None:
    for work in works:
        work.wait()
