"""1F1B-RR: stages with different numbers of replicas (PipeDream: Narayanan et al. 2019, section 3.2).

Micro-batch i of the stream goes to replica i modulo r of every stage with r replicas, forward and backward on the same
one, and each replica does one forward and one backward in turn. As many micro-batches are under way as keep all devices
busy: a replica of stage s holds ceil(devices from stage s on / replicas of stage s) of them; of the first stage that is
the paper's NOAM. With equal numbers everywhere it is 1F1B.
"""

from __future__ import annotations

from collections.abc import Sequence

from parallel_core.schedule.ir import Kind, Op, Schedule
from parallel_core.schedule.one_f_one_b import alternate
from parallel_core.schedule.passes.communicate import communicate
from parallel_core.schedule.passes.versions import stamp, update
from parallel_core.schedule.traits import TRAITS


def under_way(replicas: Sequence[int], stage: int) -> int:
    """Micro-batches that each replica of `stage` holds when the pipeline is full; of stage 0 NOAM."""
    return -(-sum(replicas[stage:]) // replicas[stage])


def compute_only(name: str, replicas: Sequence[int], micro_batches: int, steps: int = 1) -> Schedule:
    """Compute operations of a stream of `steps` steps of `micro_batches` each, over all replicas, with the versions of
    schedule `name` (one that does not flush). Pipeline ranks go stage by stage: replica q of stage s is rank
    sum(replicas[:s]) + q. Raises ValueError where a replica would have nothing to do, or `name` flushes.
    """
    traits = TRAITS[name]
    if traits.sync not in ("none", "stash"):
        able = ", ".join(able for able, its in TRAITS.items() if its.sync in ("none", "stash"))
        raise ValueError(f"schedule={name} updates all stages at once; stages update on their own under {able}.")
    if micro_batches < max(replicas):
        raise ValueError(f"{max(replicas)} replicas need as many micro-batches, got {micro_batches}.")
    total, firsts = micro_batches * steps, [sum(replicas[:stage]) for stage in range(len(replicas))]
    programs = []
    for stage, count in enumerate(replicas):
        for replica in range(count):
            own = range(replica, total, count)
            forwards, backwards = ([Op(kind, stage, i, replica) for i in own] for kind in (Kind.F, Kind.BW))
            programs.append(tuple(alternate(forwards, backwards, under_way(replicas, stage) - 1)))
    placement = tuple(tuple(range(first, first + count)) for first, count in zip(firsts, replicas, strict=True))
    made = Schedule(name, len(replicas), total, placement, tuple(programs), traits.sync, traits.vertical)
    return stamp(made, micro_batches)


def build(name: str, replicas: Sequence[int], micro_batches: int, steps: int = 1) -> Schedule:
    """The same with updates, sums over replicas and messages."""
    return communicate(update(compute_only(name, replicas, micro_batches, steps), micro_batches))
