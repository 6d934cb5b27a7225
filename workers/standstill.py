"""How an attempt ends whose ranks stand still."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from parallel_core import standstill
from parallel_core.spec import RunSpec
from workers.ending import Ending

MAX_GRID = 16_000
"""Characters of the grid that travel with the event."""


def report(folder: Path, ranks: Sequence[int], limit_s: float, spec: RunSpec) -> Ending:
    """The end for want of progress; written while the ranks still stand there."""
    detail = standstill.sentence(folder, ranks, limit_s)
    return Ending("failed", "no_progress", detail, traceback=standstill.marked(folder, ranks, spec)[:MAX_GRID])
