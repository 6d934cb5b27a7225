"""Operations are so small that launching them takes the time.

Threshold: host time between operations takes 10 % of the step while the median forward takes less than 0.5 ms. A
forward of a layer stack is tens of kernels, each of which costs 5 to 10 us to launch; below half a millisecond the
launches are not hidden behind each other.

Too many micro-batches: fewer of them would save 15 % of the step, by a replay in which what an operation costs whatever
its size stays (`simulate.constant_costs`), and the worst rank would take less than 70 % of its limit. What ZeRO-2 and 3
send for each micro-batch is not counted.

On a single rank: every operation takes longer than on the ranks that do the same work by the same amount, a backward no
more than a forward, within a fifth; on a slow device the excess would be proportional, and a backward takes about two
forwards. The excess must be at least 0.3 of a forward and 5 % of the step, the latter as in `straggler`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis import waits
from parallel_core.analysis.diagnosis.case import Case, Finding
from parallel_core.analysis.quantities import ns_text, percent_text, plural_text
from parallel_core.analysis.rows import durations
from parallel_core.outline import outline_of
from parallel_core.plan.memory import counted, worst_stage
from parallel_core.rules import divisors
from parallel_core.schedule.ir import Kind
from parallel_core.simulate.replay import FREE, Change, changed

BETWEEN, SHORT_NS = 0.10, 500_000
ALIKE, TWO, THIRD, MATTERS = 0.2, 1.6, 0.3, 0.05
FEWER, ROOM = 0.15, 0.70


def check(case: Case) -> Finding | None:
    return alone(case) or _many(case) or _everywhere(case)


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


def _many(case: Case) -> Finding | None:
    """Its micro-batches are so small that fewer of them are faster; of all numbers that fit the fastest."""
    split, many = case.spec.parallel, case.spec.parallel.micro_batches
    if case.typical is None or (split.pp > 1 and split.schedule == "naive"):
        return None  # where few_micro_batches advises another schedule
    saved = {n: _saved(case, n) for n in divisors(many) if n < many}
    able = [n for n in saved if saved[n] >= FEWER * case.step_ns and _fits(case, n)]
    if not able:
        return None
    best = max(able, key=saved.__getitem__)
    norms = " Its batch norms then see more samples at a time." if outline_of(case.spec.model).batch_norm else ""
    size = plural_text(case.spec.micro_batch_size, "sample")
    return Finding(
        "tiny_kernels",
        f"{percent_text(saved[best] / case.step_ns)} of the step is the price of {many} small micro-batches.",
        f"{plural_text(best, 'micro-batch')} instead of {many} with {size} would save {ns_text(saved[best])} of a "
        "step, by replaying the measured one with a core's usual costs of launches and weights.",
        f"Lower parallel.micro_batches to {best}.{norms}",
        effect_ns=saved[best],
        tab="whatif" if split.pp > 1 else "accounts",
    )


def _saved(case: Case, micro_batches: int) -> int:
    """Nanoseconds that so many micro-batches would take off the step. Under ZeRO-2 and 3 without what replicas send for
    each of them, which `exposed_reduction` tells."""
    if case.spec.parallel.zero < 2:
        return case.saved(Change(micro_batches=micro_batches))
    return case.saved(Change(micro_batches=micro_batches, links=FREE)) - case.saved(Change(links=FREE))


def _fits(case: Case, micro_batches: int) -> bool:
    """Whether so many micro-batches, which are larger, surely fit where a limit is known."""
    after = changed(case.spec, Change(micro_batches=micro_batches))
    return case.limit is None or (counted(after) and worst_stage(after).total <= ROOM * case.limit)


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
