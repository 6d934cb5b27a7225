"""DualPipe-V (DeepSeek-AI 2024, the V-shaped half of DualPipe): forward and backward of two micro-batches as one PAIR.

The two halves of a PAIR belong to different chunks of one rank and are independent, so that the communication of one
overlaps with the computation of the other. Needs at least 2p micro-batches.
"""

from __future__ import annotations

from collections import deque

from parallel_core.schedule.ir import Kind, Op


def programs(pp: int, chunks: int, micro_batches: int) -> list[list[Op]]:
    """Compute operations of each place in order; place s holds stages s and 2p - 1 - s.

    Raises ValueError for fewer than 2p micro-batches.
    """
    if micro_batches < 2 * pp:
        raise ValueError(f"DualPipe-V over {pp} ranks needs at least {2 * pp} micro-batches, got {micro_batches}.")
    return [_Place(place, pp).program(micro_batches) for place in range(pp)]


class _Place:
    """Generates one place's program in the eight steps of the published code; `near` and `far` are its two stages."""

    def __init__(self, place: int, pp: int) -> None:
        self._place, self._pp = place, pp
        self._near, self._far = place, 2 * pp - 1 - place
        self._ops: list[Op] = []
        self._forward = {self._near: 0, self._far: 0}
        self._backward = {self._near: 0, self._far: 0}
        self._owed: deque[tuple[int, int]] = deque()

    def program(self, micro_batches: int) -> list[Op]:
        near, far, rest = self._near, self._far, self._pp - 1 - self._place
        for _ in range(2 * rest):
            self._f(near)
        for _ in range(self._place + 1):
            self._f(near)
            self._f(far)
        for _ in range(rest):
            self._b(far, split=True)
            self._w()
            self._f(far)
        for i in range(micro_batches - 2 * self._pp + self._place + 1):
            if i == 0 and rest == 0:
                self._f(near)  # not a PAIR: the loss of this micro-batch has only just been computed here
                self._b(far)
            else:
                self._pair(near, far)
            self._pair(far, near)
        for _ in range(rest):
            self._b(far)
            self._pair(far, near)
        self._drain(rest)
        return self._ops

    def _drain(self, rest: int) -> None:
        """The last backwards; the second half of them is split, so that W fills idle slots."""
        count = self._place + 1
        for i in range(2 * count):  # far, near, far, near ...
            self._b(self._near if i % 2 else self._far, split=i >= count)
        for _ in range(rest):
            self._w()
            self._b(self._near, split=True)
        while self._owed:
            self._w()

    def _f(self, stage: int) -> None:
        self._ops.append(Op(Kind.F, stage, self._take(self._forward, stage)))

    def _b(self, stage: int, split: bool = False) -> None:
        i = self._take(self._backward, stage)
        self._ops.append(Op(Kind.B if split else Kind.BW, stage, i))
        if split:
            self._owed.append((stage, i))

    def _w(self) -> None:
        if self._owed:
            self._ops.append(Op(Kind.W, *self._owed.popleft()))

    def _pair(self, forward: int, backward: int) -> None:
        partner = (backward, self._take(self._backward, backward))
        self._ops.append(Op(Kind.PAIR, forward, self._take(self._forward, forward), partner=partner))

    @staticmethod
    def _take(count: dict[int, int], stage: int) -> int:
        count[stage] += 1
        return count[stage] - 1
