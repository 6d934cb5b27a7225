"""Rules about tensor parallelism: what it needs of a model, and how splits combine. Errors name valid ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallel_core.outline import outline_of
from parallel_core.rules import MAX_VALUES_NAMED, Proposal, nearest, refusal

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec

MORE_RANKS = Proposal("tp={} or more", "parallel.tp", range(2, 9))


def check_tensor(spec: RunSpec) -> None:
    """Checks that the model can be split to every tensor-parallel width of the run."""
    outline = outline_of(spec.model)
    if spec.parallel.tp > 1:
        outline.check_tensor(spec.parallel.tp)
    for width in sorted({*(spec.parallel.widths or ())} - {1}):
        outline.check_tensor(width, spec.parallel.widths)


def check_split(spec: RunSpec) -> None:
    """Checks that a column split has a tensor-parallel group, and no sequence parallelism."""
    split = spec.parallel
    if split.tensor_split == "pairs":
        return
    if max(split.tensor_ranks) == 1:
        raise refusal(
            ("parallel.tensor_split", "parallel.tp"),
            "tensor_split=columns gathers columns within a tensor group, and tp=1 has no group; use",
            MORE_RANKS,
            Proposal("tensor_split={}", "parallel.tensor_split", ["pairs"]),
        )
    if split.sequence:
        raise refusal(
            ("parallel.tensor_split", "parallel.sequence"),
            "tensor_split=columns gathers every output whole, and sequence=true keeps a rank's rows of it alone; use",
            Proposal("tensor_split={}", "parallel.tensor_split", ["pairs"]),
            Proposal("sequence=false", "parallel.sequence", [False]),
        )


def check_sequence(spec: RunSpec) -> None:
    """Checks that the rows of a micro-batch can be divided evenly over the tensor-parallel group."""
    tp, samples, seq = spec.parallel.tp, spec.micro_batch_size, spec.model.seq
    if not spec.parallel.sequence:
        return
    if tp == 1:
        raise refusal(
            ("parallel.sequence", "parallel.tp"),
            "sequence=true splits what a tensor group leaves whole, and tp=1 has no group; use",
            MORE_RANKS,
            Proposal("sequence=false", "parallel.sequence", [False]),
        )
    if samples * seq % tp:
        raise refusal(
            ("parallel.sequence", "parallel.tp", "model.seq"),
            f"tp={tp} does not divide the {samples * seq} rows of a micro-batch ({samples} x seq={seq}); try",
            Proposal("seq={}", "model.seq", nearest((tp * n for n in range(1, seq // tp + 2)), seq), MAX_VALUES_NAMED),
        )
