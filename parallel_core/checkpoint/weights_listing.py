"""The folders of Llama weights in a worker's data folder, as its heartbeats list them. Without torch."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from parallel_core.checkpoint.llama_weights import CONFIG, NAME_PATTERN, described
from parallel_core.checkpoint.manifest import CheckpointError

NAMED = "Its name must be at most 64 letters, digits, '.', '_' and '-', a letter or digit first; rename the folder."
MOST_LISTED = 100
"""Folders in a listing, which every heartbeat of a worker carries: some 40 KB of it."""
MOST_CHARACTERS = 300
"""Length to which a listing cuts the reason why weights cannot be used."""
Known = MutableMapping[str, tuple[object, dict[str, Any]]]
"""Name of a folder -> sizes and times of its files, and its entry in a listing."""


def listing(folder: Path, known: Known) -> list[dict[str, Any]]:
    """The folders with a config.json directly in a data folder, by name: {name} and what `described` tells, or
    {name, why} where they cannot be used. At most MOST_LISTED are read; further ones share an entry. Those whose files
    are as they were in `known`, which it keeps up to date, are not read again."""
    names = sorted(path.parent.name for path in folder.glob(f"*/{CONFIG}"))
    able = [name for name in names if NAME_PATTERN.fullmatch(name)]
    for gone in set(known).difference(able):
        del known[gone]
    found = [_entry(name, folder / name, known) for name in able[:MOST_LISTED]]
    if others := able[MOST_LISTED:]:
        found.append({"name": others[0], "why": f"Only {MOST_LISTED} folders are read; left out: {len(others)}."})
    odd = [name for name in names if name not in set(able)][:MOST_LISTED]
    return found + [{"name": name.encode(errors="backslashreplace").decode(), "why": NAMED} for name in odd]


def _entry(name: str, path: Path, known: Known) -> dict[str, Any]:
    try:
        seen = [_stamp(file) for file in sorted(path.iterdir())]
    except OSError as error:  # of this folder alone: the others are listed
        if name in known and not isinstance(error, PermissionError):
            return known[name][1]
        return {"name": name, "why": f"{path} cannot be read: {error.strerror}."[:MOST_CHARACTERS]}
    if name not in known or known[name][0] != seen:
        try:
            entry = {"name": name, **described(path)}
        except CheckpointError as error:
            entry = {"name": name, "why": str(error)[:MOST_CHARACTERS]}
        known[name] = seen, entry
    return known[name][1]


def _stamp(file: Path) -> tuple[str, int, int]:
    """What tells that a file has changed. Of a link that leads nowhere, or a file that is gone by now, its name."""
    try:
        status = file.stat()
    except OSError:
        return file.name, -1, -1
    return file.name, status.st_size, status.st_mtime_ns
