"""A gather for ranks of one host that are steps apart: each rank's part leaves its hands at once.

`host_group` meets at a wait, so whoever is ahead would stand still until the others have come as far. Here a part goes
to every other rank through a channel of its own (`host_links`), and is there when somebody waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from parallel_core.engine.host_links import Awaited, Form, HostLinks, open_links

_KIND = True, True
_MESSAGES = 256
"""Steps that a rank may be ahead of another with nobody waiting: far more than a pipeline can hold."""


class Rows:
    """The work of a gather; those of a table are waited for in the order in which they were begun."""

    def __init__(self, parts: Sequence[Awaited]) -> None:
        self._parts = parts

    def wait(self) -> bool:
        for part in self._parts:
            part.wait()
        return True


class HostTable:
    """Of the global `ranks`, one of which is `rank`; all gather parts of one size."""

    def __init__(self, links: HostLinks, ranks: Sequence[int], rank: int) -> None:
        self._links, self._ranks, self._rank = links, tuple(ranks), rank

    def all_gather(self, out: Tensor, mine: Tensor) -> Rows:
        """`out` (ranks x n) of everybody's `mine` (n), in the order of ranks."""
        self._links.form = Form.of(mine.nbytes, _MESSAGES)
        rows = dict(zip(self._ranks, out.view(len(self._ranks), mine.numel()), strict=True))
        rows.pop(self._rank).copy_(mine)
        for other in rows:
            self._links.isend(mine, other)
        return Rows([self._links.irecv(row, other) for other, row in rows.items()])


def open_table(ranks: Sequence[int], rank: int, store: dist.Store) -> HostTable | None:
    """Of the global `ranks`, all of which ask for it; None on each of them where not all can share memory."""
    links = open_links(ranks, (_KIND,), rank, store)
    return HostTable(links[_KIND], ranks, rank) if links else None
