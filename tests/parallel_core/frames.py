"""The records of ranks, read whole, or written as a run leaves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from parallel_core.exits import Exit
from parallel_core.observe.record_files import Frame, encode, events_path, read_frames
from parallel_core.outcome import Outcome


def read_file(path: Path) -> list[Frame]:
    """All whole frames of a rank's file; [] if there is no file."""
    return list(read_frames(path))


def outcome_of(folder: Path, records: Mapping[int, Sequence[Frame]], exits: Sequence[Exit] = ()) -> Outcome:
    """The outcome of a run of ranks that left these records in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, frames in records.items():
        data = b"".join(encode({**frame.header, "rank": rank}, frame.blob) for frame in frames)
        events_path(folder, rank).write_bytes(data)
    return Outcome(folder, 0.0, max(records, default=0) + 1, exits=[*exits])
