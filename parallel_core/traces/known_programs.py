"""The programs of known schedules: those of this engine, and PyTorch's where they differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from parallel_core.schedule import compute_only, names
from parallel_core.schedule.interleaved import rounds
from parallel_core.schedule.ir import RECVS, SENDS, Kind, Op, Program, Schedule
from parallel_core.schedule.passes.communicate import communicate
from parallel_core.schedule.traits import TRAITS, flushes

WHOLE_FIRST = ("zb-h1", "zb-v", "dualpipe-v")
"""Schedules that torch.distributed.pipelining has with split backwards, where it does not split the first stage's."""
MOST_CHUNKS = 8
"""Largest number of stages per rank that is tried."""
TORCH_ZB = "torch-interleaved-zero-bubble"
_LABELS = {TORCH_ZB: "PyTorch's interleaved zero bubble"}


class ProgramVariant(NamedTuple):
    """Compute operations of each pipeline place. What the `late` ones send goes out after the next operation."""

    programs: list[Program]
    late: frozenset[Op] = frozenset()


def label(name: str) -> str:
    """Returns the schedule's display name."""
    return _LABELS.get(name) or TRAITS[name].label


def candidates(pp: int, ends: int, sent: list[set[tuple[int, int]]]) -> Iterator[tuple[str, list[ProgramVariant]]]:
    """Yields (name, variants) of the schedules over `pp` places that have the same number of messages at each place.

    `sent`: the (sends, receives) of the ranks of each place; `ends`: the sends of the first place.
    """
    for name in names():
        traits = TRAITS[name]
        for chunks in range(traits.least, min(traits.most or MOST_CHUNKS, MOST_CHUNKS) + 1) if flushes(name) else ():
            links = 2 if traits.shape == "v" else 2 * chunks - 1
            count = ends // links
            if not count or ends % links or (traits.pairs and count < 2 * pp):
                continue
            made = compute_only(name, pp, count, chunks=chunks)
            if _messages(made) == sent:
                yield name, list(_variants(made, name in WHOLE_FIRST))
    for chunks in range(2, MOST_CHUNKS + 1):
        count, rest = divmod(ends, 2 * chunks - 1)
        if count and not rest and _messages(made := torch_zero_bubble(pp, chunks, count)) == sent:
            yield TORCH_ZB, list(_variants(made, whole_first=True))


def like(made: Schedule) -> str:
    """Returns the display name of the schedule with this order, also if its PAIRs are separated or the first stage's
    split backwards are whole; '' where there is none."""
    sent = _messages(made)
    ((ends, _),) = sent[0]
    known = candidates(made.pipeline_ranks, ends, sent)
    return next(
        (label(name) for name, variants in known if any(variant.programs == [*made.programs] for variant in variants)),
        "",
    )


def torch_zero_bubble(pp: int, chunks: int, micro_batches: int) -> Schedule:
    """`ScheduleInterleavedZeroBubble` of torch.distributed.pipelining: interleaved 1F1B with half as many warm-up
    forwards and split backwards; on rank r weight gradients lag by r backwards."""
    programs = tuple(_zero_bubble(place, pp, chunks, micro_batches) for place in range(pp))
    placement = tuple((stage % pp,) for stage in range(pp * chunks))
    return Schedule("custom", pp * chunks, micro_batches, placement, programs)


def _zero_bubble(place: int, pp: int, chunks: int, micro_batches: int) -> Program:
    runs = rounds(pp, micro_batches)
    forward = [Op(Kind.F, chunk * pp + place, i) for ids in runs for chunk in range(chunks) for i in ids]
    back = [(chunk * pp + place, i) for ids in runs for chunk in reversed(range(chunks)) for i in ids]
    ahead = min((chunks - 1) * len(runs[0]) + pp - 1 - place, len(forward))
    out = forward[:ahead]
    for j, (stage, i) in enumerate(back):
        out += [*forward[ahead + j : ahead + j + 1], Op(Kind.B, stage, i)]
        if j >= place:
            out.append(Op(Kind.W, *back[j - place]))
    return (*out, *(Op(Kind.W, *one) for one in back[max(0, len(back) - place) :]))


def _messages(made: Schedule) -> list[set[tuple[int, int]]]:
    """Returns the (sends, receives) of each place."""
    programs = communicate(made).programs
    return [{(sum(op.kind in SENDS for op in own), sum(op.kind in RECVS for op in own))} for own in programs]


def _variants(made: Schedule, whole_first: bool) -> Iterator[ProgramVariant]:
    """Yields the variants of a schedule's order, the first of which that matches is taken.

    As the first stage needs no input gradient, its backward may be whole, at the position of its W or of its B; these
    variants come before the split one. Both halves of a PAIR may be done before either sends.
    """
    programs = [tuple(part for op in program for part in op.parts()) for program in made.programs]
    late = frozenset(op.parts()[0] for program in made.programs for op in program if op.kind is Kind.PAIR)
    whole = [_whole(programs, *kinds) for kinds in ((Kind.W, Kind.B), (Kind.B, Kind.W))]
    for own in [*whole, programs] if whole_first else [programs]:
        yield ProgramVariant(own)
        if late:
            yield ProgramVariant(own, late)


def _whole(programs: list[Program], kept: Kind, other: Kind) -> list[Program]:
    return [
        tuple(
            Op(Kind.BW, op.stage, op.micro_batch) if op.stage == 0 and op.kind is kept else op
            for op in program
            if op.stage or op.kind is not other
        )
        for program in programs
    ]
