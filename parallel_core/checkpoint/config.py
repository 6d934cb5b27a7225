"""What a rank is told about checkpoints by whoever starts it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CheckpointConfig:
    """`folder` holds the checkpoints of the run. `resume` is the one to begin from; None = from the first values.

    `run` and `attempt` are written into every manifest: who saved it (0 without a dashboard).
    """

    folder: Path
    resume: Path | None = None
    run: int = 0
    attempt: int = 0
