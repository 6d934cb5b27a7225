"""Rules about stages with different numbers of tensor ranks: what they need and exclude. Errors name valid values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallel_core.rules import Proposal, nearest, refusal
from parallel_core.rules.stages import WIDTHS, check_each_stage, dashed_text, each, in_place_of
from parallel_core.schedule import places

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec


def check_widths(spec: RunSpec) -> None:
    """Raises the error of the first rule that is broken."""
    split = spec.parallel
    if split.widths is None:
        return
    check_each_stage(split, WIDTHS)
    text = dashed_text(split.widths)
    if split.sequence:
        raise refusal(
            ("parallel.sequence", "parallel.widths"),
            f"sequence=true splits what stages hand on over tensor ranks, and widths={text} gives each stage its own "
            "number; use",
            Proposal("sequence=false", "parallel.sequence", [False]),
            in_place_of(WIDTHS, nearest(range(2, max(2, *split.widths) + 1), max(split.widths))),
        )
    ends = sorted({(home := places(split))[0], home[-1]})
    if spec.model.tied and len({split.widths[end] for end in ends}) > 1:
        alike = tuple(split.widths[ends[0]] if at in ends else width for at, width in enumerate(split.widths))
        raise refusal(
            ("model.tied", "parallel.widths"),
            f"tied=true cuts the matrix of first and last stage alike, and widths={text} does not; use",
            Proposal("tied=false", "model.tied", [False]),
            each(WIDTHS, alike),
        )
