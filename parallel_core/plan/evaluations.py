"""How many evaluations of held-out samples a run makes, and about how long each takes."""

from __future__ import annotations

from parallel_core.spec import TrainSpec

FORWARD_SHARE = 1 / 3
"""Of a step's work, the forward's: the backward takes about twice as much (Narayanan et al. 2021b, section 5.1)."""


def evaluations(train: TrainSpec, done: int = 0) -> int:
    """Returns how many evaluations follow after `done` steps: every `eval_every` steps and after the last."""
    if not train.eval_every or done >= train.steps:
        return 0
    every = train.eval_every
    return -(-train.steps // every) - done // every


def evaluation_steps(train: TrainSpec) -> float:
    """Returns about how many step times an evaluation takes."""
    return FORWARD_SHARE * train.held_out / train.global_batch
