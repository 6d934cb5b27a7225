"""How many updates each place of the pipeline has made, known to every rank: a checkpoint keeps the numbers of all.

Places with different numbers of replicas do not make as many a step (`ParallelSpec.updates`), and AdamW's correction of
its moments depends on how many there were.
"""

from __future__ import annotations

from collections.abc import Mapping

from parallel_core.spec import ParallelSpec


class Updates:
    """Seen from `place`. Checkpoints are made between steps, with the pipeline empty."""

    def __init__(self, split: ParallelSpec, place: int) -> None:
        self._a_step = [split.updates(other) for other in range(split.pp)]
        self._first, self._place = [0.0] * split.pp, place

    def scalars(self, mine: float) -> dict[str, float]:
        """`steps.<place>` of each, where they differ; `mine` = those of the own place."""
        steps = (mine - self._first[self._place]) / self._a_step[self._place]
        each = [first + steps * made for first, made in zip(self._first, self._a_step, strict=True)]
        return {f"steps.{place}": made for place, made in enumerate(each)} if len(set(each)) > 1 else {}

    def restore(self, saved: Mapping[str, float]) -> float:
        """The own number out of a checkpoint's, whose stages hold the same layers where they differ. Raises KeyError
        where it is missing."""
        self._first = [saved.get(f"steps.{place}", saved["steps"]) for place in range(len(self._first))]
        return self._first[self._place]
