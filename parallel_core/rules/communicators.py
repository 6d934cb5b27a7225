"""The rule about the number of NCCL communicators of a rank. Errors name valid values.

NCCL opens a communicator for each group, and for each pair of ranks between which messages of one kind go. PyTorch
gives each the next stream of a pool of 32 (c10/cuda/CUDAStream.cpp, `kStreamsPerPoolBits`). With more of them two share
a stream, where a receive that was posted ahead keeps the other's messages waiting: ranks can deadlock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import gcd
from typing import TYPE_CHECKING

from pydantic_core import PydanticCustomError

from parallel_core.rules import Proposal, divisors, refusal
from parallel_core.rules.stages import REPLICAS, WIDTHS, EachStage, dashed_text, each, in_place_of
from parallel_core.rules.tensor import check_tensor
from parallel_core.schedule import places
from parallel_core.schedule.ways import ways

if TYPE_CHECKING:
    from parallel_core.spec import ParallelSpec, RunSpec

MAX_COMMUNICATORS = 32
_NEAR = 64
"""How far below a number of replicas or tensor ranks every smaller one is tried; beyond, powers of two."""


def check_communicators(spec: RunSpec) -> None:
    """Checks that no rank on a GPU has more communicators than there are streams for them."""
    split = spec.parallel
    uneven = [what for what in (REPLICAS, WIDTHS) if getattr(split, what.leaf) is not None]
    if spec.train.device != "cuda" or not (uneven or split.program):
        return
    most = communicators(split, spec.model.tied)
    if most <= MAX_COMMUNICATORS:
        return
    text = " with ".join(f"{what.leaf}={dashed_text(getattr(split, what.leaf))}" for what in uneven) or "the program"
    leaves = [what.leaf for what in uneven] or ["program"]
    raise refusal(
        (*(f"parallel.{leaf}" for leaf in leaves), "train.device"),
        f"{text} makes a rank exchange messages with so many others that it has {most} communicators, and PyTorch has "
        f"{MAX_COMMUNICATORS} streams for them on device=cuda; use",
        *(proposal for what in uneven for proposal in _proposals(spec, what)),
        Proposal("device={}", "train.device", ["cpu"], spare=bool(uneven)),
    )


def communicators(split: ParallelSpec, tied: bool) -> int:
    """Returns the largest number of NCCL communicators of any rank: that of all ranks, those of its groups, and for
    each kind of messages one with each rank that it sends to or receives from."""
    homes = places(split)
    ends = {homes[0], homes[-1]}
    talks = Counter[int]()
    for edges in ways(homes).values():
        for sends, receives in edges:
            each_feeds = -(-split.tensor_ranks[receives] // split.tensor_ranks[sends])
            talks[sends] += _partners(split, sends, receives) * each_feeds
            talks[receives] += _partners(split, receives, sends)
    paired = ends if tied and len(ends) > 1 else set[int]()
    return 1 + max(
        talks[place] + (copies > 1) + (width > 1) + (place in paired)
        for place, (copies, width) in enumerate(zip(split.copies, split.tensor_ranks, strict=True))
    )


def _partners(split: ParallelSpec, here: int, there: int) -> int:
    """Returns the number of replicas of place `there` that share micro-batches with one of `here`: replica q of r has
    the micro-batches q, q + r, q + 2 r, .. of a step."""
    if split.replicas is None:
        return 1
    own, others = split.replicas[here], split.replicas[there]
    return min(others // gcd(own, others), -(-split.per_step // own))


def _proposals(spec: RunSpec, what: EachStage) -> list[Proposal]:
    """Returns the smallest reductions of one stage's number that are enough, and one number for all stages."""
    values: tuple[int, ...] = getattr(spec.parallel, what.leaf)

    def enough(changed: tuple[int, ...]) -> bool:
        split = spec.parallel.model_copy(update={what.leaf: changed})
        if communicators(split, spec.model.tied) > MAX_COMMUNICATORS:
            return False
        try:
            check_tensor(spec.model_copy(update={"parallel": split}))
        except PydanticCustomError:
            return False
        return True

    near = sorted(_reduced(values, enough), key=lambda changed: sum(values) - sum(changed))
    whole = divisors(spec.train.global_batch) if what is REPLICAS else [2**k for k in range(4)]
    one = in_place_of(what, [degree for degree in whole if degree > 1] or [2])
    return [*(each(what, changed)._replace(spare=changed != near[0]) for changed in near), one]


def _reduced(values: tuple[int, ...], enough: Callable[[tuple[int, ...]], bool]) -> list[tuple[int, ...]]:
    """Returns `values` with one of them reduced as little as is enough, for each for which that is possible."""
    found = []
    for at, value in enumerate(values):
        smaller = {*range(max(1, value - _NEAR), value), *(2**k for k in range(value.bit_length()) if 2**k < value)}
        changed = ((*values[:at], less, *values[at + 1 :]) for less in sorted(smaller, reverse=True))
        found += [next(filter(enough, changed), ())]
    return [one for one in found if one]
