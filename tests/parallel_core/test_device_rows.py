"""Reads of the host in a device's trace: cut to the pauses that count, so that small ones do not multiply them."""

from __future__ import annotations

import numpy as np

from parallel_core.observe.records import SPAN
from parallel_core.traces.device_rows import alone, pauses


def rows(*times: tuple[int, int]) -> np.ndarray:
    out = np.zeros(len(times), SPAN)
    out["start"], out["end"] = np.array(times).T
    return out


def test_a_read_is_not_cut_by_gaps_over_which_kernels_are_joined() -> None:
    """2 000 kernels of 5 us with gaps of 1 us, then a pause of 50 us."""
    kernels = rows(*((6_000 * i, 6_000 * i + 5_000) for i in range(2_000)))
    end = int(kernels["end"].max())
    read = rows((1_000, end + 50_000))
    found = alone(read, pauses(kernels), 2_000)
    assert [(int(row["start"]), int(row["end"])) for row in found] == [(end, end + 50_000)]
    assert len(alone(read, pauses(kernels), 0)) == 2_000
