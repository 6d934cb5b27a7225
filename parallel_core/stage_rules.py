"""Fields with one value for each stage in place of a single one: their notation, and what they need."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from parallel_core.rules import Way, refusal

if TYPE_CHECKING:
    from parallel_core.spec import ParallelSpec


class EachStage(NamedTuple):
    """A field of ParallelSpec with one number for each place of the pipeline, and the field with one number for all."""

    leaf: str
    says: str
    whole: str
    """Name of the field with one number for all; `axis` is its name in messages."""
    axis: str


REPLICAS = EachStage("replicas", "says how often each stage is there", "dp", "data")
WIDTHS = EachStage("widths", "says how many tensor ranks each stage has", "tp", "tensor")


def name(values: tuple[int, ...]) -> str:
    """Formats the values as in PipeDream's paper: 2-1-1."""
    return "-".join(map(str, values))


def check_each_stage(split: ParallelSpec, what: EachStage) -> None:
    """Checks that there is a number for each place of a pipeline, and that the other field is not set."""
    values: tuple[int, ...] = getattr(split, what.leaf)
    text, count, whole = f"{what.leaf}={name(values)}", len(values), getattr(split, what.whole)
    empty = Way(f"leave {what.leaf} empty", f"parallel.{what.leaf}", [None])
    if whole > 1:
        raise refusal(
            (f"parallel.{what.leaf}", f"parallel.{what.whole}"),
            f"{text} {what.says}, and {what.axis}={whole} says it again; use",
            Way(f"{what.axis}={{}}", f"parallel.{what.whole}", [1]),
            empty,
        )
    as_many = Way("pipeline={}", "parallel.pp", [max(count, 2)])
    if split.pp == 1:
        fields, problem = (f"parallel.{what.leaf}", "parallel.pp"), f"{text} needs a pipeline, and pipeline=1 is none"
        raise refusal(fields, f"{problem}; use", as_many, empty)
    if count != split.pp:
        example = (values + (1,) * split.pp)[: split.pp]
        raise refusal(
            (f"parallel.{what.leaf}", "parallel.pp"),
            f"{text} names {count} stages, and pipeline={split.pp} has {split.pp}; use",
            Way(", ".join(map(str, example)), f"parallel.{what.leaf}", [example]),
            as_many,
            empty._replace(spare=True),
        )
