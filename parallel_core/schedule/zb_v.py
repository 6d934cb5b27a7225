"""ZB-V (Qi et al. 2024a, section 6): two chunks a rank placed as a V, so that the last stage (with the loss) is on
place 0.

With T_F = T_B = T_W and free communication it has no idle time with p micro-batches in flight: the memory of 1F1B.
"""

from __future__ import annotations

from collections import Counter

from parallel_core.schedule.ir import Kind
from parallel_core.schedule.runs import Pass, Run, limited


def runs(place: int, pp: int, micro_batches: int) -> list[Run]:
    """A place of ZB-V, which holds stages s and 2p - 1 - s.

    The pattern needs 2p - 1 micro-batches; with fewer, the missing ones are left out of it.
    """
    return limited(_Place(place, pp).runs(max(2 * pp - 1, micro_batches)), micro_batches)


class _Place:
    """Generates one place's program; each operation takes the next micro-batch of its stage and kind."""

    def __init__(self, place: int, pp: int) -> None:
        self._place, self._pp = place, pp
        self._stages = (place, 2 * pp - 1 - place)
        self._runs: list[Run] = []
        self._count: Counter[Pass] = Counter()
        """Operations so far of a kind on a chunk."""

    def runs(self, micro_batches: int) -> list[Run]:
        place, rest, count = self._place, self._pp - self._place, self._count
        self._repeat(2 * rest - 1, (Kind.F, 0))
        self._repeat(place, (Kind.F, 1), (Kind.F, 0))
        self._repeat(rest, (Kind.F, 1), (Kind.B, 1), (Kind.W, 1))
        steady = ((Kind.B, 0), (Kind.W, 0), (Kind.F, 1), (Kind.B, 1), (Kind.W, 1))
        self._repeat(micro_batches - count[Kind.F, 0], (Kind.F, 0), *steady)
        self._repeat(micro_batches - count[Kind.F, 1], *steady)
        self._repeat(place, (Kind.B, 0), (Kind.B, 1))
        self._repeat(rest, (Kind.B, 0), (Kind.W, 0))
        self._repeat(micro_batches - count[Kind.W, 1], (Kind.W, 1))
        self._repeat(micro_batches - count[Kind.W, 0], (Kind.W, 0))
        return self._runs

    def _repeat(self, times: int, *pattern: Pass) -> None:
        self._runs.append(Run(times, tuple((kind, self._stages[chunk]) for kind, chunk in pattern)))
        self._count.update(dict.fromkeys(pattern, times))
