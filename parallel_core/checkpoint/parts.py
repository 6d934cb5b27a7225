"""What each rank has written of a checkpoint, until it is complete: a file of its own in the folder of `folder.saving`,
of which rank 0 makes the manifest."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from parallel_core.atomic_file import NO_SPACE, write_text
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


def keep_sign(sign: Path) -> None:
    """Makes the empty file by which a rank will tell that it leaves out its part (`leave_out`): a disk that is full by
    then, or has no more inodes, still takes another name for it. One that is full already may not."""
    with contextlib.suppress(OSError):
        sign.parent.mkdir(parents=True, exist_ok=True)
        sign.touch()


def leave_out(where: Path, rank: int, why: int, sign: Path) -> None:
    """Tells rank 0 that no part of this rank comes, for want of room by the error number `why`: by a file beside the
    folder. A full disk may not let it make one, so `sign` (`keep_sign`) gets the name. Raises OSError."""
    try:
        sign.replace(_left_out(where, rank, why))
    except FileNotFoundError:
        _left_out(where, rank, why).touch()


def remove_part(where: Path, rank: int) -> None:
    """Removes what a rank has written, if anything. Raises OSError."""
    for name in (f"rank-{rank}.bin", _part(rank)):
        (where / name).unlink(missing_ok=True)


def drop(where: Path, signs: Sequence[Path]) -> None:
    """Removes the folder of a checkpoint that found no room; what `leave_out` left beside it becomes the ranks' `signs`
    again."""
    shutil.rmtree(where, ignore_errors=True)
    for rank, sign in enumerate(signs):
        for why in NO_SPACE:
            with contextlib.suppress(OSError):  # mostly there is none
                _left_out(where, rank, why).replace(sign)


def gather_parts(where: Path, world: int, give_up_s: float, own: int | None = None) -> list[dict[str, Any]]:
    """Waits until no rank writes any more; returns all ranks' parts, in rank order. `own`: the error number for which
    rank 0, which calls this, leaves out its part. Raises NoRoom where one is left out, and CheckpointError after
    `give_up_s` seconds."""
    deadline, left_out = time.monotonic() + give_up_s, {} if own is None else {0: own}
    for rank in range(len(left_out), world):
        while not (where / _part(rank)).exists():
            if (why := _why_left_out(where, rank)) is not None:
                left_out[rank] = why
                break
            if time.monotonic() > deadline:
                raise CheckpointError(f"Rank {rank} did not write its part of {where.name} within {give_up_s:.0f} s.")
            time.sleep(POLL_S)
    if left_out:
        rank, why = next(iter(left_out.items()))
        raise NoRoom(f"{os.strerror(why)} for the part of rank {rank}")
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


def _why_left_out(where: Path, rank: int) -> int | None:
    return next((why for why in NO_SPACE if _left_out(where, rank, why).exists()), None)


def _left_out(where: Path, rank: int, why: int) -> Path:
    return where.with_name(f"{where.name}{_LEFT_OUT}{rank}-{why}")


def _part(rank: int) -> str:
    return f"rank-{rank}.json"
