"""The records of a rank, read whole."""

from __future__ import annotations

from pathlib import Path

from parallel_core.observe.records import Frame, read_frames


def read_file(path: Path) -> list[Frame]:
    """All whole frames of a rank's file; [] if there is no file."""
    return list(read_frames(path))
