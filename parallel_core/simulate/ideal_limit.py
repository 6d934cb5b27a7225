"""How many times as fast as one device a run could be with any number of devices."""

from __future__ import annotations

from parallel_core.schedule import plain
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec


def ideal_limit(spec: RunSpec) -> int | None:
    """Largest speedup over one device with any number of devices and free communication, where each micro-batch is
    worked on by one device at a time: no step is then shorter than one micro-batch takes.

    GPipe and 1F1B with p stages take (m + p - 1) / p times a micro-batch (Huang et al. 2019), which tends to one for
    large p, so m micro-batches are at most m times as fast. The naive schedule keeps one device of a replica busy at a
    time, however many micro-batches there are. None where there is no such limit: tensor ranks share a
    micro-batch, weight gradients are computed while other stages go on with the input gradient, or the pipeline never
    flushes.
    """
    split = spec.parallel
    if max(split.tensor_ranks) > 1 or not split.flushes:
        return None
    parted = any(op.kind is Kind.B for program in plain(split).programs for op in program)
    if parted:
        return None
    return max(split.copies) if split.schedule == "naive" else split.per_step
