"""Tensor groups: what they need of a model, and which ways of splitting go together. Errors name what would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallel_core.outline import outline_of
from parallel_core.rules import few, rule

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec


def check_tensor(spec: RunSpec) -> None:
    """The model can be cut to every width that there is."""
    field = "parallel.tp" if spec.parallel.widths is None else "parallel.widths"
    for width in sorted({spec.parallel.tp, *(spec.parallel.widths or ())}):
        if width > 1:
            outline_of(spec.model).check_tensor(width, field)


def check_split(spec: RunSpec) -> None:
    """Columns are gathered within a tensor group, and rows are not split beside them."""
    split = spec.parallel
    if split.tensor_split == "pairs":
        return
    if max(split.tensor_ranks) == 1:
        raise rule(
            ("parallel.tensor_split", "parallel.tp"),
            "tensor_split=columns gathers columns within a tensor group, and tensor=1 has no group; use tensor=2 or "
            "more, or tensor_split=pairs.",
        )
    if split.sequence:
        raise rule(
            ("parallel.tensor_split", "parallel.sequence"),
            "tensor_split=columns gathers every output whole, and sequence=true keeps a rank's rows of it alone; use "
            "tensor_split=pairs, or sequence=false.",
        )


def check_sequence(spec: RunSpec) -> None:
    """The rows of a micro-batch can be shared out."""
    tp, samples, seq = spec.parallel.tp, spec.micro_batch_size, spec.model.seq
    if not spec.parallel.sequence:
        return
    if tp == 1:
        raise rule(
            ("parallel.sequence", "parallel.tp"),
            "sequence parallelism splits what a tensor group leaves whole, and tensor=1 has no group; "
            "use tensor=2 or more, or turn it off.",
        )
    if samples * seq % tp:
        raise rule(
            ("parallel.sequence", "parallel.tp", "model.seq"),
            f"tensor={tp} does not divide the {samples * seq} rows of a micro-batch ({samples} x seq={seq}); "
            f"try seq={few((tp * n for n in range(1, seq // tp + 2)), seq)}.",
        )
