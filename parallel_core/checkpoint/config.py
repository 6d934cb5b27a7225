"""The checkpoint settings that a rank gets when it is started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CheckpointConfig:
    """Where a rank saves checkpoints, and where it begins.

    `folder` = the folder of the run's checkpoints; `resume` = the one to begin from, None for the initial values.
    `run` and `attempt` are written to every manifest (0 without a dashboard).
    """

    folder: Path
    resume: Path | None = None
    run: int = 0
    attempt: int = 0
