"""Disk space of a run's checkpoints: exactly the numbers that `engine.checkpoint` writes, without the manifest and a
model's running statistics (for ResNet-50 one part in fifty)."""

from __future__ import annotations

from parallel_core.plan.units import parameter_count
from parallel_core.spec import BYTES_PER_ELEMENT, MAIN_BYTES, RunSpec


def checkpoint_bytes(spec: RunSpec) -> int:
    """Bytes of one checkpoint: every parameter once, whatever the layout, its main copy if it is in 16 bits, and
    the optimizer's states."""
    size, main = BYTES_PER_ELEMENT[spec.train.precision], MAIN_BYTES[spec.train.precision]
    return parameter_count(spec.model) * (size + spec.train.optimizer_states * main + (main if size < main else 0))


def most_checkpoints(spec: RunSpec) -> int:
    """Most checkpoints on disk at once: those kept, of runs that evaluate one more, and the one being written; 1 if a
    run saves only when stopped or at its time limit."""
    train = spec.train
    if not train.checkpoint_every:
        return 1
    return min(train.keep + bool(train.eval_every), train.steps // train.checkpoint_every) + 1
