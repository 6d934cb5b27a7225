"""An all-gather for CPU ranks of one host that may be several steps apart: a rank's part is sent without waiting.

`host_group` executes a collective only when all ranks wait for it, so a rank that is ahead would have to wait for the
others. Here a part is sent to every other rank through a channel (`host_links`), and read when that rank waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from parallel_core.engine.host_links import Awaited, ChannelLayout, HostLinks, open_links

_KIND = True, True
_MESSAGES = 256
"""Steps that a rank may be ahead of another before its sends block: far more than a pipeline can hold."""


class GatherWork:
    """The work of one gather. The gathers of a group must be waited for in the order in which they were started."""

    def __init__(self, parts: Sequence[Awaited]) -> None:
        self._parts = parts

    def wait(self) -> bool:
        for part in self._parts:
            part.wait()
        return True


class AsyncAllGather:
    """The all-gather among the global `ranks`, as seen from `rank`; all parts have the same size."""

    def __init__(self, links: HostLinks, ranks: Sequence[int], rank: int) -> None:
        self._links, self._ranks, self._rank = links, tuple(ranks), rank

    def all_gather(self, out: Tensor, mine: Tensor) -> GatherWork:
        """Sends `mine` [n] and starts receiving every rank's into `out` [ranks x n], in rank order."""
        self._links.layout = ChannelLayout.of(mine.nbytes, _MESSAGES)
        rows = dict(zip(self._ranks, out.view(len(self._ranks), mine.numel()), strict=True))
        rows.pop(self._rank).copy_(mine)
        for other in rows:
            self._links.isend(mine, other)
        return GatherWork([self._links.irecv(row, other) for other, row in rows.items()])


def open_async_all_gather(ranks: Sequence[int], rank: int, store: dist.Store) -> AsyncAllGather | None:
    """Returns the all-gather of the global `ranks`, all of which must call it; None on all of them where not all can
    share memory."""
    links = open_links(ranks, (_KIND,), rank, store)
    return AsyncAllGather(links[_KIND], ranks, rank) if links else None
