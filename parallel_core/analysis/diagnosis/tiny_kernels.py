"""Operations are so small that starting them takes the time.

Threshold: the host's time between operations takes 10 % of the step while the median forward takes less than 0.5 ms. A
forward of a layer stack is tens of kernels, each of which costs 5 to 10 us to launch; below half a millisecond they are
not hidden behind each other.
"""

from __future__ import annotations

import numpy as np

from parallel_core.analysis import waits
from parallel_core.analysis.diagnosis.case import Case, Finding
from parallel_core.analysis.quantities import ns_text, percent_text
from parallel_core.schedule.ir import Kind

BETWEEN, SHORT_NS = 0.10, 500_000


def check(case: Case) -> Finding | None:
    between = case.share("other")
    if not case.traced or between < BETWEEN:
        return None
    forward = [waits.of_kinds(rows, Kind.F) for step in case.traced for rows in step.values()]
    lengths = np.concatenate([own["end"] - own["start"] for own in forward])
    if not len(lengths) or float(np.median(lengths)) > SHORT_NS:
        return None
    lost = round(between * case.step_ns)
    return Finding(
        "tiny_kernels",
        f"{percent_text(between)} of the step passes between operations: they are too small.",
        f"The median forward takes {ns_text(float(np.median(lengths)))}; {ns_text(lost)} of a step is the host's.",
        "Use fewer, larger micro-batches, or fewer ranks for this model.",
        effect_ns=lost,
        tab="accounts",
    )
