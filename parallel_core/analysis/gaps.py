"""Short pauses between the operations of a rank: the host's own time, not waiting.

Between two operations a host runs Python and autograd, and in a profiled step it also writes the profiler's records:
some 0.6 us an event on a CPU core, which is what the profiler adds to a loop of small operations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.rows import by_start
from parallel_core.schedule.ir import Kind

LONGEST_NS = 500_000
"""Longest pause counted: Python between two operations takes up to hundreds of us; longer is a wait, or unrecorded
work."""


class Gaps(NamedTuple):
    """Pauses of up to LONGEST_NS of one rank in one step: their number, and ns in total."""

    many: int
    ns: int

    @property
    def each(self) -> float:
        """Mean ns; 0 without any."""
        return self.ns / self.many if self.many else 0.0


def gaps(rows: NDArray[np.void]) -> Gaps:
    """Pauses in a rank's spans, given in any order; the step's own span is ignored."""
    own = rows[rows["kind"] != Kind.STEP]
    own = by_start(own)
    pauses = own["start"][1:] - np.maximum.accumulate(own["end"])[:-1]
    short = pauses[(pauses > 0) & (pauses <= LONGEST_NS)]
    return Gaps(len(short), int(short.sum()))
