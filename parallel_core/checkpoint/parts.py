"""What each rank has written of a checkpoint, until it is complete: a file of its own in the folder of `folder.saving`,
of which rank 0 makes the manifest."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parallel_core.atomic_file import write_text
from parallel_core.checkpoint.manifest import CheckpointError, Manifest, parse_stored

POLL_S = 0.01
PATTERN = "rank-*.json"
"""Of the names of these files."""
_LEFT_OUT = ".left-out-"


class NoRoom(CheckpointError):
    """A rank found no room for its part."""


def write_part(where: Path, rank: int, part: Mapping[str, Any]) -> None:
    """Records what a rank has written, as its last file: `tensors` as in the manifest, `bytes` of its data file.

    From then on rank 0 may rename the folder, and flushes it before (`folder.publish`).
    """
    write_text(where / _part(rank), json.dumps(part), sync=True)


def leave_out(where: Path, rank: int) -> None:
    """Removes what a rank has written, and tells rank 0 that no more comes. Raises OSError.

    By an empty file beside the folder, which a full disk may not have let it make.
    """
    for name in (f"rank-{rank}.bin", _part(rank)):
        (where / name).unlink(missing_ok=True)
    _left_out(where, rank).touch()


def drop(where: Path, world: int) -> None:
    """Removes the folder of a checkpoint that found no room, and what `leave_out` left beside it."""
    shutil.rmtree(where, ignore_errors=True)
    for rank in range(world):
        _left_out(where, rank).unlink(missing_ok=True)


def gather_parts(where: Path, world: int, give_up_s: float) -> list[dict[str, Any]]:
    """Waits until no rank writes any more; returns all ranks' parts, in rank order. Raises NoRoom where one is left
    out, and CheckpointError after `give_up_s` seconds."""
    deadline, left_out = time.monotonic() + give_up_s, []
    for rank in range(world):
        while not (where / _part(rank)).exists():
            if _left_out(where, rank).exists():
                left_out.append(rank)
                break
            if time.monotonic() > deadline:
                raise CheckpointError(f"Rank {rank} did not write its part of {where.name} within {give_up_s:.0f} s.")
            time.sleep(POLL_S)
    if left_out:
        raise NoRoom(f"{os.strerror(errno.ENOSPC)} for the part of rank {left_out[0]}")
    return [json.loads((where / _part(rank)).read_text()) for rank in range(world)]


def merge(parts: list[dict[str, Any]], **about: Any) -> Manifest:
    """The manifest of all ranks' parts; `about` = its other fields."""
    tensors: dict[str, dict[str, Any]] = {}
    for part in parts:
        for name, entry in part["tensors"].items():
            known = tensors.setdefault(name, {**entry, "pieces": []})
            known["pieces"] += entry["pieces"]
    files = {f"rank-{rank}.bin": part["bytes"] for rank, part in enumerate(parts) if part["bytes"]}
    stored = {name: parse_stored(entry) for name, entry in sorted(tensors.items())}
    return Manifest(tensors=stored, files=files, **about)


def _left_out(where: Path, rank: int) -> Path:
    return where.with_name(f"{where.name}{_LEFT_OUT}{rank}")


def _part(rank: int) -> str:
    return f"rank-{rank}.json"
