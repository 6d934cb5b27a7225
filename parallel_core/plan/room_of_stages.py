"""Which stages of PipeDream's partition fit the workers, where the levels of a network share out the micro-batches.

A worker keeps one version for each micro-batch in flight (Narayanan et al. 2019, section 3.3), and how many these are
depends on the workers of all later stages: those of its own group, and those of higher levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

NONE = Fraction(0)


def versions(later: Fraction, m: Any) -> Any:
    """Versions that each of m workers of a stage keeps, with `later` workers in the stages after it: ceil((later + m) /
    m). `m`: an integer or an array of them."""
    return 1 - -later.numerator // (later.denominator * m)


class Kinds:
    """The tables that each level of a network needs. Under a memory limit a table depends on the workers in later
    stages of higher levels. Tables in which the same stages fit are equal: of one kind."""

    def __init__(self, workers: Sequence[int], sizes: NDArray[np.float64], memory: float | None) -> None:
        """`workers` of each level, innermost first; `sizes`: bytes of all possible stages, ascending; `memory`: bytes
        of a worker (None: unlimited)."""
        self._workers, self._sizes, self._memory = workers, sizes, memory
        self.later: list[list[Fraction]] = [[] for _ in workers]
        """Of each kind of a level's tables: workers (or groups) in later stages of higher levels, a replica."""
        self._keys: list[dict[object, int]] = [{} for _ in workers]
        self.find = lru_cache(maxsize=None)(self._find)
        self._fit = lru_cache(maxsize=None)(self._count)

    def _find(self, depth: int, later: Fraction) -> int:
        """The kind of a level's table with `later` workers (or groups) in later stages of higher levels."""
        key = self._key(depth, later)
        if key not in self._keys[depth]:
            self._keys[depth][key] = len(self.later[depth])
            self.later[depth].append(later)
        return self._keys[depth][key]

    def _key(self, depth: int, later: Fraction) -> object:
        if self._memory is None:
            return self.below(depth, later, 1) if depth else None
        workers = self._workers[depth]
        if depth:
            places = ((workers - m + later, own) for m in range(1, workers + 1) for own in range(1, m + 1))
            return tuple(self.below(depth, behind, own) for behind, own in places)
        if depth == len(self._workers) - 1:
            return None  # a single level has a single table
        rows = (versions(behind + later, np.arange(1, workers - behind + 1)) for behind in range(workers))
        many, at = np.unique(np.concatenate(list(rows)), return_inverse=True)
        return np.array([self._fit(int(each)) for each in many])[at].tobytes()

    def below(self, depth: int, behind: Fraction, own: int) -> int:
        """The kind of the table inside a stage on `own` groups, with `behind` groups in the stages after it."""
        return self.find(depth - 1, self.later_below(depth, behind, own))

    def later_below(self, depth: int, behind: Fraction, own: int) -> Fraction:
        """Workers in later stages for each of the `own` groups of a stage, with `behind` groups after it."""
        return NONE if self._memory is None else behind / own * self._workers[depth - 1]

    def _count(self, many: int) -> int:
        """How many stages fit with so many versions. Fewer fit with more, so equal counts are the same stages."""
        assert self._memory is not None
        return int(np.searchsorted(self._sizes * many, self._memory, side="right"))
