"""1F1B-RR: stages with different numbers of replicas (PipeDream: Narayanan et al. 2019, section 3.2).

Micro-batch i of a step goes to replica i modulo r of every stage with r replicas, forward and backward on the same one,
and each replica alternates forwards and backwards. Micro-batch i + n runs forward after the backward of i, where n is
the number of devices from this stage to the last: as many are in flight as keep all of them busy, and a replica of
stage s holds ceil(n / replicas of stage s) of them; for the first stage that is the paper's NOAM. With equal numbers
everywhere it is 1F1B. With a flush, all stages update at the end of the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parallel_core.schedule.ir import Kind, Op, Schedule
from parallel_core.schedule.passes.versions import stamp
from parallel_core.schedule.traits import TRAITS, round_robins


def under_way(replicas: Sequence[int], stage: int) -> int:
    """Micro-batches that each replica of `stage` holds when the pipeline is full; NOAM for stage 0."""
    return -(-sum(replicas[stage:]) // replicas[stage])


def least_micro_batches(name: str, replicas: Sequence[int]) -> int:
    """Fewest micro-batches a step: one for every replica; under 2bw those in flight belong to at most two steps."""
    return max([*replicas, sum(replicas) - 1 if TRAITS[name].sync == "2bw" else 1])


def compute_only(
    name: str, replicas: Sequence[int], micro_batches: int, steps: int = 1, ahead: int | None = None
) -> Schedule:
    """Compute operations for `micro_batches` over all replicas; without a flush, a stream of `steps` such steps with
    its weight versions.

    Pipeline ranks go stage by stage: replica q of stage s is rank sum(replicas[:s]) + q. With `ahead` every stage runs
    that many micro-batches ahead, whatever `name` would do, and any schedule on a line is accepted (1: naive,
    `micro_batches`: GPipe). Raises ValueError if a replica would have no micro-batch, or `name` does not support
    replicas.
    """
    traits = TRAITS[name]
    if not traits.round_robin and ahead is None:
        raise ValueError(f"schedule={name} has as many replicas of every stage; try {', '.join(round_robins())}.")
    if micro_batches < max(replicas):
        raise ValueError(f"{max(replicas)} replicas need as many micro-batches, got {micro_batches}.")
    total = micro_batches * (1 if traits.sync == "flush" else steps)
    firsts = [sum(replicas[:stage]) for stage in range(len(replicas))]
    programs = []
    for stage, count in enumerate(replicas):
        for replica in range(count):
            own = [i for i in range(total) if i % micro_batches % count == replica]
            programs.append(tuple(_in_turn(stage, replica, own, ahead or sum(replicas[stage:]))))
    placement = tuple(tuple(range(first, first + count)) for first, count in zip(firsts, replicas, strict=True))
    per_step = 0 if traits.sync == "flush" else micro_batches
    made = Schedule(name, len(replicas), total, placement, tuple(programs), traits.sync, traits.vertical, per_step)
    return stamp(made)


def _in_turn(stage: int, replica: int, own: Sequence[int], ahead: int) -> Iterator[Op]:
    """The replica's operations: the backward of i after the forwards of all its micro-batches below i + `ahead`."""
    done = 0
    for i in own:
        while done < len(own) and own[done] < i + ahead:
            yield Op(Kind.F, stage, own[done], replica)
            done += 1
        yield Op(Kind.BW, stage, i, replica)
