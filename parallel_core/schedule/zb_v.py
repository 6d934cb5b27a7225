"""ZB-V (Qi et al. 2023, section 6): two chunks a rank placed as a V, so that the last stage (with the loss) is on place
0.

With T_F = T_B = T_W and free communication it has no idle time with p micro-batches in flight: the memory of 1F1B.
"""

from __future__ import annotations

from parallel_core.schedule.ir import Kind, Op


def programs(pp: int, chunks: int, micro_batches: int) -> list[list[Op]]:
    """Compute operations of each place in order; place s holds stages s and 2p - 1 - s.

    The pattern needs 2p - 1 micro-batches; with fewer, the missing ones are left out of it.
    """
    full = max(2 * pp - 1, micro_batches)
    return [[op for op in _Place(place, pp).program(full) if op.micro_batch < micro_batches] for place in range(pp)]


class _Place:
    """Generates one place's program; each operation takes the next micro-batch of its stage and kind."""

    def __init__(self, place: int, pp: int) -> None:
        self._place, self._pp = place, pp
        self._stages = (place, 2 * pp - 1 - place)
        self._ops: list[Op] = []
        self._count: dict[tuple[Kind, int], int] = dict.fromkeys(
            ((kind, chunk) for kind in (Kind.F, Kind.B, Kind.W) for chunk in (0, 1)), 0
        )

    def program(self, micro_batches: int) -> list[Op]:
        place, rest = self._place, self._pp - self._place
        self._repeat(2 * rest - 1, (Kind.F, 0))
        self._repeat(place, (Kind.F, 1), (Kind.F, 0))
        self._repeat(rest, (Kind.F, 1), (Kind.B, 1), (Kind.W, 1))
        while self._count[Kind.F, 1] < micro_batches:
            if self._count[Kind.F, 0] < micro_batches:
                self._repeat(1, (Kind.F, 0))
            self._repeat(1, (Kind.B, 0), (Kind.W, 0), (Kind.F, 1), (Kind.B, 1), (Kind.W, 1))
        self._repeat(place, (Kind.B, 0), (Kind.B, 1))
        self._repeat(rest, (Kind.B, 0), (Kind.W, 0))
        self._repeat(micro_batches - self._count[Kind.W, 1], (Kind.W, 1))
        self._repeat(micro_batches - self._count[Kind.W, 0], (Kind.W, 0))
        return self._ops

    def _repeat(self, times: int, *pattern: tuple[Kind, int]) -> None:
        for kind, chunk in pattern * times:
            self._ops.append(Op(kind, self._stages[chunk], self._count[kind, chunk]))
            self._count[kind, chunk] += 1
