"""What each rank has written of a checkpoint, until it is complete: a file of its own in the folder of `folder.saving`,
of which rank 0 makes the manifest."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parallel_core.atomic_file import write_text
from parallel_core.checkpoint.manifest import CheckpointError, Manifest, parse_stored

POLL_S = 0.01
PATTERN = "rank-*.json"
"""Of the names of these files."""


def write_part(where: Path, rank: int, part: Mapping[str, Any]) -> None:
    """Records what a rank has written, as its last file: `tensors` as in the manifest, `bytes` of its data file.

    From then on rank 0 may rename the folder, and flushes it before (`folder.publish`).
    """
    write_text(where / _part(rank), json.dumps(part), sync=True)


def gather_parts(where: Path, world: int, give_up_s: float) -> list[dict[str, Any]]:
    """Waits for all ranks' parts; returns them in rank order. Raises CheckpointError after `give_up_s` seconds."""
    deadline = time.monotonic() + give_up_s
    for rank in range(world):
        while not (where / _part(rank)).exists():
            if time.monotonic() > deadline:
                raise CheckpointError(f"Rank {rank} did not write its part of {where.name} within {give_up_s:.0f} s.")
            time.sleep(POLL_S)
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


def _part(rank: int) -> str:
    return f"rank-{rank}.json"
