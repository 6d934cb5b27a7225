"""Fields with one value for each stage in place of a single one: their notation, and what they need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from parallel_core.rules import Proposal, refusal

if TYPE_CHECKING:
    from parallel_core.spec import ParallelSpec


class EachStage(NamedTuple):
    """A field of ParallelSpec with one number for each place of the pipeline, and the field with one number for all."""

    leaf: str
    says: str
    whole: str
    """Name of the field with one number for all."""


REPLICAS = EachStage("replicas", "says how often each stage is there", "dp")
WIDTHS = EachStage("widths", "says how many tensor ranks each stage has", "tp")


def dashed_text(values: tuple[int, ...]) -> str:
    """Formats the values as in PipeDream's paper: 2-1-1."""
    return "-".join(map(str, values))


def ranks_text(split: ParallelSpec) -> str:
    """What the number of ranks follows from: `dp=2 x tp=1 x pp=2`."""

    def axis(what: EachStage) -> str:
        values = getattr(split, what.leaf)
        return f"{what.whole}={getattr(split, what.whole)}" if values is None else f"{what.leaf}={dashed_text(values)}"

    return f"{axis(REPLICAS)} x {axis(WIDTHS)} x pp={split.pp}"


def each(what: EachStage, values: tuple[int, ...]) -> Proposal:
    """The proposal of other numbers, spelt as forms and the command line read them: `widths=1,2`."""
    return Proposal(f"{what.leaf}={','.join(map(str, values))}", f"parallel.{what.leaf}", [values])


def in_place_of(what: EachStage, values: Sequence[int]) -> Proposal:
    """The proposal of one number for all stages, which is one of `values` (nearest first)."""
    field, empty = f"parallel.{what.whole}", (f"parallel.{what.leaf}", None)
    return Proposal(f"{what.whole}={{}} in place of {what.leaf}", field, values, also=[empty])


def check_each_stage(split: ParallelSpec, what: EachStage) -> None:
    """Checks that there is a number for each place of a pipeline, and that the other field is not set."""
    values: tuple[int, ...] = getattr(split, what.leaf)
    text, count, whole = f"{what.leaf}={dashed_text(values)}", len(values), getattr(split, what.whole)
    empty = Proposal(f"leave {what.leaf} empty", f"parallel.{what.leaf}", [None])
    if whole > 1:
        raise refusal(
            (f"parallel.{what.leaf}", f"parallel.{what.whole}"),
            f"{text} {what.says}, and {what.whole}={whole} says it again; use",
            Proposal(f"{what.whole}={{}}", f"parallel.{what.whole}", [1]),
            empty,
        )
    as_many = Proposal("pp={}", "parallel.pp", [max(count, 2)])
    if split.pp == 1:
        fields, problem = (f"parallel.{what.leaf}", "parallel.pp"), f"{text} needs a pipeline, and pp=1 is none"
        raise refusal(fields, f"{problem}; use", as_many, empty)
    if count != split.pp:
        example: tuple[int, ...] = (values + (1,) * split.pp)[: split.pp]
        raise refusal(
            (f"parallel.{what.leaf}", "parallel.pp"),
            f"{text} names {count} stages, and pp={split.pp} has {split.pp}; use",
            each(what, example),
            as_many,
            empty._replace(spare=True),
        )
