"""What the checkpoints of a run take on a disk: the numbers that `engine.checkpoint` writes, to the byte, without their
names and a model's running statistics (a manifest, and of ResNet-50 a fiftieth)."""

from __future__ import annotations

from parallel_core.plan.units import parameter_count
from parallel_core.spec import BYTES_PER_ELEMENT, MAIN_BYTES, RunSpec


def checkpoint_bytes(spec: RunSpec) -> int:
    """Bytes of one: every parameter once, whatever the layout, its main copy where it is of 16 bits, and AdamW's two
    moments."""
    size, main = BYTES_PER_ELEMENT[spec.train.precision], MAIN_BYTES[spec.train.precision]
    return parameter_count(spec.model) * (size + 2 * main + (main if size < main else 0))


def most_checkpoints(spec: RunSpec) -> int:
    """How many are there at once: those that are kept, and the one that is being written. A run that saves only when it
    is stopped leaves one."""
    train = spec.train
    if not train.checkpoint_every:
        return 1
    return min(train.keep, train.steps // train.checkpoint_every) + 1
