"""Operations are so small that launching them takes the time.

Threshold: host time between operations takes 10 % of the step while the median forward takes less than 0.5 ms. A
forward of a layer stack is tens of kernels, each of which costs 5 to 10 us to launch; below half a millisecond the
launches are not hidden behind each other.

On a single rank: every operation takes longer than on the ranks that do the same work by the same amount, a backward no
more than a forward, within a fifth; on a slow device the excess would be proportional, and a backward takes about two
forwards. The excess must be at least 0.3 of a forward and 5 % of the step, the latter as in `straggler`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis import waits
from parallel_core.analysis.diagnosis.case import Case, Finding
from parallel_core.analysis.quantities import ns_text, percent_text
from parallel_core.analysis.rows import durations
from parallel_core.schedule.ir import Kind

BETWEEN, SHORT_NS = 0.10, 500_000
ALIKE, TWO, THIRD, MATTERS = 0.2, 1.6, 0.3, 0.05


def check(case: Case) -> Finding | None:
    return alone(case) or _everywhere(case)


def alone(case: Case) -> Finding | None:
    """One rank of several that do the same work loses the same time with every operation."""
    if len(case.traced) < 2:
        return None
    typical = {rank: _lengths(case, rank) for rank in range(case.layout.world)}
    for rank in typical:
        place = case.layout.coords(rank).place
        peers = [typical[r] for r in typical if r != rank and case.layout.coords(r).place == place]
        if not peers:
            continue
        usual = np.median(peers, axis=0)
        more, times = np.array(typical[rank]) - usual, usual[1] / usual[0] if usual[0] else 0.0
        same = more[0] > 0 and abs(more[1] / more[0] - 1) <= ALIKE
        lost = round(float(more[0] * _operations(case, rank)))
        if same and times >= TWO and more[0] >= THIRD * usual[0] and lost >= MATTERS * case.step_ns:
            return _of_rank(rank, more, lost)
    return None


def _of_rank(rank: int, more: NDArray[np.float64], lost: int) -> Finding:
    return Finding(
        "tiny_kernels",
        f"{ns_text(float(more[0]))} more for each operation of rank {rank}, long or short: it launches, not computes.",
        f"Its forwards take {ns_text(float(more[0]))} more than those of its peers, its backwards "
        f"{ns_text(float(more[1]))}; a slow device takes longer in proportion.",
        f"Look at what else the host of rank {rank} starts with each operation: hooks, logging, small unfused kernels.",
        effect_ns=lost,
        tab="accounts",
        rank=rank,
    )


def _lengths(case: Case, rank: int) -> tuple[float, float]:
    """Shortest forward and whole backward in ns, since disturbances only add; 0 if there is none."""
    out = []
    for kind in (Kind.F, Kind.BW):
        own = np.concatenate([waits.of_kinds(step[rank], kind) for step in case.traced])
        out.append(float(durations(own).min()) if len(own) else 0.0)
    return out[0], out[1]


def _operations(case: Case, rank: int) -> float:
    """Number of forwards and backwards of a step."""
    counts = [len(waits.of_kinds(step[rank], kind)) for step in case.traced for kind in (Kind.F, Kind.BW)]
    return sum(counts) / len(case.traced)


def _everywhere(case: Case) -> Finding | None:
    between = case.share("other")
    if not case.traced or between < BETWEEN:
        return None
    forward = [waits.of_kinds(rows, Kind.F) for step in case.traced for rows in step.values()]
    lengths = np.concatenate([durations(own) for own in forward])
    if not len(lengths) or float(np.median(lengths)) > SHORT_NS:
        return None
    lost = round(between * case.step_ns)
    return Finding(
        "tiny_kernels",
        f"{percent_text(between)} of the step passes between operations: they are too small.",
        f"The median forward takes {ns_text(float(np.median(lengths)))}; {ns_text(lost)} of a step is the host's.",
        f"Use {_larger(case)}.",
        effect_ns=lost,
        tab="accounts",
    )


def _larger(case: Case) -> str:
    """What makes the operations of this run larger."""
    split = case.spec.parallel
    larger = "fewer, larger micro-batches" if split.micro_batches > 1 else "a larger train.global_batch"
    return f"{larger}, or fewer ranks for this model" if split.world > 1 else larger
