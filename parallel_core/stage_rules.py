"""Fields that say of each stage what otherwise one number says of all: how they are written, and what they need."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from parallel_core.rules import rule

if TYPE_CHECKING:
    from parallel_core.spec import ParallelSpec


class EachStage(NamedTuple):
    """A field of ParallelSpec with a number for each place of the pipeline, and the one that says it of all."""

    leaf: str
    says: str
    whole: str
    """The leaf of the other field, and what messages call it."""
    axis: str


REPLICAS = EachStage("replicas", "says how often each stage is there", "dp", "data")
WIDTHS = EachStage("widths", "says how many tensor ranks each stage has", "tp", "tensor")


def name(values: tuple[int, ...]) -> str:
    """As PipeDream's paper writes it: 2-1-1."""
    return "-".join(map(str, values))


def check_each_stage(split: ParallelSpec, what: EachStage) -> None:
    """A number for each place of a pipeline, and the other field left alone."""
    values: tuple[int, ...] = getattr(split, what.leaf)
    text, count, whole = f"{what.leaf}={name(values)}", len(values), getattr(split, what.whole)
    if whole > 1:
        raise rule(
            (f"parallel.{what.leaf}", f"parallel.{what.whole}"),
            f"{text} {what.says}, and {what.axis}={whole} says it again; use {what.axis}=1, or leave {what.leaf} "
            "empty.",
        )
    if split.pp == 1:
        raise rule(
            (f"parallel.{what.leaf}", "parallel.pp"),
            f"{text} needs a pipeline, and pipeline=1 is none; use pipeline={max(count, 2)}, or leave {what.leaf} "
            "empty.",
        )
    if count != split.pp:
        example = ", ".join(map(str, (values + (1,) * split.pp)[: split.pp]))
        raise rule(
            (f"parallel.{what.leaf}", "parallel.pp"),
            f"{text} names {count} stages, and pipeline={split.pp} has {split.pp}; use {example}, or "
            f"pipeline={max(count, 2)}.",
        )
