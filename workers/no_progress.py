"""The end of an attempt whose ranks make no progress."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from parallel_core import no_progress
from parallel_core.spec import RunSpec
from workers.ending import Ending

MAX_MARKED = 16_000
"""The most characters of the programs that are sent with the event: about a hundred ranks."""


def report(folder: Path, ranks: Sequence[int], limit_s: float, spec: RunSpec) -> Ending:
    """The end of an attempt for lack of progress; made while the ranks are still there."""
    detail = no_progress.sentence(folder, ranks, limit_s)
    return Ending("failed", "no_progress", detail, traceback=no_progress.marked(folder, ranks, spec)[:MAX_MARKED])
